// Screen 3: the matrix that a linear attention implies, beside softmax; and the copying problem with its slider.

import { chart, together } from "./chart.js";
import { choice, digits, h, say, shown, slider, whole } from "./dom.js";
import { figure, plainTable } from "./figure.js";
import { LAWS, formula, over, power, row, sub, sum } from "./formula.js";
import { gutter, heat, largestOf, viewOf } from "./heat.js";
import { ask, holds } from "./source.js";
import { choose, now } from "./state.js";

export const id = "beside";
export const title = "Softmax beside linear";

const within = (value, count) => Math.max(0, Math.min(value, count - 1));

export async function draw(context) {
  const overview = (await ask("overview", context.question())).record;
  if (!overview.places.length) throw new Error("This model never attends, so there is nothing to compare.");
  const place = within(now().place ?? 0, overview.places.length);
  const spot = overview.places[place];
  const head = within(now().head ?? 0, spot.heads);
  const kinds = (await ask("kinds")).record.kinds.filter((kind) => holds("beside", { place, head, kind }));
  const kind = kinds.includes(now().kind) ? now().kind : kinds[0];
  drawSide({ context, overview, kinds, kind, place, spot, head }); // before it is asked: what is refused can be unchosen
  const { record, tensors } = await ask("beside", { ...context.question(), place, head, kind });
  const [rows, columns] = tensors.exact.shape;
  const scene = { context, overview, kinds, kind, place, spot, head, record, tensors, rows, columns };
  scene.row = within(now().row ?? 0, rows);
  scene.column = within(now().column ?? 0, columns);
  const copying = (await ask("copying", { kind: "softmax" })).record;
  const other = (await ask("copying", { kind })).record;
  drawMain(scene, copyingCard(scene, copying, other));
  explain(scene);
  context.checks([
    { words: `recurrence = implied matrix · v within ${digits(record.recurrence, 6)}`, good: record.recurrence < 1e-9 },
    sums(scene),
  ], record.seconds);
}

function sums({ record, tensors, rows, columns }) {
  let worst = 0;
  for (const { data } of record.averages ? [tensors.exact, tensors.implied] : [tensors.exact]) {
    for (let i = 0; i < rows; i++) {
      let total = 0;
      for (let j = 0; j < columns; j++) total += data[i * columns + j];
      const off = Math.abs(total - 1);
      worst = off <= worst ? worst : off;
    }
  }
  return { words: `rows ${record.averages ? "of both " : "of softmax "}sum to 1 within ${digits(worst, 6)}`, good: worst < 2e-3 };
}

function drawSide({ context, overview, kinds, kind, place, spot, head }) {
  const select = (id, text, options, value, change) => {
    const box = h("select", { id, "data-focus": id, onchange: () => change(box.value) }, options.map(([v, t]) => h("option", { value: v }, t)));
    box.value = value;
    return h("div", { class: "field" }, h("label", { for: id }, text), box);
  };
  context.side(() => h("section", { class: "card" }, h("h3", {}, "Whose queries and keys"),
    select("place", "Layer", overview.places.map((p, n) => [n, `${p.name} (${p.kind})`]), place, (v) => choose({ place: Number(v), row: undefined, column: undefined })),
    select("head", "Head", Array.from({ length: spot.heads }, (_, n) => [n, `head ${n + 1}`]), head, (v) => choose({ head: Number(v) })),
    h("h3", {}, "Beside softmax"),
    choice("Kind", kinds.map((name) => [name, name]), kind, (value) => choose({ kind: value }))));
}

