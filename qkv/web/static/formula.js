// Formulas in MathML, with the current values in them.

import { digits, m } from "./dom.js";

/** A letter, a number or an operator: "a", 3, "=". */
function leaf(x) {
  if (x instanceof Node) return x;
  if (typeof x === "number") return m("mn", digits(x));
  if (/^[\p{L}]/u.test(x)) return m("mi", x);
  return /^[\d−.]/.test(x) ? m("mn", x) : m("mo", x);
}

export const row = (...parts) => m("mrow", ...parts.map(leaf));
export const sub = (base, ...below) => m("msub", leaf(base), row(...below));
export const power = (base, above) => m("msup", leaf(base), leaf(above));
export const over = (top, bottom) => m("mfrac", leaf(top), leaf(bottom));
export const root = (inside) => m("msqrt", leaf(inside));
export const sum = (index) => m("munder", m("mo", "∑"), leaf(index));
export const words = (text) => m("mtext", text);

/** Lines one below the other, each a list of parts. */
export function formula(...lines) {
  const math = m(
    "math",
    m(
      "mtable",
      ...lines.map((parts) => {
        const style = m("mstyle", row(...parts));
        style.setAttribute("displaystyle", "true");
        return m("mtr", m("mtd", style));
      }),
    ),
  );
  math.setAttribute("display", "block");
  return math;
}

const COMMANDS = { "\\exp": "exp", "\\tanh": "tanh", "\\phi": "φ", "\\cdot": "·", "\\dots": "…" };

/** Parts of a formula in the LaTeX subset of qkv/attention/law.py; `symbols` draws letters such as s: {s: () => sub("s", "j")}. */
export function latex(text, symbols = {}) {
  const tokens = text.match(/\\[a-z]+|\d+|\S/g);
  const parseUntil = (end) => {
    const parts = [];
    while (tokens.length && tokens[0] !== end) parts.push(parseScripts(parseAtom()));
    tokens.shift();
    return parts;
  };
  const parseAtom = () => {
    const token = tokens.shift();
    if (token === "{") return row(...parseUntil("}"));
    if (token === "(") return row("(", ...parseUntil(")"), ")");
    if (token === "\\frac") return over(parseAtom(), parseAtom());
    return symbols[token]?.() ?? COMMANDS[token] ?? token;
  };
  const parseScripts = (base) => {
    if (tokens[0] !== "_" && tokens[0] !== "^") return base;
    return tokens.shift() === "_" ? sub(base, parseAtom()) : power(base, parseAtom());
  };
  return parseUntil(null);
}

/** "+ 0.5" or "− 0.5". */
export const plus = (value) => (value < 0 ? ["−", digits(-value)] : ["+", digits(value)]);

const bracketed = (law, parts) => (law.formula.includes("+") ? ["(", ...parts, ")"] : parts);

/**
 * A kind's unnormalized weight of the pair (i, j); without i, of the key j for the current query.
 * positions: {bias, decay}, whether they add b to the score or multiply the weight by g; shift: subtracted from the score.
 */
export function lawParts(law, i, j, { bias = false, decay = false } = {}, shift = null) {
  const indices = i ? [i, j] : [j];
  const terms = () => [sub("s", ...indices), ...(bias ? ["+", sub("b", ...indices)] : []), ...(shift === null ? [] : plus(-shift))];
  const score = () => (terms().length === 1 ? terms()[0] : law.exponential ? row(...terms()) : row("(", ...terms(), ")"));
  const parts = latex(law.formula, { s: score, q: () => (i ? sub("q", i) : "q"), k: () => sub("k", j) });
  return decay ? [sub("g", ...indices), "·", ...bracketed(law, parts)] : parts;
}

/** The sum over n of a kind's unnormalized weights, bracketed if they are sums themselves. */
export function lawSum(law, i, positions = {}) {
  const parts = lawParts(law, i, "n", positions);
  return row(sum("n"), ...(positions.decay ? parts : bracketed(law, parts)));
}
