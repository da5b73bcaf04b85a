// The pictures of the steps of screen 2, by the id of the step.

import { bars, joinPictures } from "../chart.js";
import { announce, digits, extent, h, slider, tokenText, whole, within } from "../dom.js";
import { figure } from "../figure.js";
import { heat, viewOf } from "../heat.js";
import { choose, now } from "../state.js";

const dimensionNames = (count, prefix = "") => Array.from({ length: count }, (_, n) => `${prefix}${n + 1}`);

function concatenate(a, b) {
  const both = new Float32Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

/** A signed matrix over keys and dimensions, with the chosen key marked; `extra` = {name, data, first} is one more row. */
function keyMatrix({ context, keys, j }, data, columns, heading, extra = null) {
  const matrix = { data, rows: keys.length, columns, rowLabels: keys, columnLabels: dimensionNames(columns) };
  if (extra) {
    matrix.rows += 1;
    matrix.data = extra.first ? concatenate(extra.data, data) : concatenate(data, extra.data);
    matrix.rowLabels = extra.first ? [extra.name, ...keys] : [...keys, extra.name];
  }
  const shift = extra?.first ? 1 : 0;
  const view = viewOf(matrix.rows, columns, matrix.rows > 160 ? 64 : 0, j + shift, 0);
  const { svg, mark } = heat(matrix, {
    view: { ...view, left: 0, columns },
    width: context.width(),
    signed: true,
    tall: 26,
    wholeRow: true,
    title: heading,
    rowTitle: "key",
    columnTitle: "dimension",
    pick: (r) => (r - shift >= 0 && r - shift < keys.length ? choose({ column: r - shift }) : null),
  });
  mark(j + shift, 0);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = within(j + step, keys.length);
    choose({ column: next });
    announce(`key ${tokenText(keys[next])} (${next + 1})`);
  });
  return svg;
}

/** A bar for each key. */
function keyBars({ context, keys, j, t }, values, heading) {
  const items = keys.map((key, n) => ({ name: tokenText(key), value: values[n], strong: n === j, quiet: t.masked[n] ? "masked" : null }));
  return bars(items, { width: Math.min(context.width(), 600), title: heading, pick: (n) => choose({ column: n }) });
}

const columnRows = (keys, values, name) => [["key", name], ...keys.map((key, n) => [key, values[n]])];

const matrixRows = (keys, data, columns) => [
  ["key", ...dimensionNames(columns, "dimension ")],
  ...keys.map((key, n) => [key, ...data.subarray(n * columns, (n + 1) * columns)]),
];

const weightedValues = ({ t, valueDims }) => t.values.map((value, n) => value * t.weights[Math.floor(n / valueDims)]);

function vectors(viewModel) {
  const { t, keys, keyDims, record } = viewModel;
  const [, ...keyRows] = matrixRows(keys, t.keys, keyDims);
  const rotated = record.rotates ? `, rotated by their positions (${record.positions})` : "";
  return {
    svg: keyMatrix(viewModel, t.keys, keyDims, "The query and all keys", { first: true, name: "query", data: t.query }),
    rows: () => [["vector", ...dimensionNames(keyDims, "dimension ")], ["query", ...t.query], ...keyRows],
    subtitle: `${keys.length} keys of ${keyDims} dimensions`,
    words: `The layer projects the token to a query and each visible token to a key of ${keyDims} dimensions${rotated}. ${record.law.vector_note}`,
  };
}

const products = (viewModel) => ({
  svg: keyMatrix(viewModel, viewModel.t.products, viewModel.keyDims, "Products of query and key, by dimension"),
  rows: () => matrixRows(viewModel.keys, viewModel.t.products, viewModel.keyDims),
  subtitle: `${whole(viewModel.record.multiplications.products)} multiplications`,
  words: `${viewModel.record.law.product_note} Blue raises the score, orange lowers it.`,
});

function scores(viewModel) {
  const { scale } = viewModel.record;
  const scaled = `times ${digits(scale)} = 1/√${Math.round(scale ** -2)}: otherwise scores grow with the dimension until one key takes all`;
  return {
    svg: keyBars(viewModel, viewModel.t.scores, "Scores"),
    rows: () => columnRows(viewModel.keys, viewModel.t.scores, "score"),
    subtitle: `× ${digits(scale)}`,
    words: `Each row of products summed${scale === 1 ? ": the score of each key" : `, ${scaled}`}.`,
  };
}