function drawMain(scene, below) {
  const { context, tensors, record, rows, columns, overview, spot, kind } = scene;
  const wide = context.width();
  const beside = wide > 560;
  const readout = h("div", { class: "readout" });
  const labels = { rows, columns, rowLabels: overview.tokens[spot.rows], columnLabels: overview.tokens[spot.columns] };
  const difference = tensors.implied.data.map((value, n) => value - tensors.exact.data[n]);
  const view = viewOf(rows, columns, now().zoom, scene.row, scene.column);
  const marks = [];
  // cells of one size in all three, or rows would not stand beside each other
  const room = beside ? (wide - 52 - gutter(labels, view, spot.rows)) / 3 : undefined;
  const picture = (data, heading, signed, largest) => {
    const bare = beside && heading !== "softmax";
    const { svg, mark } = heat({ ...labels, data }, {
      view, bare, room, width: beside ? room + (bare ? 10 : 4 + gutter(labels, view, spot.rows)) : wide, causal: spot.causal, signed, largest, title: heading, rowTitle: spot.rows, columnTitle: spot.columns,
      hover: (i, j) => (i === null ? point(scene.row, scene.column) : point(i, j)),
      pick: (i, j) => choose({ row: i, column: j }),
    });
    svg.dataset.focus = heading;
    svg.addEventListener("keydown", (event) => keys(event, scene));
    marks.push(mark);
    return { heading, svg };
  };
  const point = (i, j) => {
    for (const mark of marks) mark(i, j);
    tell(scene, readout, i, j);
  };
  // one scale for both: the same weight has the same color
  const negative = tensors.implied.data.some((value) => value < 0);
  const largest = Math.max(largestOf(tensors.exact.data), largestOf(tensors.implied.data));
  const svg = together([picture(tensors.exact.data, "softmax", negative, largest), picture(tensors.implied.data, kind, negative, largest), picture(difference, "difference", true)], wide);
  point(scene.row, scene.column);
  const zoom = Math.max(rows, columns) > 64 && h("button", { type: "button", "aria-pressed": String(Boolean(now().zoom)), "data-focus": "zoom", onclick: () => choose({ zoom: now().zoom ? undefined : 32 }) }, "zoom to the cell");
  context.main({
    title: `${spot.name}, head ${scene.head + 1}: softmax beside ${kind}`,
    subtitle: `${whole(rows)} × ${whole(columns)}, largest difference ${digits(record.difference)}`,
    before: zoom || null, svg, after: readout, name: `softmax beside ${kind}`, rows: () => csvRows(scene), python: () => python(scene), table: () => twin(scene),
    below: [curves(scene), below],
  });
}

function tell({ tensors, columns, overview, spot, kind }, readout, i, j) {
  const at = i * columns + j;
  const number = (name, value, id) => h("span", {}, `${name} `, h("span", { class: "number", id }, digits(value)));
  readout.replaceChildren(
    h("span", {}, h("b", {}, h("bdi", {}, shown(overview.tokens[spot.rows][i]))), " looks at ", h("b", {}, h("bdi", {}, shown(overview.tokens[spot.columns][j])))),
    ...(spot.causal && j > i ? [h("span", {}, "hidden: it comes later")] : [
      number("score", tensors.scores.data[at], "score"), number("softmax", tensors.exact.data[at], "exact"), number(kind, tensors.implied.data[at], "implied"), number("difference", tensors.implied.data[at] - tensors.exact.data[at], "difference")]));
}

/** A cell in a sentence. */
function spoken({ tensors, columns, overview, spot, kind }, i, j) {
  const at = i * columns + j;
  const values = spot.causal && j > i ? "hidden: it comes later" : `softmax ${digits(tensors.exact.data[at])}, ${kind} ${digits(tensors.implied.data[at])}`;
  return `${shown(overview.tokens[spot.rows][i])} looks at ${shown(overview.tokens[spot.columns][j])}, ${values}`;
}

function keys(event, scene) {
  const { row, column, rows, columns } = scene;
  const [i, j] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
  if (i === undefined) return;
  event.preventDefault();
  const cell = [within(row + i, rows), within(column + j, columns)];
  choose({ row: cell[0], column: cell[1] });
  say(spoken(scene, ...cell));
}

