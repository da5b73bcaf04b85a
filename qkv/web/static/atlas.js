// Screen 1: every head small, one head whole; as a map, as arcs, as text.

import { arcs, textHeat } from "./arcs.js";
import { choice, digits, h, say, shown, slider, whole } from "./dom.js";
import { LAWS, formula, over, root, row, sub, sum } from "./formula.js";
import { heat, thumbnail, viewOf } from "./heat.js";
import { onTheme } from "./color.js";
import { ask } from "./source.js";
import { choose, now } from "./state.js";

export const id = "atlas";
export const title = "Attention atlas";
const SORTS = [["", "layer and head"], ["previous", "looks at the token before"], ["first", "looks at the first token"], ["itself", "looks at itself"], ["entropy", "most spread out"], ["largest", "largest weight"]];

/** The order that was chosen, if it is one. */
const sortNow = () => (SORTS.some(([value]) => value === now().sort) ? now().sort : "");

let built = { key: null };
onTheme(() => (built = { key: null }));

/** Draw what the state says; all choices are read here, with their defaults. */
export async function draw(context) {
  const overview = (await ask("overview", context.question())).record;
  if (!overview.places.length) throw new Error("This model never attends: it was trained with attention \"none\".");
  const place = within(now().place ?? defaultPlace(overview), overview.places.length);
  const spot = overview.places[place];
  const head = Math.max(-1, Math.min(now().head ?? 0, spot.heads - 1));
  const { record, tensors } = await ask("head", { ...context.question(), place, head });
  const { data, shape } = tensors.weights;
  const matrix = {
    data, rows: shape[0], columns: shape[1], rowLabels: overview.tokens[spot.rows], columnLabels: overview.tokens[spot.columns],
  };
  const scene = { overview, place, spot, head, record, tensors, matrix, context };
  scene.row = within(now().row ?? 0, matrix.rows);
  scene.column = within(now().column ?? favorite(matrix, scene.row), matrix.columns);
  scene.rows = chosenRows(scene);
  if (!built.box) context.side(() => h("section", { class: "card" }, h("h3", {}, "All heads"), h("p", { class: "note" }, "Drawing …")));
  drawMain(scene);
  checks(scene);
  await drawSide(scene); // all heads may take a moment: the one that was asked for is there before
}

const within = (value, count) => Math.max(0, Math.min(value, count - 1));
/** Where a model looks at its source is what people ask first. */
const defaultPlace = ({ places }) => Math.max(0, places.findIndex((place) => place.name.startsWith("cross")));

function favorite({ data, columns }, row) {
  let best = 0;
  for (let j = 1; j < columns; j++) if (data[row * columns + j] > data[row * columns + best]) best = j;
  return best;
}

/** The rows that are summed: those that were added, or the current one. */
function chosenRows({ matrix, row }) {
  const added = (now().rows ?? "").split(".").filter(Boolean).map(Number).filter((n) => n >= 0 && n < matrix.rows);
  return added.length ? added : [row];
}

function summed({ matrix, rows }) {
  const total = new Float32Array(matrix.columns);
  for (const i of rows) for (let j = 0; j < matrix.columns; j++) total[j] += matrix.data[i * matrix.columns + j];
  return total;
}

async function drawSide(scene) {
  const { context, overview } = scene;
  const key = JSON.stringify([context.question(), sortNow()]);
  if (built.key !== key) {
    const { record, tensors } = await ask("thumbnails", context.question());
    built = { key, box: thumbnails(overview, record, tensors.thumbnails.data) };
  }
  for (const button of built.box.querySelectorAll("button")) {
    const on = Number(button.dataset.place) === scene.place && Number(button.dataset.head) === scene.head;
    button.setAttribute("aria-pressed", String(on));
    button.tabIndex = on ? 0 : -1;
  }
  if (!built.box.querySelector("[tabindex='0']")) built.box.querySelector("button").tabIndex = 0;
  const sort = h("select", { id: "sort", "data-focus": "sort", onchange: () => choose({ sort: sort.value }) },
    SORTS.map(([value, text]) => h("option", { value }, text)));
  sort.value = sortNow();
  context.side(() => h("section", { class: "card" }, h("h3", {}, "All heads"),
    h("div", { class: "field" }, h("label", { for: "sort" }, "Order by"), sort), built.box,
    h("button", { type: "button", "data-focus": "mean", "aria-pressed": String(scene.head === -1), onclick: () => choose({ place: scene.place, head: scene.head === -1 ? 0 : -1 }) }, `mean of ${scene.spot.name}`)));
}

