// Screen 2: one token through one head, step by step, with every value.

import { request } from "../api.js";
import { announce, digits, h, largestIndex, tokenText, whole, within } from "../dom.js";
import { formula, latex, lawParts, over, plus, row, sub, sum, words } from "../formula.js";
import { redraw, choose, now } from "../state.js";
import { PICTURES, whatIf } from "./stepwise_pictures.js";

const NAME = "stepwise";
export const title = "Step by step";
/** Tokens of the side panel. */
const MAX_TOKENS = 120;

let playing = null;
let stageNames = [""]; // of the last trace that was drawn

export async function draw(context) {
  const overview = (await request("overview", context.params())).record;
  if (!overview.sites.length) throw new Error("This model has no attention, so there are no steps to show.");
  const cross = Math.max(
    0,
    overview.sites.findIndex(({ name }) => name.startsWith("cross")),
  );
  const siteIndex = within(now().site ?? cross, overview.sites.length);
  const site = overview.sites[siteIndex];
  const head = within(now().head ?? 0, site.heads);
  const queries = overview.tokens[site.rows];
  const keys = overview.tokens[site.columns];
  const i = within(now().row ?? 0, queries.length);
  drawSide({ context, overview, siteIndex, site, head, queries, i });
  const { record, tensors } = await request("token_trace", { ...context.params(), site: siteIndex, head, row: i });
  const t = Object.fromEntries(Object.entries(tensors).map(([name, one]) => [name, one.data]));
  const viewModel = { context, overview, siteIndex, site, head, queries, keys, i, record, t };
  viewModel.keyDims = tensors.keys.shape[1];
  viewModel.valueDims = tensors.values.shape[1];
  viewModel.j = within(now().column ?? largestIndex(t.weights), keys.length);
  stageNames = record.stages.map(({ name }) => name);
  viewModel.stage = within(now().step ?? 0, stageNames.length);
  viewModel.python = () => python(viewModel);
  viewModel.reached = (id) => record.stages.slice(0, viewModel.stage + 1).some((stage) => stage.id === id);
  drawStage(viewModel);
  explain(viewModel);
  context.checks(
    [
      { words: `output = the model's fast path within ${digits(record.output_error, 6)}`, good: record.output_error < 1e-3 },
      { words: `weights = the definition within ${digits(record.weights_error, 6)}`, good: record.weights_error < 1e-3 },
    ],
    record.seconds,
  );
}

function drawSide({ context, overview, siteIndex, site, head, queries, i }) {
  const select = (id, text, options, value, change) => {
    const items = options.map((option, index) => h("option", { value: index }, option));
    const box = h("select", { id, "data-focus": id, onchange: () => change(Number(box.value)) }, items);
    box.value = value;
    return h("div", { class: "field" }, h("label", { for: id }, text), box);
  };
  const from = Math.max(0, Math.min(i - MAX_TOKENS / 2, queries.length - MAX_TOKENS));
  const buttons = queries.slice(from, from + MAX_TOKENS).map((token, n) =>
    h(
      "button",
      {
        type: "button",
        "aria-pressed": String(from + n === i),
        "data-focus": `token ${from + n}`,
        onclick: () => choose({ row: from + n, column: undefined }),
      },
      h("bdi", {}, tokenText(token)),
    ),
  );
  const siteNames = overview.sites.map(({ name, kind }) => `${name} (${kind})`);
  const headNames = Array.from({ length: site.heads }, (_, n) => `head ${n + 1}`);
  context.side(() =>
    h(
      "section",
      { class: "card" },
      select("site", "Layer", siteNames, siteIndex, (index) => choose({ site: index, row: undefined, column: undefined })),
      select("head", "Head", headNames, head, (index) => choose({ head: index, column: undefined })),
      h("h3", {}, `Query (${site.rows})`),
      h("div", { class: "tokens", role: "group", "aria-label": "Query token" }, buttons),
      queries.length > MAX_TOKENS && h("p", { class: "note" }, `tokens ${from + 1}–${from + MAX_TOKENS} of ${whole(queries.length)}`),
    ),
  );
}