const factorial = (n) => (n < 2 ? 1 : n * factorial(n - 1));
const polynomial = (x, order) => Array.from({ length: order + 1 }, (_, n) => x ** n / factorial(n)).reduce((a, b) => a + b);
const orderOf = (kind) => (kind.startsWith("taylor") ? Number(/order=(\d+)/.exec(kind)?.[1] ?? 2) : null);

/** The scores that are seen: not those of the future. */
function seen({ tensors, rows, columns, spot }) {
  const found = [];
  for (let i = 0; i < rows; i++) for (let j = 0; j < (spot.causal ? Math.min(i + 1, columns) : columns); j++) found.push(tensors.scores.data[i * columns + j]);
  return found;
}

/** Why they differ: the scores under exp and its polynomial, the error by order, and how the state grows. */
function curves(scene) {
  const { context, record, kind, tensors, overview, spot } = scene;
  const wide = context.width();
  const each = wide > 560 ? (wide - 14) / 2 : wide;
  const scores = seen(scene);
  const [low, high] = [Math.min(...scores), Math.max(...scores)];
  const order = orderOf(kind) ?? 2;
  const steps = Array.from({ length: 81 }, (_, n) => low + ((high - low) * n) / 80);
  const thin = scores.filter((_, n) => n % Math.ceil(scores.length / 200) === 0);
  const laws = chart({
    title: "exp and its Taylor polynomial over the scores of this head", xTitle: "score q·k/√d; ticks: those that occur", width: each, rug: thin, low: Math.min(0, ...steps.map((x) => polynomial(x, order))), high: Math.exp(high),
    series: [{ name: "exp", style: 1, points: steps.map((x) => [x, Math.exp(x)]) }, { name: `Taylor, order ${order}`, style: 2, points: steps.map((x) => [x, polynomial(x, order)]) }],
  });
  const errors = chart({
    title: "Error by order", xTitle: "order of the polynomial", width: each, log: true,
    series: [{ name: "weights, largest", style: 1, points: record.orders.map((o) => [o.order, o.weights]) }, { name: "output, relative", style: 2, points: record.orders.map((o) => [o.order, o.output]) }],
  });
  const pictures = [{ heading: "why: scores under exp and its polynomial", svg: laws }, { heading: "error against softmax by order", svg: errors }];
  const svg = together(pictures, wide);
  const odd = record.orders.filter((o) => o.smallest < 0).map((o) => o.order);
  const rows = () => [["order", "largest weight error", "relative output error", "smallest weight"], ...record.orders.map((o) => [o.order, o.weights ?? NaN, o.output ?? NaN, o.smallest ?? NaN])];
  return [
    figure({
      title: "Where the polynomial stops being exp", subtitle: `scores from ${digits(low, 2)} to ${digits(high, 2)}`, svg, name: "error by order", rows, python: () => python(scene, "print(found.orders)"),
      after: h("p", { class: "note" }, odd.length ? `Negative weights at order ${odd.join(", ")}: a polynomial of odd order falls below zero for low scores, which is why Taylor attention takes even orders only.` : "No order up to 7 gives a negative weight at these scores."),
    }),
    record.features ? stateCard(scene, tensors.growth, overview.tokens[spot.columns], wide) : null,
  ];
}