function thumbnails(overview, { shapes, summaries }, bytes) {
  const all = [];
  let at = 0;
  overview.places.forEach((place, number) => {
    const [height, width] = shapes[number];
    for (let head = 0; head < place.heads; head++, at += height * width) {
      all.push({ place: number, head, name: place.name, summary: summaries[number][head], canvas: thumbnail(bytes.subarray(at, at + height * width), height, width) });
    }
  });
  const sort = sortNow();
  if (sort) all.sort((a, b) => b.summary[sort] - a.summary[sort]);
  const most = Math.max(...overview.places.map((place) => place.heads));
  const columns = sort ? Math.min(6, all.length) : most;
  const box = h("div", { class: "atlas", role: "group", "aria-label": "Heads; arrow keys move" });
  box.style.gridTemplateColumns = `repeat(${columns}, minmax(16px, ${columns > 6 ? 28 : 52}px))`;
  let last = null;
  for (const one of all) {
    if (!sort && one.place !== last) box.append(h("span", { class: "place" }, one.name));
    const fresh = !sort && one.place !== last;
    last = one.place;
    const words = `${one.name}, head ${one.head + 1}`;
    const button = h("button", {
      type: "button", title: `${words}: entropy ${digits(one.summary.entropy, 2)} bits, previous ${digits(one.summary.previous, 2)}, first ${digits(one.summary.first, 2)}, itself ${digits(one.summary.itself, 2)}`,
      "aria-label": words, "data-place": one.place, "data-head": one.head, "data-focus": `head ${one.place} ${one.head}`,
      onclick: () => choose({ place: one.place, head: one.head, row: now().row, column: undefined }),
    }, one.canvas, sort && h("span", { class: "value" }, digits(one.summary[sort], 2)));
    if (fresh) button.style.gridColumnStart = "1";
    box.append(button);
  }
  box.addEventListener("keydown", (event) => walk(event, [...box.querySelectorAll("button")], columns));
  return box;
}

/** Arrow keys among buttons that lie in a grid. */
function walk(event, buttons, columns) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
  const at = buttons.indexOf(event.target);
  if (!step || at < 0) return;
  event.preventDefault();
  const next = buttons[within(at + step, buttons.length)];
  next.tabIndex = 0;
  next.focus();
}

function drawMain(scene) {
  const { context, matrix, spot, head } = scene;
  const mode = Object.hasOwn(PICTURES, now().mode ?? "") ? now().mode : "map";
  const who = head === -1 ? "mean of heads" : `head ${head + 1}`;
  const readout = h("div", { class: "readout", id: "readout" });
  const picture = PICTURES[mode](scene, readout);
  tell(scene, readout, scene.row, scene.column);
  context.main({
    title: `${spot.name}, ${who}`,
    subtitle: `${spot.kind} attention, ${whole(matrix.rows)} × ${whole(matrix.columns)}`,
    before: h("div", { class: "choices" }, choice("Picture", [["map", "map"], ["arcs", "arcs"], ["text", "text"]], mode, (value) => choose({ mode: value })), picture.controls),
    svg: picture.svg, after: readout, name: `${spot.name} ${who}`, rows: () => csvRows(scene, picture), python: () => python(scene), table: () => twin(scene),
  });
  explain(scene);
}