function mask(viewModel) {
  const { t, keys, record, site } = viewModel;
  const values = Array.from(t.scores, (value, n) => (record.has_decay ? t.decay[n] : value + t.bias[n]));
  const masking = site.causal
    ? "Later tokens are masked: a token attends only to the past."
    : "Nothing is masked: this layer attends to every token.";
  const decaying = record.has_decay
    ? `Positions (${record.positions}) decay a weight with distance; the bars are the factors.`
    : "Positions add no bias here.";
  return {
    svg: keyBars(viewModel, values, "Scores after mask and positions"),
    rows: () => [
      ["key", "score", "bias", "decay", "masked"],
      ...keys.map((key, n) => [key, t.scores[n], t.bias[n], t.decay[n], t.masked[n]]),
    ],
    subtitle: `${whole(t.masked.reduce((a, b) => a + b, 0))} of ${whole(keys.length)} keys masked`,
    words: `${masking} ${record.has_bias ? `Positions (${record.positions}) add a bias to each score.` : decaying}`,
  };
}

const law = (viewModel) => ({
  svg: keyBars(viewModel, viewModel.t.unnormalized, "Unnormalized weights"),
  rows: () => columnRows(viewModel.keys, viewModel.t.unnormalized, "unnormalized weight"),
  subtitle: `sum ${digits(viewModel.record.normalizer)}`,
  words: viewModel.record.law.weight_note,
});

const weights = (viewModel) => ({
  svg: keyBars(viewModel, viewModel.t.weights, "Weights"),
  rows: () => columnRows(viewModel.keys, viewModel.t.weights, "weight"),
  subtitle: viewModel.record.normalizes ? "they sum to 1" : "not normalized",
  words: viewModel.record.normalizes
    ? `Each unnormalized weight divided by their sum, ${digits(viewModel.record.normalizer)}.`
    : "This kind does not normalize: nothing is divided.",
});

const values = (viewModel) => ({
  svg: keyMatrix(viewModel, weightedValues(viewModel), viewModel.valueDims, "Values times weights"),
  rows: () => matrixRows(viewModel.keys, weightedValues(viewModel), viewModel.valueDims),
  subtitle: `${whole(viewModel.record.multiplications.sum)} multiplications`,
  words: "Each key's value times its weight: keys with a small weight contribute almost nothing.",
});

function output(viewModel) {
  const { t, keys, valueDims, record } = viewModel;
  const weighted = weightedValues(viewModel);
  const total = Object.values(record.multiplications).reduce((a, b) => a + b, 0);
  return {
    svg: keyMatrix(viewModel, weighted, valueDims, "Their sum is the output", { name: "output", data: t.output }),
    rows: () => [...matrixRows(keys, weighted, valueDims), ["output", ...t.output]],
    subtitle: `${whole(total)} multiplications in all`,
    words: "The sum over the keys is the head's output. The check below compares it with the output of the model's fast path.",
  };
}

export const PICTURES = { vectors, products, scores, mask, law, weights, values, output };

/** The same scores under another scale, as a copy: the model is not changed. */
export function whatIf(viewModel) {
  const { t, keys, context } = viewModel;
  const tenths = now().score_factor ?? 10;
  const scaled = Array.from(t.scores, (value, n) => (t.masked[n] ? -Infinity : (value + t.bias[n]) * (tenths / 10)));
  const [, largest] = extent(scaled);
  const exps = scaled.map((value) => Math.exp(value - largest));
  const total = exps.reduce((a, b) => a + b, 0);
  const softmax = exps.map((value) => value / total);
  const slopes = softmax.map((a) => a * (1 - a));
  const width = context.width();
  const each = width > 560 ? (width - 14) / 2 : width;
  const chart = (numbers, range) => {
    const items = keys.map((key, n) => ({
      name: tokenText(key, 8),
      value: numbers[n],
      strong: n === viewModel.j,
      quiet: t.masked[n] ? "masked" : null,
    }));
    return bars(items, { width: each, title: "", most: 16, range });
  };
  const note = [
    "With large scores one key takes all and the gradient a(1 − a) of the weights goes to zero: the division by √d prevents that. ",
    "At 0 all keys get the same weight.",
  ].join("");
  return figure({
    title: "What if the scores were larger?",
    subtitle: "a copy; the model is not changed",
    name: "what if",
    svg: joinPictures(
      [
        { heading: "weights, axis to 1", svg: chart(softmax, [0, 1]) },
        { heading: "gradient a(1 − a), axis to 0.25", svg: chart(slopes, [0, 0.25]) },
      ],
      width,
    ),
    before: slider("Scores times", {
      value: tenths,
      low: 0,
      high: 60,
      text: (n) => String(n / 10),
      change: (value) => choose({ score_factor: value }),
    }),
    after: h("p", { class: "note" }, note),
    rows: () => [["key", "weight", "a(1-a)"], ...keys.map((key, n) => [key, softmax[n], slopes[n]])],
    python: () =>
      `${viewModel.python()}scores = (trace.scores + trace.bias) * ${tenths / 10}\nprint(scores.masked_fill(trace.masked, float("-inf")).softmax(-1))\n`,
  });
}
