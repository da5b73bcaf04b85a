// Elements from names and texts. Nothing on this page ever parses a text as HTML.

const SVG = "http://www.w3.org/2000/svg";
const MATH = "http://www.w3.org/1998/Math/MathML";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element; children are nodes or texts. */
export const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);

/** A MathML element. */
export const m = (tag, ...children) => build(document.createElementNS(MATH, tag), {}, children);

/** A token as text: invisible characters get a sign, direction marks their code, long tokens are truncated. */
export function tokenText(token, longest = 14) {
  let text = "";
  for (const c of String(token).slice(0, 4 * longest)) {
    const code = c.codePointAt(0);
    if (c === " ") text += "␣";
    else if (code < 32) text += String.fromCharCode(0x2400 + code);
    else if (/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u.test(c)) text += `‹${code.toString(16).toUpperCase()}›`;
    else if (/\p{M}/u.test(c) && /\p{M}{3}$/u.test(text)) continue;
    else text += c;
  }
  const letters = [...text];
  return letters.length > longest ? letters.slice(0, longest - 1).join("") + "…" : text;
}

/** A number with four decimals, very small and very large ones in scientific notation. */
export function digits(value, decimals = 4) {
  if (value === null || value === undefined || Number.isNaN(value)) return "not a number";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 10 ** -decimals || size >= 1e6) ? value.toExponential(2) : value.toFixed(decimals);
  return text.replace("-", "−");
}

/** An integer with separators. */
export const whole = (value) => value.toLocaleString("en");

/** Announce a text to screen readers. */
export function announce(text) {
  document.getElementById("announcement").textContent = text;
}

/** A box with a heading. */
export const card = (title, ...children) => h("section", { class: "card" }, title && h("h3", {}, title), ...children);

/** A group of buttons of which one is pressed. */
export function choice(name, options, current, choose) {
  return h(
    "div",
    { class: "choices", role: "group", "aria-label": name },
    options.map(([value, text]) =>
      h(
        "button",
        { type: "button", "data-focus": `${name} ${value}`, "aria-pressed": String(value === current), onclick: () => choose(value) },
        text,
      ),
    ),
  );
}

/** A slider of integers that shows its value as text. */
export function slider(name, { value, low, high, text, change }) {
  const output = h("output", {}, text(value));
  const input = h("input", { type: "range", min: low, max: high, "aria-label": name, "aria-valuetext": text(value), "data-focus": name });
  input.value = value;
  // a property and not a listener, so that `render` can move it to the slider that it keeps
  input.oninput = ({ target }) => {
    output.textContent = text(Number(target.value));
    target.setAttribute("aria-valuetext", output.textContent);
    change(Number(target.value));
  };
  return h("div", { class: "field" }, h("span", { class: "label" }, name, " ", output), input);
}

/** [smallest, largest] of finite numbers, however many. */
export function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** The index of the first largest number. */
export function largestIndex(values) {
  let best = 0;
  for (let n = 1; n < values.length; n++) if (values[n] > values[best]) best = n;
  return best;
}

/** An index from 0 to count - 1. */
export const within = (index, count) => Math.max(0, Math.min(index, count - 1));