function drawMap(scene, readout) {
  const { matrix, spot } = scene;
  const large = Math.max(matrix.rows, matrix.columns) > 64;
  const view = viewOf(matrix.rows, matrix.columns, now().zoom, scene.row, scene.column);
  const { svg, mark } = heat(now().even ? { ...matrix, data: evened(matrix) } : matrix, {
    view, width: scene.context.width(), causal: spot.causal, scale: now().even ? "each row from 0 to its largest" : null, title: `Attention weights of ${spot.name}`,
    rowTitle: `who looks: ${spot.rows}`, columnTitle: `looked at: ${spot.columns}`,
    hover: (i, j) => (i === null ? (mark(scene.row, scene.column), tell(scene, readout, scene.row, scene.column)) : tell(scene, readout, i, j)),
    pick: (i, j, event) => choose({ row: i, column: j, rows: event.shiftKey ? toggled(scene, i) : undefined }),
  });
  mark(scene.row, scene.column);
  svg.addEventListener("keydown", (event) => keys(event, scene));
  const zoom = large && h("button", { type: "button", "aria-pressed": String(Boolean(now().zoom)), "data-focus": "zoom", onclick: () => choose({ zoom: now().zoom ? undefined : 48 }) }, "zoom to the cell");
  const even = h("button", { type: "button", "aria-pressed": String(Boolean(now().even)), "data-focus": "even", onclick: () => choose({ even: now().even ? undefined : 1 }) }, "color each row by itself");
  return { svg, view, controls: [even, zoom] };
}

/** Each row divided by its largest: for the colors alone, so that rows that spread out can be seen. */
function evened({ data, rows, columns }) {
  const found = new Float32Array(data.length);
  for (let i = 0; i < rows; i++) {
    const row = data.subarray(i * columns, (i + 1) * columns);
    let largest = 1e-30;
    for (const value of row) if (Math.abs(value) > largest) largest = Math.abs(value);
    for (let j = 0; j < columns; j++) found[i * columns + j] = row[j] / largest;
  }
  return found;
}

function drawArcs(scene) {
  const top = now().top ?? 3;
  const view = viewOf(scene.matrix.rows, scene.matrix.columns, 48, scene.row, scene.column);
  const svg = arcs(scene.matrix, { view, rows: scene.rows, top, spot: scene.spot, width: scene.context.width(), pick: (i, shift) => choose({ row: i, column: undefined, rows: shift ? toggled(scene, i) : undefined }) });
  svg.addEventListener("keydown", (event) => keys(event, scene));
  return { svg, view, controls: slider("Lines for each token", { value: top, low: 1, high: 8, text: String, change: (value) => choose({ top: value }) }) };
}

function drawText(scene) {
  const view = viewOf(scene.matrix.rows, scene.matrix.columns, 400, scene.row, scene.column);
  const same = scene.spot.rows === scene.spot.columns;
  const svg = textHeat(scene.matrix, { view, values: summed(scene), rows: scene.rows, spot: scene.spot, width: scene.context.width(), same, pick: (i, shift) => choose({ row: i, column: undefined, rows: shift ? toggled(scene, i) : undefined }) });
  svg.addEventListener("keydown", (event) => keys(event, scene));
  return { svg, view };
}

const PICTURES = { map: drawMap, arcs: drawArcs, text: drawText };

/** The rows with this one added, or taken away if it was there. */
function toggled(scene, i) {
  const rows = new Set(now().rows ? scene.rows : i === scene.row ? [] : [scene.row]);
  if (rows.has(i)) rows.delete(i);
  else rows.add(i);
  return [...rows].sort((a, b) => a - b).join(".");
}

function keys(event, scene) {
  const { matrix, row, column } = scene;
  const [i, j] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e9], End: [0, 1e9], PageUp: [-16, 0], PageDown: [16, 0] }[event.key] ?? [];
  if (i !== undefined) {
    event.preventDefault();
    const cell = [within(row + i, matrix.rows), within(column + j, matrix.columns)];
    choose({ row: cell[0], column: cell[1] });
    say(spoken(scene, ...cell));
  } else if (event.key === "p" || (event.key === "Enter" && event.shiftKey)) {
    choose({ rows: toggled(scene, row) });
  } else if (event.key === "z") choose({ zoom: now().zoom ? undefined : 48 });
}

/** A cell in a sentence. */
function spoken({ matrix, spot }, i, j) {
  const weight = spot.causal && j > i ? "hidden: it comes later" : `weight ${digits(matrix.data[i * matrix.columns + j])}`;
  return `${shown(matrix.rowLabels[i])} (${i + 1}) looks at ${shown(matrix.columnLabels[j])} (${j + 1}), ${weight}`;
}

