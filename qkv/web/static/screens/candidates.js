// What the model says about the input, for screen 1.

import { digits, h, tokenText } from "../dom.js";

/** What the model says: its tokens for each [MASK], the next token, or its answer. */
export function candidatesCard({ places, context }) {
  if (!places.length) return null;
  const isPronunciation = context.about().task === "pronounce";
  return h(
    "section",
    { class: "card", id: "candidates" },
    h("h3", {}, "What the model says"),
    places.map(({ place, tokens, probabilities }) =>
      h(
        "div",
        { class: "readout" },
        h("span", { class: "quiet" }, tokenText(place, 24).replaceAll("␣", " ")),
        tokens.map((token, n) =>
          h(
            "span",
            {},
            h("b", {}, h("bdi", {}, probabilities.length ? tokenText(token) : token)),
            probabilities.length ? h("span", { class: "number" }, ` ${digits(probabilities[n])}`) : null,
          ),
        ),
      ),
    ),
    isPronunciation &&
      h("p", { class: "note" }, "Phones in ARPAbet; the digit of a vowel is its stress: 1 primary, 2 secondary, 0 none."),
  );
}
