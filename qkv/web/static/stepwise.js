// Screen 2: one token through one head, a step at a time, every number on the way.

import { bars, together } from "./chart.js";
import { digits, h, say, shown, slider, whole } from "./dom.js";
import { figure } from "./figure.js";
import { LAWS, formula, over, row, sub, sum } from "./formula.js";
import { heat, viewOf } from "./heat.js";
import { ask } from "./source.js";
import { again, choose, now } from "./state.js";

export const id = "stepwise";
export const title = "Step by step";

const within = (value, count) => Math.max(0, Math.min(value, count - 1));
const STAGES = ["query and keys", "products", "scores", "mask and positions", "law", "weights", "values", "output"];
let playing = null;

export async function draw(context) {
  const overview = (await ask("overview", context.question())).record;
  if (!overview.places.length) throw new Error("This model never attends, so there are no steps to show.");
  const place = within(now().place ?? Math.max(0, overview.places.findIndex((one) => one.name.startsWith("cross"))), overview.places.length);
  const spot = overview.places[place];
  const head = within(now().head ?? 0, spot.heads);
  const queries = overview.tokens[spot.rows];
  const keys = overview.tokens[spot.columns];
  const i = within(now().row ?? 0, queries.length);
  drawSide({ context, overview, place, spot, head, queries, i });
  const { record, tensors } = await ask("steps", { ...context.question(), place, head, row: i });
  const scene = { context, overview, place, spot, head, queries, keys, i, record, tensors, t: Object.fromEntries(Object.entries(tensors).map(([name, one]) => [name, one.data])) };
  scene.dims = tensors.products.shape[1];
  scene.width = tensors.values.shape[1];
  scene.j = within(now().column ?? scene.t.weights.indexOf(Math.max(...scene.t.weights)), keys.length);
  scene.stage = within(now().step ?? 0, STAGES.length);
  drawStage(scene);
  explain(scene);
  context.checks([
    { words: `output = the model's fast path within ${digits(record.output_error, 6)}`, good: record.output_error < 1e-3 },
    { words: `weights = the definition within ${digits(record.weights_error, 6)}`, good: record.weights_error < 1e-3 },
  ], record.seconds);
}

function drawSide({ context, overview, place, spot, head, queries, i }) {
  const select = (id, text, options, value, change) => {
    const box = h("select", { id, "data-focus": id, onchange: () => change(Number(box.value)) }, options.map((t, v) => h("option", { value: v }, t)));
    box.value = value;
    return h("div", { class: "field" }, h("label", { for: id }, text), box);
  };
  const from = Math.max(0, Math.min(i - 60, queries.length - 120));
  const shownTokens = queries.slice(from, from + 120);
  context.side(() => h("section", { class: "card" },
    select("place", "Layer", overview.places.map((p) => `${p.name} (${p.kind})`), place, (v) => choose({ place: v, row: undefined, column: undefined })),
    select("head", "Head", Array.from({ length: spot.heads }, (_, n) => `head ${n + 1}`), head, (v) => choose({ head: v, column: undefined })),
    h("h3", {}, `The token that looks (${spot.rows})`),
    h("div", { class: "tokens", role: "group", "aria-label": "Token that looks" }, shownTokens.map((token, n) => h("button", { type: "button", "aria-pressed": String(from + n === i), "data-focus": `token ${from + n}`, onclick: () => choose({ row: from + n, column: undefined }) }, h("bdi", {}, shown(token))))),
    queries.length > 120 && h("p", { class: "note" }, `tokens ${from + 1}–${from + 120} of ${whole(queries.length)}`)));
}

function drawStage(scene) {
  const { context, stage, record, queries, i } = scene;
  const move = (to) => choose({ step: within(to, STAGES.length) });
  const player = h("div", { class: "choices" },
    h("button", { type: "button", "data-focus": "back", disabled: stage === 0, onclick: () => move(stage - 1) }, "← back"),
    h("button", { type: "button", class: "main", "data-focus": "next", disabled: stage === STAGES.length - 1, onclick: () => move(stage + 1) }, "next →"),
    h("button", { type: "button", "data-focus": "play", "aria-pressed": String(Boolean(playing)), onclick: play }, playing ? "stop" : "play"),
    h("span", { class: "quiet" }, `step ${stage + 1} of ${STAGES.length}`));
  const names = STAGES.map((name, n) => (n === 4 ? lawName(record) : name));
  const chips = h("div", { class: "stages", role: "group", "aria-label": "Steps" }, names.map((name, n) => h("button", { type: "button", "aria-pressed": String(n === stage), "data-focus": `stage ${n}`, onclick: () => move(n) }, `${n + 1} ${name}`)));
  const made = PICTURES[stage](scene);
  context.main({
    title: `${names[stage][0].toUpperCase()}${names[stage].slice(1)}: where ${shown(queries[i])} looks`, subtitle: made.subtitle,
    before: [player, chips], svg: made.svg, after: [h("div", { class: "readout" }, told(scene)), h("p", { class: "note" }, made.words)],
    name: `step ${stage + 1} ${STAGES[stage]}`, rows: made.rows, python: () => python(scene), below: stage === 5 && record.kind === "softmax" ? whatIf(scene) : null,
  });
}