function drawStage(viewModel) {
  const { context, stage, record, queries, i } = viewModel;
  const { id, name } = record.stages[stage];
  const picture = PICTURES[id](viewModel);
  const hasWhatIf = id === "weights" && record.law.exponential && record.dot_product;
  context.main({
    title: `${name[0].toUpperCase()}${name.slice(1)}: the query ${tokenText(queries[i])}`,
    subtitle: picture.subtitle,
    before: [player(viewModel), stageButtons(viewModel)],
    svg: picture.svg,
    after: [h("div", { class: "readout" }, readout(viewModel)), h("p", { class: "note" }, picture.words)],
    name: `step ${stage + 1} ${name}`,
    rows: picture.rows,
    python: viewModel.python,
    below: hasWhatIf ? whatIf(viewModel) : null,
  });
}

const move = (to) => choose({ step: within(to, stageNames.length) });

const player = ({ stage }) =>
  h(
    "div",
    { class: "choices" },
    h("button", { type: "button", "data-focus": "back", disabled: stage === 0, onclick: () => move(stage - 1) }, "← back"),
    h(
      "button",
      { type: "button", class: "main", "data-focus": "next", disabled: stage === stageNames.length - 1, onclick: () => move(stage + 1) },
      "next →",
    ),
    h(
      "button",
      { type: "button", "data-focus": "play", "aria-pressed": String(Boolean(playing)), onclick: play },
      playing ? "stop" : "play",
    ),
    h("span", { class: "quiet" }, `step ${stage + 1} of ${stageNames.length}`),
  );

const stageButtons = ({ stage, record }) =>
  h(
    "div",
    { class: "stages", role: "group", "aria-label": "Steps" },
    record.stages.map(({ name }, n) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String(n === stage),
          "data-focus": `stage ${n}`,
          onclick: () => move(n),
        },
        `${n + 1} ${name}`,
      ),
    ),
  );

function play() {
  if (playing) {
    stop();
    redraw(); // the same step, with a play button
    return;
  }
  playing = setInterval(advance, matchMedia("(prefers-reduced-motion: reduce)").matches ? 4000 : 1800);
  if ((now().step ?? 0) < stageNames.length - 1) advance();
  else choose({ step: 0 });
}

function stop() {
  clearInterval(playing);
  playing = null;
}

/** Go to the next step; playing ends before the last one is drawn, so that its button shows play. */
function advance() {
  const next = (now().step ?? 0) + 1;
  const elsewhere = now().screen !== NAME;
  if (elsewhere || next >= stageNames.length - 1) stop();
  if (elsewhere) return;
  if (next < stageNames.length) choose({ step: next });
  else redraw();
}

/** The values of the chosen key up to this step. */
function readout({ t, record, keys, j, valueDims, reached }) {
  const number = (name, value, id) => h("span", {}, `${name} `, h("span", { class: "number", id }, digits(value)));
  const lines = [h("span", {}, "key ", h("b", {}, h("bdi", {}, tokenText(keys[j]))), h("span", { class: "quiet" }, ` (${j + 1})`))];
  if (reached("products")) lines.push(number("sum of products", t.sums[j], "sum"));
  if (reached("scores")) lines.push(number("score", t.scores[j], "score"));
  if ((reached("mask") || reached("weights")) && t.masked[j]) return [...lines, h("span", {}, "masked")];
  if (reached("mask") && record.has_bias) lines.push(number("bias", t.bias[j], "bias"));
  if (reached("mask") && record.has_decay) lines.push(number("decay", t.decay[j], "decay"));
  if (reached("law")) lines.push(number("unnormalized", t.unnormalized[j], "unnormalized"));
  if (reached("weights")) lines.push(number("weight", t.weights[j], "weight"));
  if (reached("values")) lines.push(number("first value × weight", t.weights[j] * t.values[j * valueDims], "part"));
  if (reached("output")) lines.push(number("first of the output", t.output[0], "output"));
  return lines;
}

