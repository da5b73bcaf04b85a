// Line charts and bar charts, as SVG.

import { digits, extent, s } from "./dom.js";

/** Above this width, pictures are drawn side by side. */
export const WIDE = 560;

/** Round tick values from low to high. */
function ticks(low, high, most = 5) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step / 1e6; t += step) found.push(Math.abs(t) < step / 1e6 ? 0 : t);
  return found;
}

/** Positions of the legend entries, in as many lines as the width needs. */
function layOut(series, left, width) {
  let [at, line] = [left, 0];
  return series.map(({ name, style }) => {
    const wide = 32 + 6.4 * name.length;
    if (at > left && at + wide > width) [at, line] = [left, line + 1];
    at += wide;
    return { name, style, at: at - wide, line };
  });
}

const short = (value) =>
  (Math.abs(value) >= 1e4 || (value !== 0 && Math.abs(value) < 1e-3)
    ? value.toExponential(0)
    : String(Number(value.toPrecision(4)))
  ).replace("-", "−");

/**
 * series: [{name, points: [[x, y], ...], style: 1..4, dots}]; log: logarithmic y axis; rug: x values along the axis;
 * mark: an x to highlight; low, high: the range of y (its log10 if log), by default that of the points.
 */
export function chart({ title, xTitle, yTitle, series, width, height = 220, log = false, rug = [], mark = null, low, high }) {
  const f = log ? (y) => Math.log10(Math.max(y, 1e-17)) : (y) => y;
  const all = series.flatMap((one) => one.points).filter(([, y]) => Number.isFinite(y));
  const xs = [...all.map(([x]) => x), ...rug];
  const [x0, x1] = extent(xs);
  const ys = all.map(([, y]) => f(y));
  let [y0, y1] = extent(ys);
  [y0, y1] = [low ?? y0, high ?? y1];
  if (log) [y0, y1] = [Math.floor(y0), Math.ceil(y1)];
  if (y1 - y0 < 1e-12) y1 = y0 + 1;
  const names = layOut(series, 58, width);
  const [left, top, right, bottom] = [58, 16 + 16 * (names.at(-1).line + 1), 12, 40];
  const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (value) => top + (1 - (Math.max(y0 - 1, Math.min(y1 + 1, f(value))) - y0) / (y1 - y0)) * (height - top - bottom);
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const clip = `clip-${Math.random().toString(36).slice(2)}`;
  svg.append(
    s("defs", {}, s("clipPath", { id: clip }, s("rect", { x: left, y: top, width: width - left - right, height: height - top - bottom }))),
  );
  const step = log ? Math.ceil((y1 - y0) / 6) : 0;
  const levels = log ? Array.from({ length: Math.floor((y1 - y0) / step) + 1 }, (_, n) => 10 ** (y0 + n * step)) : ticks(y0, y1, 4);
  for (const t of levels) {
    svg.append(
      s("line", { x1: left, x2: width - right, y1: y(t), y2: y(t), class: "grid" }),
      s("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end", class: "axis" }, short(t)),
    );
  }
  for (const t of ticks(x0, x1, Math.max(2, Math.floor(width / 90))))
    svg.append(s("text", { x: x(t), y: height - bottom + 16, "text-anchor": "middle", class: "axis" }, short(t)));
  if (mark !== null) svg.append(s("line", { x1: x(mark), x2: x(mark), y1: top, y2: height - bottom, class: "line4" }));
  for (const value of rug)
    svg.append(s("line", { x1: x(value), x2: x(value), y1: height - bottom - 6, y2: height - bottom, class: "rug" }));
  const group = s("g", { "clip-path": `url(#${clip})` });
  for (const one of series) {
    const points = one.points.filter(([, value]) => Number.isFinite(value));
    if (!one.dots) group.append(s("polyline", { points: points.map(([a, b]) => `${x(a)},${y(b)}`).join(" "), class: `line${one.style}` }));
    if (one.dots || points.length < 20)
      for (const [a, b] of points)
        group.append(
          s(
            "circle",
            { cx: x(a), cy: y(b), r: one.dots ? 2 : 3, class: `fill${one.style}` },
            s("title", {}, `${one.name}: ${short(a)}, ${digits(b)}`),
          ),
        );
  }
  svg.append(group, s("text", { x: width - right, y: height - 6, "text-anchor": "end", class: "axis" }, xTitle));
  for (const { name, style, at, line } of names) {
    const level = 14 + 16 * line;
    svg.append(
      s("line", { x1: at, x2: at + 14, y1: level, y2: level, class: `line${style}` }),
      s("text", { x: at + 19, y: level + 4, class: "axis" }, name),
    );
  }
  if (yTitle) svg.append(s("text", { x: 12, y: top, transform: `rotate(-90 12 ${top})`, "text-anchor": "end", class: "axis" }, yTitle));
  return svg;
}

