// A matrix as a heat map. All cells are one image, so a thousand tokens need no more elements than ten.

import { paint, shade, stops, table } from "./color.js";
import { digits, s, tokenText, whole } from "./dom.js";
import { hideTip, showTip } from "./tip.js";

const MAX_PIXELS = 1024;
const MAX_CELL_SIZE = 44;
/** Matrices with fewer rows are colored by their largest value. */
const MIN_ROWS = 32;
let patterns = 0;

/** The value of largest magnitude of each block of cells: at most MAX_PIXELS rows and columns. */
function pool({ data, columns }, view) {
  const [down, across] = [view.rows, view.columns].map((size) => Math.ceil(size / MAX_PIXELS));
  const [height, width] = [Math.ceil(view.rows / down), Math.ceil(view.columns / across)];
  const pooled = new Float32Array(height * width);
  for (let i = 0; i < view.rows; i++) {
    const from = (view.top + i) * columns + view.left;
    const to = Math.floor(i / down) * width;
    for (let j = 0; j < view.columns; j++) {
      const value = data[from + j];
      const index = to + (across === 1 ? j : Math.floor(j / across));
      if (Math.abs(value) > Math.abs(pooled[index])) pooled[index] = value;
    }
  }
  return { pooled, height, width, down, across };
}

/** The matrix as an image, one pixel per cell. */
function image({ pooled, height, width }, largest, signed) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext("2d");
  const pixels = pen.createImageData(width, height);
  const words = new Uint32Array(pixels.data.buffer);
  const colors = new Uint32Array(table(signed).slice().buffer);
  for (let n = 0; n < pooled.length; n++) words[n] = colors[shade(pooled[n], largest, signed)];
  pen.putImageData(pixels, 0, 0);
  return canvas;
}

/** A small image of bytes from 0 to 255. */
export function thumbnail(bytes, height, width) {
  return image({ pooled: Float32Array.from(bytes), height, width }, 255, false);
}

export function largestOf(data) {
  let largest = 0;
  for (const value of data) if (Math.abs(value) > largest) largest = Math.abs(value);
  return largest;
}

/**
 * The value of the darkest color: the largest one; of a long input the median of the rows' largest, if that is much
 * smaller, since the first row of a causal head alone, which has all its weight on one token, would leave the rest blank.
 */
export function colorRange({ data, rows, columns }) {
  const largest = largestOf(data);
  if (rows < MIN_ROWS) return largest;
  const each = Array.from({ length: rows }, (_, i) => largestOf(data.subarray(i * columns, (i + 1) * columns))).sort((a, b) => a - b);
  const middle = each[Math.floor(rows / 2)];
  return middle > 0 && largest > 2 * middle ? middle : largest;
}

/** The part that is drawn: everything, or a window of `zoom` tokens around a cell. */
export function viewOf(rows, columns, zoom = 0, row = 0, column = 0) {
  const span = (count, at) => {
    const size = zoom ? Math.min(zoom, count) : count;
    return [Math.max(0, Math.min(at - Math.floor(size / 2), count - size)), size];
  };
  const [top, height] = span(rows, row);
  const [left, width] = span(columns, column);
  return { top, left, rows: height, columns: width };
}

/**
 * The heat map of a matrix {data, rows, columns, rowLabels, columnLabels}.
 * options: view, width (available), room (of it for the cells), title, rowTitle, columnTitle, signed, causal, largest,
 * scale (text of the range), bare (no row labels), tall (maximum row height), wholeRow (mark rows, not cells),
 * pick(i, j, event), hover(i, j), tip(i, j) (text at the pointer, by default the value).
 * Returns {svg, mark(i, j)}.
 */
export function heat(matrix, options) {
  const view = options.view ?? viewOf(matrix.rows, matrix.columns);
  const parts = pool(matrix, view);
  const most = largestOf(parts.pooled);
  const largest = options.largest ?? most;
  const box = measure(matrix, view, options);
  const words = caption(parts, view, matrix, options);
  box.height = box.top + box.down + (words ? 52 : 32);
  const svg = s("svg", {
    class: options.pick ? "pick" : null,
    width: box.width,
    height: box.height,
    viewBox: `0 0 ${box.width} ${box.height}`,
    role: options.pick ? "application" : "img",
    tabindex: options.pick ? 0 : null,
    "data-focus": options.pick ? "map" : null,
    "aria-label": `${options.title}. ${view.rows} rows, ${view.columns} columns, largest ${digits(most)}.`,
  });
  svg.append(
    s("text", { x: box.left, y: 14, class: "axis" }, options.columnTitle),
    options.bare
      ? ""
      : s("text", { x: 11, y: box.top, class: "axis", transform: `rotate(-90 11 ${box.top})`, "text-anchor": "end" }, options.rowTitle),
    s("image", {
      x: box.left,
      y: box.top,
      width: box.across,
      height: box.down,
      preserveAspectRatio: "none",
      "image-rendering": "pixelated",
      href: image(parts, largest, options.signed).toDataURL(),
    }),
    options.causal ? hatch(box, view) : "",
    s("rect", { x: box.left, y: box.top, width: box.across, height: box.down, class: "frame" }),
    labels(matrix, view, box),
    legend(box, options.scale ?? rangeOf(largest, most, options.signed), options.signed, words),
  );
  const tip = options.tip ?? ((i, j) => valueTip(matrix, i, j));
  return { svg, mark: trackPointer(svg, box, view, { ...options, tip }) };
}