const score = ({ record, tensors }, i, j) => {
  if (!tensors.q || record.scale === null || record.scale === undefined) return null;
  const d = tensors.q.shape[1];
  let total = 0;
  for (let n = 0; n < d; n++) total += tensors.q.data[i * d + n] * tensors.k.data[j * d + n];
  return total * record.scale;
};

/** The place of a key among those that the row may see. */
function rank({ matrix, spot }, i, j) {
  const own = matrix.data[i * matrix.columns + j];
  const seen = spot.causal ? Math.min(i + 1, matrix.columns) : matrix.columns;
  let better = 0;
  for (let n = 0; n < seen; n++) if (matrix.data[i * matrix.columns + n] > own) better++;
  return `${better + 1} of ${seen}`;
}

function tell(scene, readout, i, j) {
  const { matrix, spot, rows } = scene;
  const hidden = spot.causal && j > i;
  const weight = matrix.data[i * matrix.columns + j];
  const found = score(scene, i, j);
  const parts = [
    h("span", {}, h("b", {}, h("bdi", {}, shown(matrix.rowLabels[i]))), h("span", { class: "quiet" }, ` (${i + 1}) looks at `), h("b", {}, h("bdi", {}, shown(matrix.columnLabels[j]))), h("span", { class: "quiet" }, ` (${j + 1})`)),
    hidden ? h("span", {}, "hidden: it comes later") : h("span", {}, "weight ", h("span", { class: "number", id: "weight" }, digits(weight))),
    !hidden && h("span", {}, "rank ", h("span", { class: "number", id: "rank" }, rank(scene, i, j))),
    found !== null && !hidden && h("span", {}, "score ", h("span", { class: "number" }, digits(found))),
  ];
  if (rows.length > 1) {
    let total = 0;
    for (const r of rows) total += matrix.data[r * matrix.columns + j];
    parts.push(h("span", {}, `sum over ${rows.length} rows (`, h("bdi", {}, rows.slice(0, 6).map((r) => shown(matrix.rowLabels[r], 8)).join(" ")), ") ", h("span", { class: "number", id: "summed" }, digits(total))));
  }
  readout.replaceChildren(...parts.filter(Boolean));
}

function checks({ context, matrix, spot, head, record }) {
  const found = [];
  if (spot.averages) {
    let worst = 0;
    for (let i = 0; i < matrix.rows; i++) {
      let total = 0;
      for (let j = 0; j < matrix.columns; j++) total += matrix.data[i * matrix.columns + j];
      const off = Math.abs(total - 1);
      worst = off <= worst ? worst : off; // NaN counts as worst
    }
    found.push({ words: `rows sum to 1 within ${digits(worst, 6)}`, good: worst < 2e-3 });
  } else found.push({ words: "this kind sums and does not average: rows need not sum to 1", good: null });
  if (record.against_fast !== null && record.against_fast !== undefined) {
    found.push({ words: `weights · v = fast path within ${digits(record.against_fast, 6)}`, good: record.against_fast < 1e-3 });
  } else if (head !== -1) found.push({ words: "only the weights are known, not what made them", good: null });
  context.checks(found, record.seconds);
}

function explain(scene) {
  const { context, spot, matrix, row: i, column: j, record, overview, tensors } = scene;
  const law = LAWS[spot.kind];
  const value = score(scene, i, j);
  const weight = matrix.data[i * matrix.columns + j];
  const a = () => sub("a", "i", "j");
  const lines = [];
  if (law && spot.averages) {
    const s = (last) => () => sub("s", "i", last);
    lines.push([a(), "=", over(row(...law(s("j"))), row(sum("n"), ...law(s("n"))))]);
  } else if (law) lines.push([a(), "=", ...law(() => sub("s", "i", "j"))]);
  if (value !== null) lines.push([sub("s", "i", "j"), "=", over(row(sub("q", "i"), "·", sub("k", "j")), root("d")), "=", digits(value)]);
  lines.push([a(), "=", digits(weight)]);
  context.explain({
    formula: formula(...lines),
    text: [
      `Row i is the token that looks (here ${shown(matrix.rowLabels[i])}), column j the one it looks at (${shown(matrix.columnLabels[j])}). `,
      spot.averages ? "The weights of a row sum to 1: the output of the row is the mean of all values, weighted so. " : "This kind adds up values without dividing: weights may be negative and need not sum to 1. ",
      spot.rows === "written" ? "Each row is a token being written, each column one that was read. " : "",
      spot.placed ? "Positions change the score or the weight as well: step by step shows how. " : "",
      "A weight says what was mixed in, not by itself why the model decided.",
    ].join(""),
    values: [["i, j", `${i + 1}, ${j + 1}`], ["weight", digits(weight)], value !== null && ["score", digits(value)], tensors.q && ["d", String(tensors.q.shape[1])]],
    notes: overview.notes,
    python: python(scene),
  });
}

