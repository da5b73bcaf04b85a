// Screen 1: thumbnails of all heads, and one head in full: as a map, as arcs, as text.

import { request } from "../api.js";
import { arcs, textHeat } from "../arcs.js";
import { candidatesCard } from "./candidates.js";
import { drawSide, hasThumbnails } from "./atlas_side.js";
import { gatesCard } from "./atlas_gates.js";
import { cellTable, csvRows } from "./atlas_table.js";
import { announce, choice, digits, h, slider, tokenText, whole, within } from "../dom.js";
import { formula, lawParts, lawSum, over, root, row, sub, sum, words } from "../formula.js";
import { colorRange, heat, viewOf } from "../heat.js";
import { choose, now } from "../state.js";

export const title = "Attention atlas";
/** Draw the current state; all choices are read here, with their defaults. */
export async function draw(context) {
  const overview = (await request("overview", context.params())).record;
  if (!overview.sites.length) throw new Error('This model has no attention: it was trained with attention "none".');
  const siteIndex = within(now().site ?? defaultSite(overview), overview.sites.length);
  const site = overview.sites[siteIndex];
  const head = Math.max(-1, Math.min(now().head ?? 0, site.heads - 1));
  const { record, tensors } = await request("head", { ...context.params(), site: siteIndex, head });
  const { data, shape } = tensors.weights;
  const matrix = {
    data,
    rows: shape[0],
    columns: shape[1],
    rowLabels: overview.tokens[site.rows],
    columnLabels: overview.tokens[site.columns],
  };
  const { places } = (await request("candidates", context.params())).record;
  const viewModel = { places, overview, siteIndex, site, head, record, tensors, matrix, context };
  viewModel.row = within(now().row ?? 0, matrix.rows);
  viewModel.column = within(now().column ?? largestColumn(matrix, viewModel.row), matrix.columns);
  viewModel.rows = chosenRows(viewModel);
  if (!hasThumbnails())
    context.side(() => h("section", { class: "card" }, h("h3", {}, "All heads"), h("p", { class: "note" }, "Drawing …")));
  drawMain(viewModel);
  checks(viewModel);
  await drawSide(viewModel); // all heads may take a moment, so the chosen one is drawn first
}

/** Cross-attention, which shows the alignment, if there is one. */
const defaultSite = ({ sites }) =>
  Math.max(
    0,
    sites.findIndex((site) => site.name.startsWith("cross")),
  );

function largestColumn({ data, columns }, row) {
  let best = 0;
  for (let j = 1; j < columns; j++) if (data[row * columns + j] > data[row * columns + best]) best = j;
  return best;
}

/** The rows that are summed: those that were added, or the current one. */
function chosenRows({ matrix, row }) {
  const added = (now().rows ?? "")
    .split(".")
    .filter(Boolean)
    .map(Number)
    .filter((n) => n >= 0 && n < matrix.rows);
  return added.length ? added : [row];
}

function summed({ matrix, rows }) {
  const total = new Float32Array(matrix.columns);
  for (const i of rows) for (let j = 0; j < matrix.columns; j++) total[j] += matrix.data[i * matrix.columns + j];
  return total;
}

function drawMain(viewModel) {
  const { context, matrix, site, head } = viewModel;
  const mode = Object.hasOwn(PICTURES, now().mode ?? "") ? now().mode : "map";
  const headName = head === -1 ? "mean of heads" : `head ${head + 1}`;
  const readout = h("div", { class: "readout", id: "readout" });
  const picture = PICTURES[mode](viewModel, readout);
  updateReadout(viewModel, readout, viewModel.row, viewModel.column);
  context.main({
    title: `${site.name}, ${headName}`,
    subtitle: `${site.kind} attention, ${whole(matrix.rows)} × ${whole(matrix.columns)}`,
    before: h(
      "div",
      { class: "choices" },
      choice(
        "Picture",
        [
          ["map", "map"],
          ["arcs", "arcs"],
          ["text", "text"],
        ],
        mode,
        (value) => choose({ mode: value }),
      ),
      picture.controls,
    ),
    svg: picture.svg,
    after: readout,
    name: `${site.name} ${headName}`,
    rows: () => csvRows(viewModel, picture),
    python: () => python(viewModel),
    table: () => cellTable(viewModel),
    below: [gatesCard(viewModel), candidatesCard(viewModel)],
  });
  explain(viewModel);
}