/** The range of the colors as text, and what lies above it. */
function rangeOf(largest, most, signed) {
  const above = most > largest * (1 + 1e-6) ? `, up to ${digits(most, 3)} as dark` : "";
  return `${signed ? digits(-largest, 3) : "0"} to ${digits(largest, 3)}${above}`;
}

const valueTip = ({ data, columns, rowLabels, columnLabels }, i, j) =>
  `${tokenText(rowLabels[i])}, ${tokenText(columnLabels[j])}: ${digits(data[i * columns + j])}`;

function longest(names, from, count) {
  let most = 1;
  for (let n = from; n < from + count; n++) most = Math.max(most, [...tokenText(names[n])].length);
  return most;
}

/** The width of the row labels. */
export const gutter = (matrix, view, title) => (title ? 26 : 10) + 7.6 * longest(matrix.rowLabels, view.top, view.rows);

function measure(matrix, view, options) {
  const left = options.bare ? 6 : gutter(matrix, view, options.rowTitle);
  const letters = longest(matrix.columnLabels, view.left, view.columns);
  const room = options.room ?? Math.max(120, options.width - left - 4);
  const upright = 7.6 * letters < Math.min(MAX_CELL_SIZE, room / view.columns) - 2;
  const top = 26 + (upright ? 12 : 7.6 * letters);
  let [cellWidth, cellHeight] = [Math.min(MAX_CELL_SIZE, room / view.columns), Math.min(options.tall ?? MAX_CELL_SIZE, 560 / view.rows)];
  if (view.rows === view.columns && !options.tall) cellWidth = cellHeight = Math.min(MAX_CELL_SIZE, room / view.columns, 640 / view.rows);
  const [across, down] = [cellWidth * view.columns, cellHeight * view.rows];
  const width = Math.max(left + across + 4, Math.min(options.width, left + 210));
  return { left, top, across, down, cellWidth, cellHeight, upright, width, bare: options.bare };
}

function labels(matrix, view, box) {
  const group = s("g", {});
  const every = [Math.ceil(12 / box.cellHeight), Math.ceil(12 / box.cellWidth)];
  for (let i = 0; i < view.rows; i += every[0]) {
    const y = box.top + (i + 0.5) * box.cellHeight + 4;
    if (!box.bare)
      group.append(s("text", { x: box.left - 6, y, "text-anchor": "end", class: "label" }, tokenText(matrix.rowLabels[view.top + i])));
  }
  for (let j = 0; j < view.columns; j += every[1]) {
    const x = box.left + (j + 0.5) * box.cellWidth + (box.upright ? 0 : 4);
    const turned = box.upright ? { "text-anchor": "middle" } : { transform: `rotate(-90 ${x} ${box.top - 6})` };
    group.append(s("text", { x, y: box.top - 6, ...turned, class: "label" }, tokenText(matrix.columnLabels[view.left + j])));
  }
  return group;
}