const lawName = (record) => ({ softmax: "exp", additive: "exp", taylor: "polynomial" })[record.kind] ?? "no exp";

function play() {
  if (playing) {
    stop();
    again(); // the same step, and a button that says play
    return;
  }
  playing = setInterval(goOn, matchMedia("(prefers-reduced-motion: reduce)").matches ? 4000 : 1800);
  if ((now().step ?? 0) < STAGES.length - 1) goOn();
  else choose({ step: 0 });
}

function stop() {
  clearInterval(playing);
  playing = null;
}

/** One step on; playing ends before the last is drawn, so that its button says play. */
function goOn() {
  const next = (now().step ?? 0) + 1;
  const elsewhere = now().screen !== id;
  if (elsewhere || next >= STAGES.length - 1) stop();
  if (elsewhere) return;
  if (next < STAGES.length) choose({ step: next });
  else again();
}

/** A matrix over keys and dimensions, all signed, with the chosen key marked; `extra` is a row above or below. */
function overKeys({ context, keys, j }, data, columns, heading, extra) {
  const rows = keys.length + (extra ? 1 : 0);
  const all = extra?.first ? Float32Array.of(...extra.data, ...data) : extra ? joined(data, extra.data) : data;
  const labels = extra?.first ? [extra.name, ...keys] : extra ? [...keys, extra.name] : keys;
  const shift = extra?.first ? 1 : 0;
  const view = viewOf(rows, columns, rows > 160 ? 64 : 0, j + shift, 0);
  const { svg, mark } = heat({ data: all, rows, columns, rowLabels: labels, columnLabels: Array.from({ length: columns }, (_, n) => String(n + 1)) }, {
    view: { ...view, left: 0, columns }, width: context.width(), signed: true, tall: 26, wholeRow: true, title: heading, rowTitle: "key", columnTitle: "dimension",
    hover: () => {}, pick: (r) => (r - shift >= 0 && r - shift < keys.length ? choose({ column: r - shift }) : null),
  });
  mark(j + shift, 0);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = within(j + step, keys.length);
    choose({ column: next });
    say(`key ${shown(keys[next])} (${next + 1})`);
  });
  return svg;
}

function joined(a, b) {
  const both = new Float32Array(a.length + b.length);
  both.set(a);
  both.set(b, a.length);
  return both;
}

/** A bar for each key. */
function bar({ context, keys, j, t }, values, heading) {
  return bars(keys.map((key, n) => ({ name: shown(key), value: values[n], strong: n === j, quiet: t.hidden[n] ? "hidden" : null })), { width: Math.min(context.width(), 600), title: heading, pick: (n) => choose({ column: n }) });
}

const columnOf = (keys, values, name) => [["key", name], ...keys.map((key, n) => [key, values[n]])];
const matrixRows = (keys, data, columns) => [["key", ...Array.from({ length: columns }, (_, n) => `dimension ${n + 1}`)], ...keys.map((key, n) => [key, ...data.subarray(n * columns, (n + 1) * columns)])];