function drawMap(viewModel, readout) {
  const { matrix, site } = viewModel;
  const large = Math.max(matrix.rows, matrix.columns) > 64;
  const view = viewOf(matrix.rows, matrix.columns, now().zoom, viewModel.row, viewModel.column);
  const signed = matrix.data.some((value) => value < 0);
  const { svg, mark } = heat(now().row_scale ? { ...matrix, data: scaleRows(matrix) } : matrix, {
    view,
    width: viewModel.context.width(),
    causal: site.causal,
    signed,
    largest: now().row_scale ? null : colorRange(matrix),
    scale: now().row_scale ? (signed ? "each row up to its largest magnitude" : "each row from 0 to its largest") : null,
    tip: (i, j) => cellText(viewModel, i, j),
    title: `Attention weights of ${site.name}`,
    rowTitle: `queries: ${site.rows}`,
    columnTitle: `keys: ${site.columns}`,
    hover: (i, j) => {
      if (i === null) mark(viewModel.row, viewModel.column);
      updateReadout(viewModel, readout, i ?? viewModel.row, j ?? viewModel.column);
    },
    pick: (i, j, event) => choose({ row: i, column: j, rows: event.shiftKey ? toggled(viewModel, i) : undefined }),
  });
  mark(viewModel.row, viewModel.column);
  svg.addEventListener("keydown", (event) => keys(event, viewModel));
  const zoom =
    large &&
    h(
      "button",
      {
        type: "button",
        "aria-pressed": String(Boolean(now().zoom)),
        "data-focus": "zoom",
        onclick: () => choose({ zoom: now().zoom ? undefined : 48 }),
      },
      "zoom to the cell",
    );
  const rowScale = h(
    "button",
    {
      type: "button",
      "aria-pressed": String(Boolean(now().row_scale)),
      "data-focus": "row scale",
      onclick: () => choose({ row_scale: now().row_scale ? undefined : 1 }),
    },
    "scale each row separately",
  );
  return { svg, view, controls: [rowScale, zoom] };
}

/** Each row divided by its largest value, for the colors only: rows of small weights become visible. */
function scaleRows({ data, rows, columns }) {
  const found = new Float32Array(data.length);
  for (let i = 0; i < rows; i++) {
    const row = data.subarray(i * columns, (i + 1) * columns);
    let largest = 1e-30;
    for (const value of row) if (Math.abs(value) > largest) largest = Math.abs(value);
    for (let j = 0; j < columns; j++) found[i * columns + j] = row[j] / largest;
  }
  return found;
}

function drawArcs(viewModel) {
  const top = now().top ?? 3;
  const view = viewOf(viewModel.matrix.rows, viewModel.matrix.columns, 48, viewModel.row, viewModel.column);
  const svg = arcs(viewModel.matrix, {
    view,
    rows: viewModel.rows,
    top,
    site: viewModel.site,
    width: viewModel.context.width(),
    pick: (i, shift) => choose({ row: i, column: undefined, rows: shift ? toggled(viewModel, i) : undefined }),
  });
  svg.addEventListener("keydown", (event) => keys(event, viewModel));
  return {
    svg,
    view,
    controls: slider("Lines per token", { value: top, low: 1, high: 8, text: String, change: (value) => choose({ top: value }) }),
  };
}

function drawText(viewModel) {
  const view = viewOf(viewModel.matrix.rows, viewModel.matrix.columns, 400, viewModel.row, viewModel.column);
  const same = viewModel.site.rows === viewModel.site.columns;
  const svg = textHeat(viewModel.matrix, {
    view,
    values: summed(viewModel),
    rows: viewModel.rows,
    site: viewModel.site,
    width: viewModel.context.width(),
    same,
    pick: (i, shift) => choose({ row: i, column: undefined, rows: shift ? toggled(viewModel, i) : undefined }),
  });
  svg.addEventListener("keydown", (event) => keys(event, viewModel));
  return { svg, view };
}

const PICTURES = { map: drawMap, arcs: drawArcs, text: drawText };

/** The chosen rows with this one added, or removed if it was there. */
function toggled(viewModel, i) {
  const rows = new Set(now().rows ? viewModel.rows : i === viewModel.row ? [] : [viewModel.row]);
  if (rows.has(i)) rows.delete(i);
  else rows.add(i);
  return [...rows].sort((a, b) => a - b).join(".");
}