/** Several pictures with headings as one, in as many lines as the width needs. */
export function joinPictures(pictures, width, gap = 14) {
  const svg = s("svg", { role: "group", "aria-label": pictures.map(({ heading }) => heading).join(", ") });
  let [x, y, line, wide] = [0, 0, 0, 0];
  for (const { heading, svg: inner } of pictures) {
    const [w, h] = [Number(inner.getAttribute("width")), Number(inner.getAttribute("height"))];
    if (x && x + w > width + 1) [x, y, line] = [0, y + line + gap, 0];
    inner.setAttribute("x", x);
    inner.setAttribute("y", y + 22);
    inner.setAttribute("overflow", "visible");
    svg.append(s("text", { x: x + 2, y: y + 14, class: "label" }, heading), inner);
    x += w + gap;
    wide = Math.max(wide, x - gap);
    line = Math.max(line, h + 22);
  }
  svg.setAttribute("width", wide);
  svg.setAttribute("height", y + line);
  svg.setAttribute("viewBox", `0 0 ${wide} ${y + line}`);
  return svg;
}

/** A bar chart of [{name, value, quiet, strong}]: the `most` values of largest magnitude, in their order; `range` fixes the axis. */
export function bars(items, { width, most = 32, title, pick, range }) {
  const kept = new Set([...items.keys()].sort((a, b) => Math.abs(items[b].value) - Math.abs(items[a].value)).slice(0, most));
  const all = items.map((item, n) => ({ ...item, n })).filter(({ n, strong }) => kept.has(n) || strong);
  const truncated = all.length < items.length;
  const height = all.length * 22 + (truncated ? 24 : 6);
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const values = all.filter((item) => !item.quiet).map((item) => item.value);
  const [low, high] = range ?? extent([0, ...values]);
  const left = 18 + 7.6 * Math.max(...all.map(({ name }) => [...name].length), 1);
  const room = Math.max(40, width - left - 80);
  const x = (value) => left + (low < 0 ? 62 : 0) + ((value - low) / (high - low || 1)) * (room - (low < 0 ? 62 : 0));
  all.forEach(({ name, value, quiet, strong, n }, line) => {
    const y = line * 22;
    const [from, to] = [Math.min(x(0), x(value)), Math.max(x(0), x(value))];
    svg.append(
      s(
        "g",
        { onclick: pick && (() => pick(n)), class: pick ? "bar" : null, "data-tip": `${name}: ${quiet ?? digits(value, 6)}` },
        s("rect", { x: 0, y, width, height: 22, class: "paper" }),
        s("text", { x: left - 8, y: y + 16, "text-anchor": "end", class: strong ? "label strong" : "label" }, name),
        quiet
          ? s("text", { x: x(0) + 6, y: y + 16, class: "axis" }, quiet)
          : [
              s("rect", { x: from, y: y + 3, width: Math.max(1, to - from), height: 16, rx: 2, class: strong ? "fill2" : "fill1" }),
              s(
                "text",
                { x: value < 0 ? from - 6 : to + 6, y: y + 16, class: "axis", "text-anchor": value < 0 ? "end" : null },
                digits(value),
              ),
            ],
      ),
    );
  });
  if (low < 0) svg.append(s("line", { x1: x(0), x2: x(0), y1: 0, y2: all.length * 22, class: "grid" }));
  if (truncated)
    svg.append(s("text", { x: left, y: height - 6, class: "axis" }, `the ${all.length} largest of ${items.length} by magnitude`));
  return svg;
}
