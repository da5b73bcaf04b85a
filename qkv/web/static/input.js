// The input fields. They are built once, so text that is typed but not yet sent survives every redraw.

import { saved } from "./api.js";
import { h } from "./dom.js";
import { choose, now, redraw } from "./state.js";

/** Choices that make no sense for another input. */
const INPUT_CHOICES = { row: undefined, column: undefined, rows: undefined, node: undefined };

/** Returns {card, update}: update() shows a text that was chosen elsewhere, by a link or by Back. */
export function inputCard(about) {
  const text = field("textarea", { id: "text", rows: 2 }, () => (saved ? about.text : (now().text ?? about.text)));
  const answer = about.writes
    ? field("input", { id: "answer", type: "text", placeholder: "the model's own" }, () => (saved ? (about.answer ?? "") : (now().answer ?? "")))
    : null;
  const submit = () => send(about, text.element.value, answer?.element.value);
  const onKey = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.target === answer?.element)) submit();
  };
  const card = h(
    "section",
    { class: "card", onkeydown: onKey },
    h("div", { class: "field" }, h("label", { for: "text" }, "Input of the model"), text.element),
    answer && h("div", { class: "field" }, h("label", { for: "answer" }, "Answer to show"), answer.element),
    saved
      ? [
          h("p", { class: "note" }, "A saved page: other texts need ", h("code", {}, "qkv serve"), "."),
          about.left_out?.length ? h("p", { class: "note" }, `Too large to keep: the screens ${about.left_out.join(", ")}.`) : null,
        ]
      : h("button", { type: "button", class: "main", "data-focus": "go", onclick: submit }, "Show  (Ctrl-Enter)"),
  );
  return {
    card,
    update: () => {
      text.update();
      answer?.update();
    },
  };
}

/** A field that takes over the chosen value only when that changes. */
function field(tag, attributes, chosen) {
  const element = h(tag, { ...attributes, "data-focus": attributes.id, spellcheck: "false", disabled: saved });
  let last = null;
  const update = () => {
    if (chosen() === last) return;
    last = chosen();
    if (element.value !== last) element.value = last; // or the caret would jump
  };
  return { element, update };
}

/** Request this text; the same text again too, since the last response may have failed. */
function send(about, text, answer) {
  const next = text === about.text ? undefined : text || " ";
  const start = next === now().text ? {} : { prefix: undefined }; // a forced prefix belongs to one input
  if (!choose({ text: next, answer, ...INPUT_CHOICES, ...start })) redraw();
}
