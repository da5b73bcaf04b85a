// One head as lines between two columns of tokens, and as text whose background is the weight.

import { paint } from "./color.js";
import { digits, s, shown, whole } from "./dom.js";
import { largestOf } from "./heat.js";

const LINE = 20;

/** Two columns, a line for each of the `top` largest weights of a row; chosen rows stand out. */
export function arcs(matrix, { view, rows, top, spot, width, pick }) {
  const wide = Math.min(width, 620);
  const count = Math.max(view.rows, view.columns);
  const cut = view.rows < matrix.rows || view.columns < matrix.columns;
  const bottom = 40 + count * LINE;
  const height = bottom + (cut ? 38 : 24);
  const [left, right] = [118, wide - 118];
  const svg = s("svg", { width: wide, height, viewBox: `0 0 ${wide} ${height}`, role: "application", tabindex: 0, class: "pick", "data-focus": "map", "aria-label": `Lines from ${spot.rows} to ${spot.columns}` });
  const y = (n) => 40 + n * LINE;
  const chosen = new Set(rows);
  let largest = 1e-30;
  for (let i = view.top; i < view.top + view.rows; i++) for (let j = view.left; j < view.left + view.columns; j++) largest = Math.max(largest, Math.abs(matrix.data[i * matrix.columns + j]));
  for (let i = view.top; i < view.top + view.rows; i++) {
    const best = [];
    for (let j = view.left; j < view.left + view.columns; j++) best.push([matrix.data[i * matrix.columns + j], j]);
    best.sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
    for (const [weight, j] of best.slice(0, top)) {
      if (!weight) continue;
      const strong = chosen.has(i);
      const part = Math.abs(weight) / largest;
      const [from, to] = [y(i - view.top) - 4, y(j - view.left) - 4];
      svg.append(s("path", { class: strong ? "arc chosen" : "arc", "stroke-width": 1 + 4 * part, "stroke-opacity": strong ? 0.25 + 0.75 * part : 0.5 * part, d: `M${left} ${from}C${left + 90} ${from} ${right - 90} ${to} ${right} ${to}` }));
    }
  }
  column(svg, matrix.rowLabels, view.top, view.rows, left - 8, "end", y, (n) => chosen.has(n), pick);
  column(svg, matrix.columnLabels, view.left, view.columns, right + 8, "start", y, () => false);
  svg.append(
    s("text", { x: left - 8, y: 16, "text-anchor": "end", class: "axis" }, `who looks: ${spot.rows}`),
    s("text", { x: right + 8, y: 16, class: "axis" }, `looked at: ${spot.columns}`),
    ...captions(largest, top, cut && { view, matrix }).map((words, n) => s("text", { x: 2, y: bottom + 2 + 14 * n, class: "axis" }, words)));
  return svg;
}

/** Below the lines, in lines that fit a telephone. */
const captions = (largest, top, cut) => [
  `the ${top} largest weights of each row${cut ? " among those shown" : ""}`,
  `the strongest line is ${digits(largest)}`,
  cut && `rows ${cut.view.top + 1}–${cut.view.top + cut.view.rows} of ${whole(cut.matrix.rows)}, columns ${cut.view.left + 1}–${cut.view.left + cut.view.columns} of ${whole(cut.matrix.columns)}`,
].filter(Boolean);

function column(svg, names, from, count, x, anchor, y, strong, pick) {
  for (let n = 0; n < count; n++) {
    svg.append(s("text", { x, y: y(n), "text-anchor": anchor, class: strong(from + n) ? "label strong" : "label", onclick: pick && ((event) => pick(from + n, event.shiftKey)) }, shown(names[from + n])));
  }
}

/** The looked-at tokens as running text, each on the color of its weight (the sum over the chosen rows). */
export function textHeat(matrix, { view, values, rows, spot, width, same, pick }) {
  const largest = largestOf(values);
  const svg = s("svg", { width, class: "pick", role: "application", tabindex: 0, "data-focus": "map", "aria-label": `Tokens on the color of their weight; rows ${rows.map((r) => r + 1).join(", ")}` });
  const shownRows = rows.slice(0, 8).map((i) => shown(matrix.rowLabels[i], 10)).join(" ");
  svg.append(s("text", { x: 2, y: 16, class: "axis" }, `where ${rows.length > 1 ? `${rows.length} tokens together look` : "this token looks"}: ${shownRows}`));
  let y = same ? 50 : flow(svg, matrix.rowLabels, view.top, view.rows, 50, width, (i) => ({ fill: "none", strong: rows.includes(i), pick: (event) => pick(i, event.shiftKey), title: `row ${i + 1}` })) + 62;
  if (!same) svg.append(s("text", { x: 2, y: y - 30, class: "axis" }, `looked at: ${spot.columns}`));
  y = flow(svg, matrix.columnLabels, view.left, view.columns, y, width, (j) => ({ ...paint(values[j], largest, false), strong: same && rows.includes(j), pick: same ? (event) => pick(j, event.shiftKey) : null, title: digits(values[j]) }));
  const cut = view.columns < matrix.columns ? `; tokens ${view.left + 1}–${view.left + view.columns} of ${whole(matrix.columns)}` : "";
  svg.append(s("text", { x: 2, y: y + 30, class: "axis" }, `strongest: ${digits(largest)}${cut}`));
  svg.setAttribute("height", y + 40);
  svg.setAttribute("viewBox", `0 0 ${width} ${y + 40}`);
  return svg;
}

/** Tokens one after the other, in lines; returns the height of the last. */
function flow(svg, names, from, count, start, width, look) {
  let [x, y] = [2, start];
  for (let n = from; n < from + count; n++) {
    const text = shown(names[n]);
    const wide = 10 + 7.8 * [...text].reduce((sum, c) => sum + (c.codePointAt(0) > 0x2e80 ? 1.7 : 1), 0);
    if (x + wide > width - 2) [x, y] = [2, y + 30];
    const { fill, ink, strong, pick, title } = look(n);
    const label = s("text", { x: x + wide / 2, y, "text-anchor": "middle", class: "label", onclick: pick }, text);
    if (ink) label.style.fill = ink;
    svg.append(s("rect", { x, y: y - 17, width: wide, height: 24, rx: 4, fill, class: strong ? "cursor" : null, onclick: pick }, s("title", {}, title)), label);
    if (strong) svg.lastChild.previousSibling.style.fill = fill;
    x += wide + 3;
  }
  return y;
}