function stateCard(scene, growth, names, wide) {
  const { record, kind, columns } = scene;
  const [steps, width] = growth.shape;
  const { svg } = heat({ data: growth.data, rows: steps, columns: width, rowLabels: names, columnLabels: Array.from({ length: width }, (_, n) => String(n + 1)) }, {
    width: Math.min(wide, 560), title: "Norm of each column of the state after each key", rowTitle: "after the key of", columnTitle: "column of the state (value dimension)",
  });
  const rows = () => [["after the key of", ...Array.from({ length: width }, (_, n) => `column ${n + 1}`)], ...Array.from({ length: steps }, (_, t) => [names[t], ...growth.data.subarray(t * width, (t + 1) * width)])];
  const cache = columns * (record.key_dim + record.value_dim);
  return figure({
    title: "The state, a key at a time", subtitle: `${whole(record.features)} features × ${record.value_dim} values`, svg, name: "state", rows, python: () => python(scene, "print(found.growth)"),
    after: h("p", { class: "note" }, `Each cell is the norm of one column of the state. After any number of tokens ${kind} remembers ${whole(record.features * (record.value_dim + (record.averages ? 1 : 0)))} numbers; softmax remembers ${whole(cache)} for these ${columns} keys, and ${record.key_dim + record.value_dim} more for each one that follows.`),
  });
}

/** B5: orthogonal a, b, c, d of norm beta, and tokens that share one of them. */
function copyingCard({ context, kind }, exact, other) {
  const quarters = Math.max(1, Math.min(now().quarters ?? 4, exact.betas.length));
  const wide = context.width();
  const names = ["x₁=d+b", "x₂=a", "x₃=c+d"];
  const which = (found) => found.results[quarters - 1];
  const beside = wide > 560;
  const all = [exact, other].flatMap((found) => which(found).weights.flat());
  const scale = { largest: Math.max(1, largestOf(all)), signed: all.some((value) => value < 0) };
  const map = (found, heading) => {
    const bare = beside && heading !== "softmax";
    const data = Float32Array.from(which(found).weights.flat());
    return { heading, svg: heat({ data, rows: 3, columns: 3, rowLabels: names, columnLabels: ["x₁", "x₂", "x₃"] }, { bare, width: beside ? (wide - 28) * (bare ? 0.24 : 0.38) : wide, title: `${heading} at beta ${quarters / 4}`, rowTitle: "", columnTitle: "", ...scale }).svg };
  };
  const line = (found, token, name, style) => ({ name, style, points: found.betas.map((beta, n) => [beta, found.results[n].errors[token]]) });
  const curve = chart({
    title: "Copying error against beta", xTitle: "β", width: beside ? (wide - 28) * 0.38 : wide, height: 210, log: true, mark: quarters / 4,
    series: [line(exact, 0, "x₁ softmax", 1), line(exact, 1, "x₂ softmax", 2), line(other, 0, `x₁ ${kind}`, 4)],
  });
  const svg = together([map(exact, "softmax"), map(other, kind), { heading: "copying error ‖y − x‖ / ‖x‖", svg: curve }], wide);
  const rows = () => [["token", "norm", "score with x1", "with x2", "with x3", "softmax weight x1", "x2", "x3", "error", `${kind} weight x1`, "x2", "x3", "error"],
    ...["x1", "x2", "x3"].map((name, n) => [name, which(exact).norms[n], ...which(exact).scores[n], ...which(exact).weights[n], which(exact).errors[n], ...which(other).weights[n], which(other).errors[n]])];
  return figure({
    title: "When does attention copy?", subtitle: "q = k = v = x, scale 1", svg, rows, name: `copying beta ${quarters / 4}`,
    before: slider("β, the norm of a, b, c and d:", { value: quarters, low: 1, high: exact.betas.length, text: (n) => String(n / 4), change: (value) => choose({ quarters: value }) }),
    after: [
      h("div", { class: "readout" }, [["x₁ keeps", which(exact).weights[0][0], "copy-weight"], ["takes from x₃", which(exact).weights[0][2], "copy-other"], ["error of x₁", which(exact).errors[0], "copy-error"], ["of x₂", which(exact).errors[1], "copy-error-2"]].map(([text, value, id]) => h("span", {}, `${text} `, h("span", { class: "number", id }, digits(value, 6))))),
      h("p", { class: "note" }, "a, b, c, d are orthogonal, yet x₁ and x₃ share d: their score is β², not 0. So token 1 takes from token 3 as well, and copying holds only in the limit of large β."),
    ],
    python: () => `from qkv.attention import Softmax\nfrom qkv.explain import copying\n\nprint(copying(${quarters / 4}, Softmax(scale=1.0)))\n`,
  });
}

