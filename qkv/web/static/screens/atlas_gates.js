// The gates of one head over the tokens, for screen 1: what each token keeps of the state, and how strongly it writes.

import { chart } from "../chart.js";
import { card, digits, h, tokenText } from "../dom.js";

/** A card with a curve for each gate of the head; null if it has none. */
export function gatesCard({ context, matrix, tensors, row }) {
  const series = [...keptCurves(tensors.kept), ...(tensors.beta ? [curve("beta: written", 2, tensors.beta.data)] : [])];
  if (!series.length) return null;
  const box = card(
    "Gates of this head",
    chart({
      title: "Gates over the tokens",
      xTitle: "token",
      series,
      width: context.width(),
      height: 190,
      mark: row + 1,
      low: 0,
      high: Math.max(1, ...(tensors.beta?.data ?? [])),
    }),
    readout(matrix.rowLabels[row], row, series),
    h("p", { class: "note" }, "kept = exp(−rate) is the part of the state that survives a token; 0 forgets everything before it."),
  );
  box.id = "gates";
  return box;
}

const curve = (name, style, values) => ({ name, style, points: Array.from(values, (value, n) => [n + 1, value]) });

/** One curve per head, or the mean and both extremes of a gate per channel. */
function keptCurves(kept) {
  if (!kept) return [];
  const [tokens, channels] = kept.shape;
  if (!channels) return [curve("kept", 1, kept.data)];
  const rows = Array.from({ length: tokens }, (_, i) => kept.data.subarray(i * channels, (i + 1) * channels));
  return [
    curve(
      "kept, mean of channels",
      1,
      rows.map((own) => own.reduce((a, b) => a + b, 0) / channels),
    ),
    curve(
      "least",
      3,
      rows.map((own) => Math.min(...own)),
    ),
    curve(
      "most",
      4,
      rows.map((own) => Math.max(...own)),
    ),
  ];
}

/** The values of the chosen query's token. */
const readout = (label, row, series) =>
  h(
    "div",
    { class: "readout" },
    h("span", {}, h("b", {}, h("bdi", {}, tokenText(label))), h("span", { class: "quiet" }, ` (${row + 1})`)),
    series.map(({ name, points }) => h("span", {}, `${name} `, h("span", { class: "number" }, digits(points[row][1])))),
  );