/** Cells masked by a causal head: hatched, since they are not weights of zero. */
function hatch(box, view) {
  const id = `hatch-${++patterns}`;
  const y = (i) => box.top + Math.max(0, Math.min(view.rows, i)) * box.cellHeight;
  const right = box.left + box.across;
  const steps = [];
  const every = Math.max(1, Math.floor(view.columns / 256));
  for (let j = 0; j < view.columns; j += every) {
    const x = box.left + j * box.cellWidth;
    const to = Math.min(right, x + every * box.cellWidth);
    steps.push(`${x},${y(view.left + j - view.top)} ${to},${y(view.left + j - view.top)}`);
  }
  return s(
    "g",
    {},
    s(
      "defs",
      {},
      s(
        "pattern",
        { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        s("rect", { width: 6, height: 6, class: "hatched" }),
        s("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "hatch" }),
      ),
    ),
    s("polygon", { points: `${steps.join(" ")} ${right},${box.top} ${box.left},${box.top}`, fill: `url(#${id})` }),
  );
}

function legend(box, range, signed, words) {
  const id = `scale-${++patterns}`;
  const colors = stops(signed);
  const y = box.top + box.down + 14;
  const wide = box.across < 220 ? 56 : 90;
  return s(
    "g",
    {},
    s(
      "defs",
      {},
      s(
        "linearGradient",
        { id },
        colors.map((color, n) => s("stop", { offset: n / (colors.length - 1), "stop-color": color })),
      ),
    ),
    s("rect", { x: box.left, y, width: wide, height: 9, fill: `url(#${id})` }),
    s("rect", { x: box.left, y, width: wide, height: 9, class: "frame" }),
    s("text", { x: box.left + wide + 8, y: y + 9, class: "axis" }, range),
    s("text", { x: box.left, y: y + 28, class: "axis" }, words),
  );
}

/** Which rows and columns of the matrix are drawn. */
export function rangeText(view, matrix) {
  const rows = `rows ${view.top + 1}–${view.top + view.rows} of ${whole(matrix.rows)}`;
  return `${rows}, columns ${view.left + 1}–${view.left + view.columns} of ${whole(matrix.columns)}`;
}

function caption(parts, view, matrix, options) {
  const words = [];
  if (parts.down > 1 || parts.across > 1) words.push(`each dot is the largest of ${parts.down} × ${parts.across} cells`);
  if (view.rows < matrix.rows || view.columns < matrix.columns) {
    words.push(rangeText(view, matrix));
  }
  if (options.causal) words.push("hatched: the future");
  return words.join("; ");
}

/** Follow the pointer with the cursor; returns the function that moves the cursor. */
function trackPointer(svg, box, view, options) {
  const across = s("rect", { class: "band", x: box.left, width: box.across, height: Math.max(box.cellHeight, 2) });
  const down = s("rect", { class: "band", y: box.top, height: box.down, width: Math.max(box.cellWidth, 2) });
  const cell = s("rect", { class: "cursor", width: Math.max(box.cellWidth, 5), height: Math.max(box.cellHeight, 5) });
  const mark = (i, j) => {
    const [y, x] = [box.top + (i - view.top) * box.cellHeight, box.left + (j - view.left) * box.cellWidth];
    across.setAttribute("y", y);
    down.setAttribute("x", x);
    cell.setAttribute("x", x - Math.max(0, (5 - box.cellWidth) / 2));
    cell.setAttribute("y", y - Math.max(0, (5 - box.cellHeight) / 2));
  };
  if (options.pick) svg.append(...(options.wholeRow ? [across] : [across, down, cell]));
  if (options.wholeRow) across.setAttribute("class", "cursor");
  const at = (event) => {
    const frame = svg.getBoundingClientRect();
    const j = Math.floor((event.clientX - frame.left - box.left) / box.cellWidth);
    const i = Math.floor((event.clientY - frame.top - box.top) / box.cellHeight);
    return i >= 0 && j >= 0 && i < view.rows && j < view.columns ? [view.top + i, view.left + j] : null;
  };
  svg.addEventListener("pointermove", (event) => {
    const found = at(event);
    if (!found) return hideTip();
    if (!options.wholeRow) mark(...found);
    options.hover?.(...found);
    showTip(event, options.tip(...found));
  });
  svg.addEventListener("pointerleave", () => {
    hideTip();
    options.hover?.(null);
  });
  svg.addEventListener("click", (event) => {
    const found = at(event);
    if (found) options.pick?.(...found, event);
  });
  return mark;
}

/** A row of cells with labels, for vectors and distributions. */
export function strip(values, options) {
  const size = Math.min(26, Math.max(3, (options.width - 4) / values.length));
  const largest = options.largest ?? largestOf(values);
  const svg = s("svg", { width: size * values.length + 2, height: 24, role: "img", "aria-label": options.title });
  values.forEach((value, n) => {
    svg.append(
      s(
        "rect",
        {
          x: 1 + n * size,
          y: 1,
          width: size,
          height: 22,
          fill: paint(value, largest, options.signed).fill,
          class: n === options.strong ? "cursor" : null,
        },
        s("title", {}, `${options.names ? tokenText(options.names[n]) : n}: ${digits(value)}`),
      ),
    );
  });
  svg.append(s("rect", { x: 1, y: 1, width: size * values.length, height: 22, class: "frame" }));
  return svg;
}
