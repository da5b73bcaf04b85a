// Screen 3: the matrix that a linear attention implies, versus softmax; and the copying problem with its slider.

import { isAvailable, request } from "../api.js";
import { WIDE, chart, joinPictures } from "../chart.js";
import { copyingCard } from "./copying.js";
import { announce, choice, digits, extent, h, tokenText, whole, within } from "../dom.js";
import { figure, plainTable } from "../figure.js";
import { formula, latex, lawParts, over, row, sub, sum, words } from "../formula.js";
import { gutter, heat, largestOf, viewOf } from "../heat.js";
import { choose, now } from "../state.js";

export const title = "Softmax versus linear";

export async function draw(context) {
  const overview = (await request("overview", context.params())).record;
  if (!overview.sites.length) throw new Error("This model has no attention, so there is nothing to compare.");
  const siteIndex = within(now().site ?? 0, overview.sites.length);
  const site = overview.sites[siteIndex];
  const head = within(now().head ?? 0, site.heads);
  const offered = (await request("kinds")).record;
  const kinds = offered.kinds.filter((kind) => isAvailable("versus", { site: siteIndex, head, kind }));
  const kind = kinds.includes(now().kind) ? now().kind : kinds[0];
  // before the request, so that a choice that fails can be undone
  drawSide({ context, overview, kinds, kind, siteIndex, site, head, reference: offered.reference });
  const { record, tensors } = await request("versus", { ...context.params(), site: siteIndex, head, kind });
  const [rows, columns] = tensors.exact.shape;
  const { reference } = record;
  const viewModel = { context, overview, kind, reference, siteIndex, site, head, record, tensors, rows, columns };
  viewModel.row = within(now().row ?? 0, rows);
  viewModel.column = within(now().column ?? 0, columns);
  viewModel.queries = overview.tokens[site.rows];
  viewModel.keys = overview.tokens[site.columns];
  const exactCopying = (await request("copying", { kind: reference })).record;
  const otherCopying = (await request("copying", { kind })).record;
  drawMain(viewModel, copyingCard(viewModel, exactCopying, otherCopying));
  explain(viewModel);
  const error = record.recurrence_error;
  context.checks(
    [{ words: `recurrence = implied matrix · v within ${digits(error, 6)}`, good: error < 1e-9 }, rowSumCheck(viewModel)],
    record.seconds,
  );
}

function rowSumCheck({ record, reference, tensors, rows, columns }) {
  let worst = 0;
  for (const { data } of record.normalizes ? [tensors.exact, tensors.implied] : [tensors.exact]) {
    for (let i = 0; i < rows; i++) {
      let total = 0;
      for (let j = 0; j < columns; j++) total += data[i * columns + j];
      const off = Math.abs(total - 1);
      worst = off <= worst ? worst : off; // NaN counts as worst
    }
  }
  return { words: `rows of ${record.normalizes ? "both" : reference} sum to 1 within ${digits(worst, 6)}`, good: worst < 2e-3 };
}

function drawSide({ context, overview, kinds, kind, siteIndex, site, head, reference }) {
  const select = (id, text, options, value, change) => {
    const items = options.map((option, index) => h("option", { value: index }, option));
    const box = h("select", { id, "data-focus": id, onchange: () => change(Number(box.value)) }, items);
    box.value = value;
    return h("div", { class: "field" }, h("label", { for: id }, text), box);
  };
  const siteNames = overview.sites.map((one) => `${one.name} (${one.kind})`);
  const headNames = Array.from({ length: site.heads }, (_, n) => `head ${n + 1}`);
  context.side(() =>
    h(
      "section",
      { class: "card" },
      h("h3", {}, "Queries and keys of"),
      select("site", "Layer", siteNames, siteIndex, (index) => choose({ site: index, row: undefined, column: undefined })),
      select("head", "Head", headNames, head, (index) => choose({ head: index })),
      h("h3", {}, `${reference} versus`),
      choice(
        "Kind",
        kinds.map((name) => [name, name]),
        kind,
        (value) => choose({ kind: value }),
      ),
    ),
  );
}