const PICTURES = [
  (scene) => ({
    svg: overKeys(scene, scene.t.answering, scene.dims, "The query and all keys", { first: true, name: "query", data: scene.t.asking }),
    rows: () => [["vector", ...Array.from({ length: scene.dims }, (_, n) => `dimension ${n + 1}`)], ["query", ...scene.t.asking], ...matrixRows(scene.keys, scene.t.answering, scene.dims).slice(1)],
    subtitle: `${scene.keys.length} keys of ${scene.dims} numbers`,
    words: `The token that looks became a query, each token it may look at a key: ${scene.dims} numbers each, from the layer's own matrices${scene.record.positions === "rope" ? ", turned by their places (RoPE)" : ""}.${scene.record.kind === "elu" ? " For this kind they are features: elu + 1." : ""}`,
  }),
  (scene) => ({
    svg: overKeys(scene, scene.t.products, scene.dims, "Products of query and key, number by number"),
    rows: () => matrixRows(scene.keys, scene.t.products, scene.dims), subtitle: `${whole(scene.record.multiplications.products)} multiplications`,
    words: scene.record.kind === "additive" ? "For each key w · tanh(U q + V k), number by number; a row's sum is its score." : "Query and key multiplied number by number: blue pulls the score up, orange down. A row's sum is q · k.",
  }),
  (scene) => ({
    svg: bar(scene, scene.t.scores, "Scores"), rows: () => columnOf(scene.keys, scene.t.scores, "score"),
    subtitle: `× ${digits(scene.record.scale)}`,
    words: scene.record.scale === 1 ? "Each row of products summed: the score of each key." : `Each row of products summed, times ${digits(scene.record.scale)} = 1/√${Math.round(scene.record.scale ** -2)}: without it, scores of many dimensions grow so large that one key takes all.`,
  }),
  (scene) => ({
    svg: bar(scene, Array.from(scene.t.scores, (value, n) => (scene.record.faded ? scene.t.fade[n] : value + scene.t.bias[n])), "Scores after mask and positions"),
    rows: () => [["key", "score", "bias", "fade", "hidden"], ...scene.keys.map((key, n) => [key, scene.t.scores[n], scene.t.bias[n], scene.t.fade[n], scene.t.hidden[n]])],
    subtitle: `${whole(scene.t.hidden.reduce((a, b) => a + b, 0))} of ${whole(scene.keys.length)} keys hidden`,
    words: [scene.spot.causal ? "What comes later is hidden: a token may only look back." : "Nothing is hidden: this layer looks at everything.", scene.record.biased ? ` Positions (${scene.record.positions}) add a bias to each score.` : scene.record.faded ? ` Positions (${scene.record.positions}) fade a weight with distance; the bars are the factors.` : " No bias is added here."].join(""),
  }),
  (scene) => ({
    svg: bar(scene, scene.t.raw, "Unnormalized weights"), rows: () => columnOf(scene.keys, scene.t.raw, "unnormalized weight"), subtitle: `sum ${digits(scene.record.total)}`,
    words: ["softmax", "additive"].includes(scene.record.kind) ? `exp of each score, after the largest (${digits(scene.record.largest)}) was subtracted: that changes no weight and keeps exp from overflowing.` : scene.record.kind === "taylor" ? `The Taylor polynomial of order ${scene.record.order} takes the place of exp: an even order is positive everywhere.` : "This kind has no exp: the score itself is the unnormalized weight.",
  }),
  (scene) => ({
    svg: bar(scene, scene.t.weights, "Weights"), rows: () => columnOf(scene.keys, scene.t.weights, "weight"), subtitle: scene.record.averages ? "they sum to 1" : "not divided",
    words: scene.record.averages ? `Each divided by the sum, ${digits(scene.record.total)}: now they are shares.` : "This kind sums and does not average: nothing is divided.",
  }),
  (scene) => {
    const weighted = scene.t.values.map((value, n) => value * scene.t.weights[Math.floor(n / scene.width)]);
    return {
      svg: overKeys(scene, weighted, scene.width, "Values times weights"), rows: () => matrixRows(scene.keys, weighted, scene.width), subtitle: `${whole(scene.record.multiplications.sum)} multiplications`,
      words: "Each key's value, times its weight: keys with little weight leave almost nothing.",
    };
  },
  (scene) => {
    const weighted = scene.t.values.map((value, n) => value * scene.t.weights[Math.floor(n / scene.width)]);
    const m = scene.record.multiplications;
    return {
      svg: overKeys(scene, weighted, scene.width, "Their sum is the output", { name: "output", data: scene.t.output }),
      rows: () => [...matrixRows(scene.keys, weighted, scene.width), ["output", ...scene.t.output]], subtitle: `${whole(m.products + m.scale + m.weights + m.sum)} multiplications in all`,
      words: "The columns summed: what this head gives to the rest of the model. It is compared below with what the model's own fast path gave.",
    };
  },
];

/** The numbers of the chosen key, so far. */
function told({ t, record, keys, j, stage, width }) {
  const number = (name, value, id) => h("span", {}, `${name} `, h("span", { class: "number", id }, digits(value)));
  const lines = [h("span", {}, "key ", h("b", {}, h("bdi", {}, shown(keys[j]))), h("span", { class: "quiet" }, ` (${j + 1})`))];
  if (stage >= 1) lines.push(number("sum of products", t.sums[j], "sum"));
  if (stage >= 2) lines.push(number("score", t.scores[j], "score"));
  if (stage >= 3 && t.hidden[j]) return [...lines, h("span", {}, "hidden")];
  if (stage >= 3 && record.biased) lines.push(number("bias", t.bias[j], "bias"));
  if (stage >= 3 && record.faded) lines.push(number("fade", t.fade[j], "fade"));
  if (stage >= 4) lines.push(number("unnormalized", t.raw[j], "raw"));
  if (stage >= 5) lines.push(number("weight", t.weights[j], "weight"));
  if (stage >= 6) lines.push(number("first value × weight", t.weights[j] * t.values[j * width], "part"));
  if (stage >= 7) lines.push(number("first of the output", t.output[0], "output"));
  return lines;
}

