// One head as lines between two columns of tokens, and as text on the color of its weights.

import { paint } from "./color.js";
import { digits, s, tokenText, whole } from "./dom.js";
import { largestOf, rangeText } from "./heat.js";

const LINE_HEIGHT = 20;

/** Two columns, with a line for each of the `top` largest weights of a row; chosen rows are highlighted. */
export function arcs(matrix, { view, rows, top, site, width, pick }) {
  const wide = Math.min(width, 620);
  const count = Math.max(view.rows, view.columns);
  const isPart = view.rows < matrix.rows || view.columns < matrix.columns;
  const bottom = 40 + count * LINE_HEIGHT;
  const height = bottom + (isPart ? 38 : 24);
  const [left, right] = [118, wide - 118];
  const svg = s("svg", {
    width: wide,
    height,
    viewBox: `0 0 ${wide} ${height}`,
    role: "application",
    tabindex: 0,
    class: "pick",
    "data-focus": "map",
    "aria-label": `Lines from ${site.rows} to ${site.columns}`,
  });
  const y = (n) => 40 + n * LINE_HEIGHT;
  const chosen = new Set(rows);
  let largest = 1e-30;
  for (let i = view.top; i < view.top + view.rows; i++)
    for (let j = view.left; j < view.left + view.columns; j++) largest = Math.max(largest, Math.abs(matrix.data[i * matrix.columns + j]));
  for (let i = view.top; i < view.top + view.rows; i++) {
    const best = [];
    for (let j = view.left; j < view.left + view.columns; j++) best.push([matrix.data[i * matrix.columns + j], j]);
    best.sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
    for (const [weight, j] of best.slice(0, top)) {
      if (!weight) continue;
      const strong = chosen.has(i);
      const part = Math.abs(weight) / largest;
      const [from, to] = [y(i - view.top) - 4, y(j - view.left) - 4];
      svg.append(
        s("path", {
          class: strong ? "arc chosen" : "arc",
          "stroke-width": 1 + 4 * part,
          "stroke-opacity": strong ? 0.25 + 0.75 * part : 0.5 * part,
          d: `M${left} ${from}C${left + 90} ${from} ${right - 90} ${to} ${right} ${to}`,
          "data-tip": `${tokenText(matrix.rowLabels[i])} attends to ${tokenText(matrix.columnLabels[j])}, weight ${digits(weight)}`,
        }),
      );
    }
  }
  column(svg, matrix.rowLabels, view.top, view.rows, left - 8, "end", y, (n) => chosen.has(n), pick);
  column(svg, matrix.columnLabels, view.left, view.columns, right + 8, "start", y, () => false);
  svg.append(
    s("text", { x: left - 8, y: 16, "text-anchor": "end", class: "axis" }, `queries: ${site.rows}`),
    s("text", { x: right + 8, y: 16, class: "axis" }, `keys: ${site.columns}`),
    ...captions(largest, top, isPart && { view, matrix }).map((words, n) =>
      s("text", { x: 2, y: bottom + 2 + 14 * n, class: "axis" }, words),
    ),
  );
  return svg;
}

/** Captions below the lines, short enough for a phone. */
const captions = (largest, top, part) =>
  [
    `the ${top} largest weights of each row${part ? " among those shown" : ""}`,
    `the strongest line is ${digits(largest)}`,
    part && rangeText(part.view, part.matrix),
  ].filter(Boolean);

function column(svg, names, from, count, x, anchor, y, strong, pick) {
  for (let n = 0; n < count; n++) {
    svg.append(
      s(
        "text",
        {
          x,
          y: y(n),
          "text-anchor": anchor,
          class: strong(from + n) ? "label strong" : "label",
          onclick: pick && ((event) => pick(from + n, event.shiftKey)),
        },
        tokenText(names[from + n]),
      ),
    );
  }
}

/** The keys as running text, each on the color of its weight (the sum over the chosen rows). */
export function textHeat(matrix, { view, values, rows, site, width, same, pick }) {
  const largest = largestOf(values);
  const svg = s("svg", {
    width,
    class: "pick",
    role: "application",
    tabindex: 0,
    "data-focus": "map",
    "aria-label": `Tokens on the color of their weight; rows ${rows.map((r) => r + 1).join(", ")}`,
  });
  const queryNames = rows
    .slice(0, 8)
    .map((i) => tokenText(matrix.rowLabels[i], 10))
    .join(" ");
  svg.append(
    s(
      "text",
      { x: 2, y: 16, class: "axis" },
      `${rows.length > 1 ? `weights of ${rows.length} queries` : "weights of the query"}: ${queryNames}`,
    ),
  );
  let y = same
    ? 50
    : flow(svg, matrix.rowLabels, view.top, view.rows, 50, width, (i) => ({
        fill: "none",
        strong: rows.includes(i),
        pick: (event) => pick(i, event.shiftKey),
        title: `row ${i + 1}`,
      })) + 62;
  if (!same) svg.append(s("text", { x: 2, y: y - 30, class: "axis" }, `keys: ${site.columns}`));
  y = flow(svg, matrix.columnLabels, view.left, view.columns, y, width, (j) => ({
    ...paint(values[j], largest, false),
    strong: same && rows.includes(j),
    pick: same ? (event) => pick(j, event.shiftKey) : null,
    title: `${tokenText(matrix.columnLabels[j])}: ${digits(values[j])}`,
  }));
  const range = view.columns < matrix.columns ? `; tokens ${view.left + 1}–${view.left + view.columns} of ${whole(matrix.columns)}` : "";
  svg.append(s("text", { x: 2, y: y + 30, class: "axis" }, `strongest: ${digits(largest)}${range}`));
  svg.setAttribute("height", y + 40);
  svg.setAttribute("viewBox", `0 0 ${width} ${y + 40}`);
  return svg;
}

/** Tokens one after the other, in lines; returns the y of the last line. */
function flow(svg, names, from, count, start, width, styleOf) {
  let [x, y] = [2, start];
  for (let n = from; n < from + count; n++) {
    const text = tokenText(names[n]);
    const wide = 10 + 7.8 * [...text].reduce((sum, c) => sum + (c.codePointAt(0) > 0x2e80 ? 1.7 : 1), 0);
    if (x + wide > width - 2) [x, y] = [2, y + 30];
    const { fill, ink, strong, pick, title } = styleOf(n);
    const label = s("text", { x: x + wide / 2, y, "text-anchor": "middle", class: "label", onclick: pick, "data-tip": title }, text);
    if (ink) label.style.fill = ink;
    svg.append(
      s(
        "rect",
        { x, y: y - 17, width: wide, height: 24, rx: 4, fill, class: strong ? "cursor" : null, onclick: pick, "data-tip": title },
      ),
      label,
    );
    if (strong) svg.lastChild.previousSibling.style.fill = fill;
    x += wide + 3;
  }
  return y;
}