function explain(viewModel) {
  const { context, record, j, i, queries, keys, overview, site } = viewModel;
  context.explain({
    formula: formula(...formulaLines(viewModel)),
    values: [
      ["query", `${tokenText(queries[i])} (${i + 1})`],
      ["key j", `${tokenText(keys[j])} (${j + 1})`],
      ["layer", site.name],
      ["kind", record.kind],
      ["multiplications so far", whole(multiplications(viewModel))],
    ],
    text: [
      "All values are those of the model's own pass, recomputed here from the formulas in double precision. ",
      "The check below compares the result with the output of the model's fast path.",
    ].join(""),
    notes: overview.notes,
    python: viewModel.python(),
  });
}

function formulaLines({ record, t, j, reached }) {
  const lines = [];
  if (record.stages.some(({ id }) => id === "scores")) lines.push(scoreLine(record, t, j));
  if (t.masked[j]) {
    if (reached("mask") || reached("weights")) lines.push([sub(reached("weights") ? "a" : "w", "j"), "=", "0", words(", masked")]);
  } else {
    if (reached("mask")) lines.push(...positionLines(record, t, j));
    if (reached("law")) lines.push([sub("w", "j"), "=", ...unnormalizedParts(record), "=", digits(t.unnormalized[j])]);
    if (reached("weights")) lines.push(weightLine(record, t, j, reached("law")));
  }
  if (reached("values")) lines.push(["y", "=", sum("j"), sub("a", "j"), sub("v", "j")]);
  return lines;
}

/** The weight of key j before it is divided; for exp, the largest score is subtracted first. */
const unnormalizedParts = ({ law, has_bias, has_decay, max_score }) =>
  lawParts(law, "", "j", { bias: has_bias, decay: has_decay }, law.exponential ? max_score : null);

/** What positions add to the score of key j, and the factor of its weight. */
function positionLines({ has_bias, has_decay }, t, j) {
  const [score, bias] = [t.scores[j], t.bias[j]];
  return [
    has_bias && [sub("s", "j"), "+", sub("b", "j"), "=", digits(score), ...plus(bias), "=", digits(score + bias)],
    has_decay && [sub("g", "j"), "=", digits(t.decay[j])],
  ].filter(Boolean);
}

/** s_j from the query and key j: a sum over dimensions where it is a dot product. */
function scoreLine(record, t, j) {
  const scale = record.scale === 1 ? [] : [digits(record.scale)];
  const terms = record.dot_product ? [sum("d"), sub("q", "d"), sub("k", "j", "d")] : latex(record.law.score, { k: () => sub("k", "j") });
  return [sub("s", "j"), "=", ...scale, ...terms, "=", digits(t.scores[j])];
}

function weightLine(record, t, j, hasLaw) {
  const a = sub("a", "j");
  if (!hasLaw) return [a, "=", digits(t.weights[j])];
  if (!record.normalizes) return [a, "=", sub("w", "j"), "=", digits(t.weights[j])];
  const fraction = over(sub("w", "j"), row(sum("n"), sub("w", "n")));
  return [a, "=", fraction, "=", over(digits(t.unnormalized[j]), digits(record.normalizer)), "=", digits(t.weights[j])];
}

/** Multiplications of all steps up to this one. */
function multiplications({ record, reached }) {
  const m = record.multiplications;
  const parts = [
    ["products", m.products],
    ["scores", m.scale],
    ["weights", m.weights],
    ["values", m.sum],
  ];
  return parts.filter(([id]) => reached(id)).reduce((total, [, count]) => total + count, 0);
}

function python({ overview, siteIndex, head, i }) {
  return [
    ...overview.code,
    "from qkv.explain import trace_token",
    "",
    `trace = trace_token(records[${siteIndex}].head(${head}), ${i})`,
    "print(trace.scores, trace.weights, trace.output)",
    "",
  ].join("\n");
}

/** Space plays, arrows step, unless the focused element needs them to scroll, slide or choose. */
export function key(event) {
  if (event.target.matches("button, select, input, svg[tabindex]") && event.key === " ") return;
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.key === " ") {
    event.preventDefault();
    play();
  } else if (step && !event.target.closest("input, select, [role=tab], pre, .scroll")) {
    move((now().step ?? 0) + step);
    announce(stageNames[now().step ?? 0]);
  }
}

export const help = [
  ["← →", "previous, next step"],
  ["space", "play, stop"],
  ["↑ ↓", "in the picture: another key"],
];