function drawMain(viewModel, below) {
  const { context, record, rows, columns, site, kind, reference } = viewModel;
  const readout = h("div", { class: "readout" });
  const svg = threeMaps(viewModel, readout);
  const zoom =
    Math.max(rows, columns) > 64 &&
    h(
      "button",
      {
        type: "button",
        "aria-pressed": String(Boolean(now().zoom)),
        "data-focus": "zoom",
        onclick: () => choose({ zoom: now().zoom ? undefined : 32 }),
      },
      "zoom to the cell",
    );
  context.main({
    title: `${site.name}, head ${viewModel.head + 1}: ${reference} versus ${kind}`,
    subtitle: `${whole(rows)} × ${whole(columns)}, largest difference ${digits(record.difference)}`,
    before: [record.dot_product ? null : h("p", { class: "note warn" }, notDotProducts(viewModel)), zoom || null],
    svg,
    after: readout,
    name: `${reference} versus ${kind}`,
    rows: () => csvRows(viewModel),
    python: () => python(viewModel),
    table: () => rowTable(viewModel),
    below: [curves(viewModel), below],
  });
}

const notDotProducts = ({ record, reference, kind }) =>
  `This model's ${record.model_kind} attention takes no dot products of queries and keys: ` +
  `what ${reference} and ${kind} would make of its vectors is not close to what it computes.`;

/** Both matrices and their difference, with one cursor. */
function threeMaps(viewModel, readout) {
  const { context, tensors, rows, columns, site, kind, reference } = viewModel;
  const width = context.width();
  const sideBySide = width > WIDE;
  const labels = { rows, columns, rowLabels: viewModel.queries, columnLabels: viewModel.keys };
  const view = viewOf(rows, columns, now().zoom, viewModel.row, viewModel.column);
  const labelWidth = gutter(labels, view, site.rows);
  // cells of one size in all three, so that their rows align
  const room = sideBySide ? (width - 52 - labelWidth) / 3 : undefined;
  const marks = [];
  const point = (i, j) => {
    for (const mark of marks) mark(i, j);
    updateReadout(viewModel, readout, i, j);
  };
  const map = (data, heading, { signed, largest, first = false }) => {
    const bare = sideBySide && !first;
    const { svg, mark } = heat(
      { ...labels, data },
      {
        view,
        bare,
        room,
        signed,
        largest,
        causal: site.causal,
        title: heading,
        rowTitle: site.rows,
        columnTitle: site.columns,
        width: sideBySide ? room + (bare ? 10 : 4 + labelWidth) : width,
        tip: (i, j) => cellText(viewModel, i, j),
        hover: (i, j) => (i === null ? point(viewModel.row, viewModel.column) : point(i, j)),
        pick: (i, j) => choose({ row: i, column: j }),
      },
    );
    svg.dataset.focus = heading;
    svg.addEventListener("keydown", (event) => moveCell(event, viewModel));
    marks.push(mark);
    return { heading, svg };
  };
  const exact = tensors.exact.data;
  const implied = tensors.implied.data;
  // one scale for both: the same weight has the same color
  const scale = { signed: implied.some((value) => value < 0), largest: Math.max(largestOf(exact), largestOf(implied)) };
  const difference = implied.map((value, n) => value - exact[n]);
  const svg = joinPictures(
    [map(exact, reference, { ...scale, first: true }), map(implied, kind, scale), map(difference, "difference", { signed: true })],
    width,
  );
  point(viewModel.row, viewModel.column);
  return svg;
}

/** Score, both weights and their difference of a cell. */
function cellValues({ tensors, columns }, i, j) {
  const at = i * columns + j;
  const [score, exact, implied] = [tensors.scores, tensors.exact, tensors.implied].map(({ data }) => data[at]);
  return { score, exact, implied, difference: implied - exact };
}

const isMasked = ({ site }, i, j) => site.causal && j > i;

function updateReadout(viewModel, readout, i, j) {
  const { queries, keys, kind, reference } = viewModel;
  const number = (name, value, id) => h("span", {}, `${name} `, h("span", { class: "number", id }, digits(value)));
  const cell = cellValues(viewModel, i, j);
  const values = isMasked(viewModel, i, j)
    ? [h("span", {}, "masked: it is in the future")]
    : [
        number("score", cell.score, "score"),
        number(reference, cell.exact, "exact"),
        number(kind, cell.implied, "implied"),
        number("difference", cell.difference, "difference"),
      ];
  const token = (text) => h("b", {}, h("bdi", {}, tokenText(text)));
  readout.replaceChildren(h("span", {}, token(queries[i]), " attends to ", token(keys[j])), ...values);
}

/** A cell as a sentence. */
function cellText(viewModel, i, j) {
  const { queries, keys, kind, reference } = viewModel;
  const cell = cellValues(viewModel, i, j);
  const weights = `${reference} ${digits(cell.exact)}, ${kind} ${digits(cell.implied)}`;
  const values = isMasked(viewModel, i, j) ? "masked: it is in the future" : weights;
  return `${tokenText(queries[i])} attends to ${tokenText(keys[j])}, ${values}`;
}