function python({ overview, place, head, row: i, column: j }) {
  if (!overview.code.some((line) => line.includes("observe("))) {
    return `# attention: the tensors that were given\nprint(attention[${place}][..., ${head === -1 ? ":" : head}, ${i}, ${j}]${head === -1 ? ".mean()" : ""})\n`;
  }
  const call = head === -1 ? `looks[${place}].call.weights()[0].mean(0)[${i}, ${j}]` : `looks[${place}].head(${head}).weights()[0, 0, ${i}, ${j}]`;
  return [...overview.code, `print(${call})`, ""].join("\n");
}

function csvRows({ matrix, rows }, { view }) {
  const columns = Array.from({ length: view.columns }, (_, n) => view.left + n);
  const lines = Array.from({ length: view.rows }, (_, n) => view.top + n);
  const out = [["", ...columns.map((j) => String(matrix.columnLabels[j]))]];
  for (const i of lines) out.push([String(matrix.rowLabels[i]), ...columns.map((j) => matrix.data[i * matrix.columns + j])]);
  if (rows.length > 1) out.push(["sum of the chosen rows", ...columns.map((j) => rows.reduce((total, i) => total + matrix.data[i * matrix.columns + j], 0))]);
  return out;
}

/** The same numbers as a table: at most 24 rows and columns around the cell. */
function twin({ matrix, row, column, spot }) {
  const view = viewOf(matrix.rows, matrix.columns, 24, row, column);
  const columns = Array.from({ length: view.columns }, (_, n) => view.left + n);
  const cut = view.rows < matrix.rows || view.columns < matrix.columns;
  return h("table", {},
    h("caption", {}, `Attention weights, rows: ${spot.rows}, columns: ${spot.columns}${cut ? `; rows ${view.top + 1}–${view.top + view.rows} and columns ${view.left + 1}–${view.left + view.columns}, around the cell; the CSV has more` : ""}`),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, ""), columns.map((j) => h("th", { scope: "col" }, h("bdi", {}, shown(matrix.columnLabels[j])))))),
    h("tbody", {}, Array.from({ length: view.rows }, (_, n) => view.top + n).map((i) =>
      h("tr", { class: i === row ? "strong" : null }, h("th", { scope: "row" }, h("bdi", {}, shown(matrix.rowLabels[i]))),
        columns.map((j) => h("td", {}, spot.causal && j > i ? "–" : digits(matrix.data[i * matrix.columns + j])))))));
}

const MOVES = { "[": [-1, 0], "]": [1, 0], "{": [0, -1], "}": [0, 1] };

/** [ ] another place, { } another head. */
export async function key(event, question) {
  if (!MOVES[event.key]) return;
  const [down, across] = MOVES[event.key];
  const overview = await ask("overview", question).then(({ record }) => record, () => null);
  if (!overview?.places.length) return; // the screen itself says what is wrong
  const place = within((now().place ?? defaultPlace(overview)) + down, overview.places.length);
  const head = Math.max(-1, Math.min((now().head ?? 0) + across, overview.places[place].heads - 1));
  choose({ place, head });
  say(`${overview.places[place].name}, ${head === -1 ? "mean of heads" : `head ${head + 1}`}`);
}

export const help = [["[ ]", "layer before, after"], ["{ }", "head before, after"], ["arrows", "in the picture: another cell"], ["p", "in the picture: add this row to the sum, or take it away"], ["z", "in the picture: zoom to the cell"]];