/** A labeled copy: the same scores under another scale. The model's numbers stay as they are. */
function whatIf(scene) {
  const { t, keys, context } = scene;
  const tenths = now().heat ?? 10;
  const scores = Array.from(t.scores, (value, n) => (t.hidden[n] ? -Infinity : (value + t.bias[n]) * (tenths / 10)));
  const largest = Math.max(...scores);
  const raw = scores.map((value) => Math.exp(value - largest));
  const total = raw.reduce((a, b) => a + b, 0);
  const weights = raw.map((value) => value / total);
  const wide = context.width();
  const each = wide > 560 ? (wide - 14) / 2 : wide;
  const line = (values) => bars(keys.map((key, n) => ({ name: shown(key, 8), value: values[n], strong: n === scene.j, quiet: t.hidden[n] ? "hidden" : null })), { width: each, title: "", most: 16 });
  const svg = together([{ heading: "weights", svg: line(weights) }, { heading: "gradient a(1 − a)", svg: line(weights.map((a) => a * (1 - a))) }], wide);
  return figure({
    title: "What if the scores were larger?", subtitle: "a copy; the model is not changed", svg, name: "what if",
    before: slider("Scores times", { value: tenths, low: 0, high: 60, text: (n) => String(n / 10), change: (value) => choose({ heat: value }) }),
    after: h("p", { class: "note" }, "With large scores one key takes all and a(1 − a), by which the weights can still learn, goes to zero: that is what the division by √d prevents. At 0 every key gets the same."),
    rows: () => [["key", "weight", "a(1-a)"], ...keys.map((key, n) => [key, weights[n], weights[n] * (1 - weights[n])])], python: () => `${python(scene)}print(((steps.scores + steps.bias) * ${tenths / 10}).masked_fill(steps.hidden, float("-inf")).softmax(-1))\n`,
  });
}

function explain(scene) {
  const { context, record, t, j, i, stage, queries, keys, overview, spot } = scene;
  const s = (last = "j") => () => sub("s", last);
  const law = LAWS[record.kind] ?? LAWS.elu;
  const polynomial = record.kind === "taylor" && record.order !== 2;
  const lines = [[sub("s", "j"), "=", record.scale === 1 ? "" : digits(record.scale), sum("d"), sub("q", "d"), sub("k", "j", "d"), "=", digits(t.scores[j])].filter((part) => part !== "")];
  if (stage >= 4) lines.push([sub("w", "j"), "=", ...(polynomial ? ["1", "+", s()(), "+", "…"] : record.kind === "softmax" ? ["exp", row("(", s()(), "−", digits(record.largest), ")")] : law(s())), "=", digits(t.raw[j])]);
  if (stage >= 5) lines.push(record.averages ? [sub("a", "j"), "=", over(sub("w", "j"), row(sum("n"), sub("w", "n"))), "=", over(digits(t.raw[j]), digits(record.total)), "=", digits(t.weights[j])] : [sub("a", "j"), "=", sub("w", "j")]);
  if (stage >= 6) lines.push(["y", "=", sum("j"), sub("a", "j"), sub("v", "j")]);
  const m = record.multiplications;
  const soFar = [0, m.products, m.products + m.scale, m.products + m.scale, m.products + m.scale, m.products + m.scale + m.weights, m.products + m.scale + m.weights + m.sum, m.products + m.scale + m.weights + m.sum][stage];
  context.explain({
    formula: formula(...lines),
    values: [["query", `${shown(queries[i])} (${i + 1})`], ["key j", `${shown(keys[j])} (${j + 1})`], ["layer", spot.name], ["kind", record.kind], ["multiplications so far", whole(soFar)]],
    text: "All numbers are those of the model's own pass, computed again here from the formulas in double precision; the check below compares the end with what the model's fast path gave.",
    notes: overview.notes, python: python(scene),
  });
}

function python({ overview, place, head, i }) {
  return [...overview.code, "from qkv.explain import token_steps", "", `steps = token_steps(looks[${place}].head(${head}), ${i})`, "print(steps.scores, steps.weights, steps.output)", ""].join("\n");
}

/** Space plays, arrows step, wherever what has the focus does not need them: to scroll, to slide, to choose. */
export function key(event) {
  if (event.target.matches("button, select, input, svg[tabindex]") && event.key === " ") return;
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.key === " ") {
    event.preventDefault();
    play();
  } else if (step && !event.target.closest("input, select, [role=tab], pre, .scroll")) {
    choose({ step: within((now().step ?? 0) + step, STAGES.length) });
    say(STAGES[now().step]);
  }
}

export const help = [["← →", "step back, on"], ["space", "play, stop"], ["↑ ↓", "in the picture: another key"]];