function moveCell(event, viewModel) {
  const { row: i, column: j, rows, columns } = viewModel;
  const [down, across] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
  if (down === undefined) return;
  event.preventDefault();
  const cell = [within(i + down, rows), within(j + across, columns)];
  choose({ row: cell[0], column: cell[1] });
  announce(cellText(viewModel, ...cell));
}

const factorial = (n) => (n < 2 ? 1 : n * factorial(n - 1));
const polynomial = (x, order) => Array.from({ length: order + 1 }, (_, n) => x ** n / factorial(n)).reduce((a, b) => a + b);

/** The scores that are not masked. */
function visibleScores({ tensors, rows, columns, site }) {
  const found = [];
  for (let i = 0; i < rows; i++) {
    const end = site.causal ? Math.min(i + 1, columns) : columns;
    for (let j = 0; j < end; j++) found.push(tensors.scores.data[i * columns + j]);
  }
  return found;
}

/** Why they differ: exp and its polynomial over the scores, the error by order, and the growth of the state. */
function curves(viewModel) {
  const { record, tensors, keys, context } = viewModel;
  const width = context.width();
  return [
    record.law.taylor_order === null ? null : taylorCard(viewModel, width),
    record.feature_dim ? stateCard(viewModel, tensors.state_norms, keys, width) : null,
  ];
}

function taylorCard(viewModel, width) {
  const { record, reference } = viewModel;
  const each = width > WIDE ? (width - 14) / 2 : width;
  const scores = visibleScores(viewModel);
  const [low, high] = extent(scores);
  const errors = record.order_errors;
  const errorChart = chart({
    title: "Error by order",
    xTitle: "order of the polynomial",
    width: each,
    log: true,
    series: [
      { name: "weights, largest", style: 1, points: errors.map((one) => [one.order, one.weights]) },
      { name: "output, relative", style: 2, points: errors.map((one) => [one.order, one.output]) },
    ],
  });
  const svg = joinPictures(
    [
      { heading: "exp and its polynomial over the scores", svg: expChart(scores, low, high, record.law.taylor_order, each) },
      { heading: `error against ${reference} by order`, svg: errorChart },
    ],
    width,
  );
  const negative = errors.filter((one) => one.smallest < 0).map((one) => one.order);
  const note = negative.length
    ? `Negative weights at order ${negative.join(", ")}: a polynomial of odd order falls below zero for low scores, so Taylor attention takes even orders only.`
    : "No order up to 7 gives a negative weight at these scores.";
  return figure({
    title: "Where the polynomial departs from exp",
    subtitle: `scores from ${digits(low, 2)} to ${digits(high, 2)}`,
    svg,
    name: "error by order",
    python: () => python(viewModel, "print(comparison.order_errors)"),
    rows: () => [
      ["order", "largest weight error", "relative output error", "smallest weight"],
      ...errors.map((one) => [one.order, one.weights ?? NaN, one.output ?? NaN, one.smallest ?? NaN]),
    ],
    after: h("p", { class: "note" }, note),
  });
}

function expChart(scores, low, high, order, width) {
  const steps = Array.from({ length: 81 }, (_, n) => low + ((high - low) * n) / 80);
  const curve = steps.map((x) => [x, polynomial(x, order)]);
  return chart({
    title: "exp and its Taylor polynomial over the scores of this head",
    xTitle: "score q·k/√d; ticks: those that occur",
    width,
    rug: scores.filter((_, n) => n % Math.ceil(scores.length / 200) === 0),
    log: true, // scores lie where a linear axis would be flat
    low: Math.max(-6, low / Math.LN10),
    series: [
      { name: "exp", style: 1, points: steps.map((x) => [x, Math.exp(x)]) },
      { name: `Taylor, order ${order}`, style: 2, points: curve },
    ],
  });
}

