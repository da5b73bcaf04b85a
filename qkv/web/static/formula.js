// Formulas in MathML, with the numbers of the moment in them.

import { digits, m } from "./dom.js";

/** A letter, a number or an operator: "a", 3, "=". */
const leaf = (x) => (x instanceof Node ? x : typeof x === "number" ? m("mn", digits(x)) : /^[\p{L}]/u.test(x) ? m("mi", x) : /^[\d−.]/.test(x) ? m("mn", x) : m("mo", x));

export const row = (...parts) => m("mrow", ...parts.map(leaf));
export const sub = (base, ...below) => m("msub", leaf(base), row(...below));
export const power = (base, above) => m("msup", leaf(base), leaf(above));
export const over = (top, bottom) => m("mfrac", leaf(top), leaf(bottom));
export const root = (inside) => m("msqrt", leaf(inside));
export const sum = (index) => m("munder", m("mo", "∑"), leaf(index));
export const words = (text) => m("mtext", text);

/** Lines one under the other, each a list of parts. */
export function formula(...lines) {
  const math = m("math", m("mtable", ...lines.map((parts) => {
    const style = m("mstyle", row(...parts));
    style.setAttribute("displaystyle", "true");
    return m("mtr", m("mtd", style));
  })));
  math.setAttribute("display", "block");
  return math;
}

/** How a kind makes an unnormalized weight of a score, as parts of a formula; x() makes the score's symbol. */
export const LAWS = {
  softmax: (x) => ["exp", row("(", x(), ")")],
  additive: (x) => ["exp", row("(", x(), ")")],
  taylor: (x) => ["1", "+", x(), "+", over(power(x(), "2"), "2")],
  linear: (x) => [x()],
  elu: () => ["φ", row("(", sub("q", "i"), ")"), "·", "φ", row("(", sub("k", "j"), ")")],
};