function keys(event, viewModel) {
  const { matrix, row, column } = viewModel;
  const [i, j] =
    {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      Home: [0, -1e9],
      End: [0, 1e9],
      PageUp: [-16, 0],
      PageDown: [16, 0],
    }[event.key] ?? [];
  if (i !== undefined) {
    event.preventDefault();
    const cell = [within(row + i, matrix.rows), within(column + j, matrix.columns)];
    choose({ row: cell[0], column: cell[1] });
    announce(cellText(viewModel, ...cell));
  } else if (event.key === "p" || (event.key === "Enter" && event.shiftKey)) {
    choose({ rows: toggled(viewModel, row) });
  } else if (event.key === "z") choose({ zoom: now().zoom ? undefined : 48 });
}

/** A cell as a sentence. */
function cellText({ matrix, site }, i, j) {
  const weight = site.causal && j > i ? "masked: it is in the future" : `weight ${digits(matrix.data[i * matrix.columns + j])}`;
  return `${tokenText(matrix.rowLabels[i])} (${i + 1}) attends to ${tokenText(matrix.columnLabels[j])} (${j + 1}), ${weight}`;
}

const score = ({ record, tensors }, i, j) => {
  if (!tensors.q || record.scale === null || record.scale === undefined) return null;
  const d = tensors.q.shape[1];
  let total = 0;
  for (let n = 0; n < d; n++) total += tensors.q.data[i * d + n] * tensors.k.data[j * d + n];
  return total * record.scale;
};

/** The rank of a key among those that the row may attend to. */
function rank({ matrix, site }, i, j) {
  const own = matrix.data[i * matrix.columns + j];
  const seen = site.causal ? Math.min(i + 1, matrix.columns) : matrix.columns;
  let better = 0;
  for (let n = 0; n < seen; n++) if (matrix.data[i * matrix.columns + n] > own) better++;
  return `${better + 1} of ${seen}`;
}

function updateReadout(viewModel, readout, i, j) {
  const { matrix, site, rows } = viewModel;
  const hidden = site.causal && j > i;
  const weight = matrix.data[i * matrix.columns + j];
  const found = score(viewModel, i, j);
  const parts = [
    h(
      "span",
      {},
      h("b", {}, h("bdi", {}, tokenText(matrix.rowLabels[i]))),
      h("span", { class: "quiet" }, ` (${i + 1}) attends to `),
      h("b", {}, h("bdi", {}, tokenText(matrix.columnLabels[j]))),
      h("span", { class: "quiet" }, ` (${j + 1})`),
    ),
    hidden
      ? h("span", {}, "masked: it is in the future")
      : h("span", {}, "weight ", h("span", { class: "number", id: "weight" }, digits(weight))),
    !hidden && h("span", {}, "rank ", h("span", { class: "number", id: "rank" }, rank(viewModel, i, j))),
    found !== null && !hidden && h("span", {}, "score ", h("span", { class: "number" }, digits(found))),
  ];
  if (rows.length > 1) {
    let total = 0;
    for (const r of rows) total += matrix.data[r * matrix.columns + j];
    parts.push(
      h(
        "span",
        {},
        `sum over ${rows.length} rows (`,
        h(
          "bdi",
          {},
          rows
            .slice(0, 6)
            .map((r) => tokenText(matrix.rowLabels[r], 8))
            .join(" "),
        ),
        ") ",
        h("span", { class: "number", id: "summed" }, digits(total)),
      ),
    );
  }
  readout.replaceChildren(...parts.filter(Boolean));
}

function checks({ context, matrix, site, head, record }) {
  const found = [];
  if (site.normalizes) {
    let worst = 0;
    for (let i = 0; i < matrix.rows; i++) {
      let total = 0;
      for (let j = 0; j < matrix.columns; j++) total += matrix.data[i * matrix.columns + j];
      const off = Math.abs(total - 1);
      worst = off <= worst ? worst : off; // NaN counts as worst
    }
    found.push({ words: `rows sum to 1 within ${digits(worst, 6)}`, good: worst < 2e-3 });
  } else found.push({ words: "this kind does not normalize: rows need not sum to 1", good: null });
  if (record.fast_path_error !== null && record.fast_path_error !== undefined) {
    found.push({ words: `weights · v = fast path within ${digits(record.fast_path_error, 6)}`, good: record.fast_path_error < 1e-3 });
  } else if (head !== -1) found.push({ words: "only the weights are known, not their origin", good: null });
  context.checks(found, record.seconds);
}