function stateCard(viewModel, norms, names, available) {
  const { record, kind, columns, reference } = viewModel;
  const [steps, dims] = norms.shape;
  const columnLabels = Array.from({ length: dims }, (_, n) => String(n + 1));
  const { svg } = heat(
    { data: norms.data, rows: steps, columns: dims, rowLabels: names, columnLabels },
    {
      width: Math.min(available, 560),
      title: "Norm of each column of the state after each key",
      rowTitle: "after the key of",
      columnTitle: "column of the state (value dimension)",
    },
  );
  const perToken = record.key_dim + record.value_dim;
  const state = record.feature_dim * (record.value_dim + (record.normalizes ? 1 : 0));
  const note = [
    `Each cell is the norm of one column of the state. After any number of tokens the state of ${kind} has ${whole(state)} elements; `,
    `the KV cache of ${reference} has ${whole(columns * perToken)} for these ${columns} keys, and ${perToken} more per token.`,
  ].join("");
  return figure({
    title: "The state after each key",
    subtitle: `${whole(record.feature_dim)} features × ${record.value_dim} values`,
    svg,
    name: "state",
    python: () => python(viewModel, "print(comparison.state_norms)"),
    rows: () => [
      ["after the key of", ...columnLabels.map((label) => `column ${label}`)],
      ...Array.from({ length: steps }, (_, t) => [names[t], ...norms.data.subarray(t * dims, (t + 1) * dims)]),
    ],
    after: h("p", { class: "note" }, note),
  });
}

function explain(viewModel) {
  const { context, record, kind, row: i, column: j, overview, reference } = viewModel;
  const cell = cellValues(viewModel, i, j);
  const model =
    record.model_kind === reference
      ? `The model was trained with ${reference}; the other kind is what it would compute instead.`
      : `The model runs ${record.model_kind}; ${reference} is what it would compute instead.`;
  context.explain({
    formula: formula(
      [sub("s", "i", "j"), "=", digits(cell.score)],
      ["exp", row("(", sub("s", "i", "j"), ")"), "=", digits(Math.exp(cell.score))],
      ...impliedLines(record, cell.score, isMasked(viewModel, i, j)),
      ...(record.dot_product || !record.model_score ? [] : [[words("the model's own score: "), ...latex(record.model_score)]]),
      [reference, "=", digits(cell.exact)],
      [words(kind), "=", digits(cell.implied)],
    ),
    values: [
      ["largest difference", digits(record.difference)],
      ["features", whole(record.feature_dim)],
      ["model runs", record.model_kind],
      ["recurrence error", digits(record.recurrence_error, 6)],
    ],
    text: [
      "A linear attention never builds this matrix: it adds keys and values to a state and reads it, which is linear in length. ",
      "But it implies one, computed here from its definition on the model's own queries and keys. ",
      model,
      record.dot_product ? "" : " But the model itself takes no dot products: its score is another one, given above.",
      record.left_out.length ? ` The ${record.left_out.join(" and ")} of its positions and gates is left out on both sides.` : "",
    ].join(""),
    notes: overview.notes,
    python: python(viewModel),
  });
}

/** The other kind's weight; the polynomial's value has a line of its own, since the box is narrow. */
function impliedLines({ law, normalizes }, score, masked) {
  const a = sub("a", "i", "j");
  if (masked) return [[a, "=", "0", words(", masked")]];
  const parts = lawParts(law, "i", "j");
  if (!normalizes) return [[a, "=", ...parts, words(", not divided")]];
  const value = law.taylor_order ? [["=", digits(polynomial(score, law.taylor_order))]] : [];
  return [parts, ...value, [a, "=", over(words("this"), row(sum("n"), words("the same")))]];
}

function python({ overview, siteIndex, head, kind, row: i, column: j }, line = null) {
  return [
    ...overview.code,
    "from qkv.attention import parse",
    "from qkv.explain import compare_kinds",
    "",
    `comparison = compare_kinds(records[${siteIndex}].head(${head}), parse("${kind}"))`,
    line ?? `print(comparison.exact[${i}, ${j}], comparison.implied[${i}, ${j}])`,
    "",
  ].join("\n");
}

function csvRows(viewModel) {
  const { queries, keys, rows, columns, kind, reference } = viewModel;
  const out = [["row", "column", "score", reference, kind, "difference"]];
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < columns; j++) out.push([queries[i], keys[j], ...Object.values(cellValues(viewModel, i, j))]);
  }
  return out;
}

/** The current row of all three pictures. */
function rowTable(viewModel) {
  const { queries, keys, columns, row: i, kind, reference } = viewModel;
  const lines = Array.from({ length: Math.min(columns, 200) }, (_, j) => [keys[j], ...Object.values(cellValues(viewModel, i, j))]);
  return plainTable(`Row ${i + 1}: weights of ${tokenText(queries[i])}`, [["key", "score", reference, kind, "difference"], ...lines]);
}

export const help = [["arrows", "in a matrix: another cell"]];