function explain(scene) {
  const { context, record, kind, tensors, row: i, column: j, columns, overview } = scene;
  const at = i * columns + j;
  const order = orderOf(kind);
  const x = () => sub("s", "i", "j");
  const name = kind.split("(")[0];
  const law = order === 4 ? [...LAWS.taylor(x), "+", over(power(x(), "3"), "6"), "+", over(power(x(), "4"), "24")] : LAWS[name]?.(x) ?? ["φ", row("(", sub("q", "i"), ")"), "·", "φ", row("(", sub("k", "j"), ")")];
  context.explain({
    formula: formula(
      [sub("s", "i", "j"), "=", digits(tensors.scores.data[at])],
      ["exp", row("(", x(), ")"), "=", digits(Math.exp(tensors.scores.data[at]))],
      ...(record.averages ? [
        law,
        ...(order ? [["=", digits(polynomial(tensors.scores.data[at], order))]] : []), // a line of its own: the box is narrow
        [sub("a", "i", "j"), "=", over(words("this"), row(sum("n"), words("the same")))],
      ] : [[sub("a", "i", "j"), "=", ...law, words(", not divided")]]),
      ["softmax", "=", digits(tensors.exact.data[at])],
      [words(kind), "=", digits(tensors.implied.data[at])]),
    values: [["largest difference", digits(record.difference)], ["features", whole(record.features)], ["model runs", record.model_kind], ["recurrence off by", digits(record.recurrence, 6)]],
    text: [
      "A linear attention never builds this matrix: it folds keys and values into a state and reads it, which is linear in length. But it implies one, computed here from its definition on the model's own queries and keys. ",
      record.model_kind === "softmax" ? "The model was trained with softmax: what you see is what the other kind would do in its place." : `The model runs ${record.model_kind}: softmax is what it would see instead.`,
      record.left_out.length ? ` The ${record.left_out.join(" and ")} of its positions is left out on both sides.` : "",
    ].join(""),
    notes: overview.notes,
    python: python(scene),
  });
}

const words = (text) => {
  const node = document.createElementNS("http://www.w3.org/1998/Math/MathML", "mtext");
  node.textContent = text;
  return node;
};

function python({ overview, place, head, kind, row: i, column: j }, line = `print(found.exact[${i}, ${j}], found.implied[${i}, ${j}])`) {
  return [...overview.code, "from qkv.attention import parse", "from qkv.explain import compare_kinds", "", `found = compare_kinds(looks[${place}].head(${head}), parse("${kind}"))`, line, ""].join("\n");
}

function csvRows({ overview, spot, tensors, rows, columns, kind }) {
  const out = [["row", "column", "score", "softmax", kind, "difference"]];
  for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
    const at = i * columns + j;
    out.push([overview.tokens[spot.rows][i], overview.tokens[spot.columns][j], tensors.scores.data[at], tensors.exact.data[at], tensors.implied.data[at], tensors.implied.data[at] - tensors.exact.data[at]]);
  }
  return out;
}

/** The current row of all three pictures. */
function twin(scene) {
  const { overview, spot, tensors, columns, row: i, kind } = scene;
  const lines = Array.from({ length: Math.min(columns, 200) }, (_, j) => {
    const at = i * columns + j;
    return [overview.tokens[spot.columns][j], tensors.scores.data[at], tensors.exact.data[at], tensors.implied.data[at], tensors.implied.data[at] - tensors.exact.data[at]];
  });
  return plainTable(`Row ${i + 1}: where ${shown(overview.tokens[spot.rows][i])} looks`, [["key", "score", "softmax", kind, "difference"], ...lines]);
}

export const help = [["arrows", "in a matrix: another cell"]];
