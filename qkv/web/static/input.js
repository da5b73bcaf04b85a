// What the model reads. The fields are made once: what is typed and not yet sent outlives all that is drawn meanwhile.

import { h } from "./dom.js";
import { saved } from "./source.js";
import { again, choose, now } from "./state.js";

/** What lies in another input has no place in this one. */
const FORGOTTEN = { row: undefined, column: undefined, rows: undefined, node: undefined };

/** Returns {card, update}: update() shows a text that was chosen elsewhere, as by a link or by Back. */
export function inputCard(about) {
  const text = field("textarea", { id: "text", rows: 2 }, () => now().text ?? about.text);
  const answer = about.writes ? field("input", { id: "answer", type: "text", placeholder: "the model's own" }, () => now().answer ?? about.answer ?? "") : null;
  const look = () => send(about, text.element.value, answer?.element.value);
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.target === answer?.element)) look();
  };
  const card = h("section", { class: "card", onkeydown: keys },
    h("div", { class: "field" }, h("label", { for: "text" }, "What the model reads"), text.element),
    answer && h("div", { class: "field" }, h("label", { for: "answer" }, "The answer to look at"), answer.element),
    saved ? h("p", { class: "note" }, "A saved page: other texts need ", h("code", {}, "qkv serve"), ".") : h("button", { type: "button", class: "main", "data-focus": "go", onclick: look }, "Look  (Ctrl-Enter)"));
  return {
    card,
    update: () => {
      text.update();
      answer?.update();
    },
  };
}

/** A field that takes over what is chosen only when that changes. */
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

/** Ask about this text; once more if it is the same, since the last answer may have failed. */
function send(about, text, answer) {
  const next = text === about.text ? undefined : text || " ";
  const start = next === now().text ? {} : { prefix: undefined }; // tokens forced upon one word make none of another
  if (!choose({ text: next, answer, ...FORGOTTEN, ...start })) again();
}