function explain(viewModel) {
  const { context, site, matrix, row: i, column: j, record, overview, tensors } = viewModel;
  const { law } = site;
  const value = score(viewModel, i, j);
  const weight = matrix.data[i * matrix.columns + j];
  const a = () => sub("a", "i", "j");
  const lines = [];
  const isMean = viewModel.head === -1;
  if (isMean) lines.push([a(), "=", over("1", String(site.heads)), sum("h"), sub("a", "h", "i", "j")]);
  else if (site.gate === "channel" && !law.decay_note) lines.push([a(), "=", ...channelParts(record.scale, tensors.q.shape[1])]);
  else if (law && site.normalizes) lines.push([a(), "=", over(row(...lawParts(law, "i", "j", site)), lawSum(law, "i", site))]);
  else if (law) lines.push([a(), "=", ...lawParts(law, "i", "j", site)]);
  if (value !== null && site.gate !== "channel") lines.push([sub("s", "i", "j"), "=", ...scoreParts(record.scale, tensors.q.shape[1]), "=", digits(value)]);
  lines.push([a(), "=", digits(weight), site.causal && j > i && words(", masked")].filter(Boolean));
  context.explain({
    formula: formula(...lines),
    text: [
      `Row i is the query (here ${tokenText(matrix.rowLabels[i])}), column j the key (${tokenText(matrix.columnLabels[j])}). `,
      site.normalizes
        ? "The weights of a row sum to 1: its output is the weighted mean of all values. "
        : "This kind adds up values without dividing: weights may be negative and need not sum to 1. ",
      site.rows === "generated" ? "Each row is a generated token, each column a source token. " : "",
      site.bias && !isMean ? "Positions add b to the score: step by step has its values. " : "",
      isMean ? "" : decayText(site),
      "A weight shows what was mixed in; alone it does not explain the model's decision.",
    ].join(""),
    values: [
      ["i, j", `${i + 1}, ${j + 1}`],
      ["weight", digits(weight)],
      value !== null && ["score", digits(value)],
      tensors.q && ["d", String(tensors.q.shape[1])],
    ],
    notes: overview.notes,
    python: python(viewModel),
  });
}

/** What fades a weight besides its score. */
function decayText({ decay, gate, law }) {
  if (decay) return `${gate ? "A gate multiplies" : "Positions multiply"} the weight by g: step by step has its values. `;
  return gate && law.decay_note ? law.decay_note : gate ? "A gate per channel fades each product by its own factor g. " : "";
}

/** The weight under a gate per channel: each product has a factor of its own. */
const channelParts = (scale, d) => [
  ...(Math.abs(scale - d ** -0.5) < 1e-6 ? [over("1", root("d"))] : [digits(scale)]),
  sum("c"),
  sub("g", "i", "j", "c"),
  sub("q", "i", "c"),
  sub("k", "j", "c"),
];

/** scale · q_i · k_j, with the usual scale as 1/√d. */
function scoreParts(scale, d) {
  const product = () => row(sub("q", "i"), "·", sub("k", "j"));
  return Math.abs(scale - d ** -0.5) < 1e-6 ? [over(product(), root("d"))] : [digits(scale), product()];
}

function python({ overview, siteIndex, head, row: i, column: j }) {
  if (!overview.code.some((line) => line.includes("observe("))) {
    return `# attention: the given tensors\nprint(attention[${siteIndex}][..., ${head === -1 ? ":" : head}, ${i}, ${j}]${head === -1 ? ".mean()" : ""})\n`;
  }
  const call =
    head === -1
      ? `records[${siteIndex}].call.weights()[0].mean(0)[${i}, ${j}]`
      : `records[${siteIndex}].head(${head}).weights()[0, 0, ${i}, ${j}]`;
  return [...overview.code, `print(${call})`, ""].join("\n");
}

const MOVES = { "[": [-1, 0], "]": [1, 0], "{": [0, -1], "}": [0, 1] };

/** [ ] another site, { } another head. */
export async function key(event, params) {
  if (!MOVES[event.key]) return;
  const [down, across] = MOVES[event.key];
  const overview = await request("overview", params).then(
    ({ record }) => record,
    () => null,
  );
  if (!overview?.sites.length) return; // the screen itself shows the error
  const site = within((now().site ?? defaultSite(overview)) + down, overview.sites.length);
  const head = Math.max(-1, Math.min((now().head ?? 0) + across, overview.sites[site].heads - 1));
  choose({ site, head });
  announce(`${overview.sites[site].name}, ${head === -1 ? "mean of heads" : `head ${head + 1}`}`);
}

export const help = [
  ["[ ]", "previous, next layer"],
  ["{ }", "previous, next head"],
  ["arrows", "in the picture: another cell"],
  ["p", "in the picture: add this row to the sum, or remove it"],
  ["z", "in the picture: zoom to the cell"],
];
