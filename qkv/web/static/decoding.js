// Screen 4: the tree of a beam search with the greedy path in it.

import { bars } from "./chart.js";
import { digits, h, s, say, shown, slider, whole } from "./dom.js";
import { figure } from "./figure.js";
import { formula, over, power, row, sub, sum } from "./formula.js";
import { strip } from "./heat.js";
import { ask, holds, saved } from "./source.js";
import { choose, now } from "./state.js";

export const id = "decoding";
export const title = "Decoding";
/** Dropped continuations that are drawn at each step, unless all are wanted. */
const DROPPED = 3;
const MOST_BEAMS = 16;
const MOST_POWER = 20;

const between = (low, value, high) => Math.max(low, Math.min(value, high));

export async function draw(context) {
  const { text } = context.question();
  const prefix = /^\d+(\.\d+)*$/.test(now().prefix) ? now().prefix : "";
  const asked = { beams: between(1, now().beams ?? 4, MOST_BEAMS), power: between(0, now().power ?? 0, MOST_POWER), prefix };
  drawSide(context, asked); // before it is asked: what is refused can be unchosen
  const { record } = await ask("search", { text, ...asked });
  const scene = { context, asked, record, ...shape(record) };
  scene.at = scene.visible.includes(now().node) ? now().node : record.best[0];
  scene.behind = await look(scene, text);
  drawSide(context, asked, record);
  const svg = tree(scene);
  context.main({
    title: "Beam and greedy, in one tree", subtitle: `beam of ${asked.beams}, ${whole(record.nodes.length - 1)} continuations looked at`,
    svg, name: `tree of ${asked.beams} beams`, rows: () => tableRows(scene), python: () => python(scene), before: parting(scene), below: nodeCard(scene),
    after: [h("p", { class: "note", id: "legend" }, legend(scene)), h("div", { class: "choices" }, h("button", { type: "button", "data-focus": "dropped", "aria-pressed": String(Boolean(now().dropped)), onclick: () => choose({ dropped: now().dropped ? undefined : 1 }) }, "all that were dropped"))],
  });
  explain(scene);
  const winner = record.nodes[record.best[0]];
  const off = Math.abs(winner.log - record.rescored);
  context.checks([
    { words: `winner scored again in one pass, without a cache: off by ${digits(off, 6)}`, good: off < 1e-3 },
    scene.behind && { words: `next tokens sum to 1 within ${digits(Math.abs(scene.behind.record.total - 1), 6)}`, good: Math.abs(scene.behind.record.total - 1) < 1e-4 },
  ].filter(Boolean), record.seconds);
  const line = scene.context.figure()?.querySelector(`[data-node="${scene.at}"]`);
  if (document.activeElement?.dataset.focus === "tree") line?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** What is drawn: the visible nodes, those among the children of each, and the way to the winner. */
function shape({ nodes, best }) {
  const winner = new Set();
  for (let n = best[0]; n !== null; n = nodes[n].parent) winner.add(n);
  const dropped = new Map();
  const most = now().dropped ? Math.floor(1200 / Math.max(...nodes.map((node) => node.step))) : DROPPED;
  const order = nodes.map((_, n) => n).sort((a, b) => nodes[b].log - nodes[a].log || a - b);
  const visible = order.filter((n) => {
    const node = nodes[n];
    if (node.kept || node.greedy) return true;
    dropped.set(node.step, (dropped.get(node.step) ?? 0) + 1);
    return dropped.get(node.step) <= most;
  }).sort((a, b) => a - b);
  const children = nodes.map(() => []);
  for (const n of visible) if (nodes[n].parent !== null) children[nodes[n].parent].push(n);
  return { children, winner, visible };
}

async function look({ record, at }, text) {
  const node = record.nodes[at];
  const asked = { prefix: node.end ? record.nodes[node.parent].prefix : node.prefix };
  return holds("node", asked) && asked.prefix.split(".").filter(Boolean).length < record.limit ? ask("node", { text, ...asked }) : null;
}

/** The choices; the names of forced tokens come with the answer. */
function drawSide(context, asked, record) {
  const forced = asked.prefix.split(".").filter(Boolean).length;
  const tokens = !record ? "…" : record.nodes.slice(1, 1 + forced).map((node) => shown(node.token)).join(" ");
  context.side(() => h("section", { class: "card" }, h("h3", {}, "Search"),
    saved ? h("p", { class: "note" }, "Another beam needs qkv serve.") : [
      slider("Beams:", { value: asked.beams, low: 1, high: MOST_BEAMS, text: String, change: (value) => choose({ beams: value, node: undefined }) }),
      slider("Length power (scores ÷ lengthᵖ):", { value: asked.power, low: 0, high: MOST_POWER, text: (n) => String(n / 10), change: (value) => choose({ power: value, node: undefined }) })],
    forced ? [h("p", { class: "note" }, "Forced to begin with ", h("b", {}, h("bdi", {}, tokens))), h("button", { type: "button", "data-focus": "unforce", onclick: () => choose({ prefix: undefined, node: undefined }) }, "let it begin freely")] : null));
}

/** Columns are steps; in a column the likeliest path is on top. */
function tree(scene) {
  const { record, visible, winner, context, children } = scene;
  const columns = [];
  for (const n of visible) (columns[record.nodes[n].step] ??= []).push(n);
  for (const column of columns) column.sort((a, b) => record.nodes[b].kept - record.nodes[a].kept || record.nodes[b].log - record.nodes[a].log);
  const wide = Math.max(62, Math.min(104, (context.width() - 10) / columns.length));
  const [box, line] = [wide - 18, 40];
  const place = new Map();
  columns.forEach((column, step) => column.forEach((n, level) => place.set(n, [8 + step * wide, 34 + level * line])));
  const [width, height] = [columns.length * wide + 8, 34 + line * Math.max(...columns.map((column) => column.length))];
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "application", tabindex: 0, class: "tree", "data-focus": "tree", "aria-label": "Search tree; arrow keys move, Enter tells, b branches" });
  columns.forEach((_, step) => svg.append(s("text", { x: 8 + step * wide, y: 16, class: "axis" }, step ? `step ${step}` : "start")));
  const order = [...visible].sort((a, b) => rank(a) - rank(b));
  function rank(n) {
    return (winner.has(n) ? 2 : 0) + (record.nodes[n].greedy ? 1 : 0) + (record.nodes[n].kept ? 0.5 : 0);
  }
  for (const n of order) {
    const node = record.nodes[n];
    if (node.parent === null) continue;
    const [x, y] = place.get(n);
    const [fromX, fromY] = place.get(node.parent);
    const path = (shift) => `M${fromX + box} ${fromY + 14 + shift}C${fromX + box + 14} ${fromY + 14 + shift} ${x - 14} ${y + 14 + shift} ${x} ${y + 14 + shift}`;
    svg.append(s("path", { d: path(0), class: `edge ${winner.has(n) ? "win" : node.kept ? "kept" : "cut"}`, "stroke-width": 1 + 5 * Math.exp(node.own) }));
    if (node.greedy) svg.append(s("path", { d: path(4), class: "edge greedy", "stroke-width": 2.5 }));
  }
  for (const n of visible) {
    const node = record.nodes[n];
    const [x, y] = place.get(n);
    const kind = winner.has(n) ? "win" : node.kept ? "kept" : "cut";
    svg.append(s("g", { class: `node ${kind}${n === scene.at ? " chosen" : ""}`, "data-node": n, onclick: () => choose({ node: n }) },
      s("rect", { x, y, width: box, height: 30, rx: node.end ? 15 : 5 }),
      s("text", { x: x + box / 2, y: y + 13, "text-anchor": "middle", class: "label" }, shown(node.token, Math.floor(box / 8))),
      s("text", { x: x + box / 2, y: y + 25, "text-anchor": "middle", class: "small" }, node.parent === null ? "" : `${(100 * Math.exp(node.own)).toFixed(1)} %`),
      node.greedy && node.parent !== null ? s("circle", { cx: x + box - 6, cy: y + 6, r: 3.5, class: "fill2" }) : "",
      s("title", {}, `${shown(node.token)}: p ${digits(Math.exp(node.own))}, log p of the path ${digits(node.log)}`)));
  }
  svg.addEventListener("keydown", (event) => keys(event, scene, columns, children));
  return svg;
}

function legend({ record, visible }) {
  const hidden = record.nodes.length - visible.length;
  return `green: the winner; orange: greedy; thickness: p of the token; dashed: dropped${hidden ? ` (${whole(hidden)} more not drawn)` : ""}`;
}

function keys(event, { record, at }, columns, children) {
  const node = record.nodes[at];
  const column = columns[node.step];
  const level = column.indexOf(at);
  const next = {
    ArrowLeft: node.parent, ArrowUp: column[level - 1], ArrowDown: column[level + 1],
    ArrowRight: [...children[at]].sort((a, b) => record.nodes[b].log - record.nodes[a].log)[0],
  };
  if (event.key in next) {
    event.preventDefault();
    if (next[event.key] !== undefined && next[event.key] !== null) {
      choose({ node: next[event.key] });
      const to = record.nodes[next[event.key]];
      say(`${shown(to.token)}, p ${digits(Math.exp(to.own))}`);
    }
  } else if (event.key === "b" && !node.end && !saved) choose({ prefix: node.prefix, node: undefined });
}

const pathOf = ({ nodes }, n) => {
  const path = [];
  for (let at = n; at !== null && at !== undefined; at = nodes[at].parent) path.unshift(at);
  return path.slice(1);
};
const spell = (record, path) => path.map((n) => shown(record.nodes[n].token)).join(" ");

/** In words: the two answers, and the step at which they part. */
function parting({ record }) {
  const winner = pathOf(record, record.best[0]);
  const { greedy } = record;
  const number = (id, value) => h("span", { class: "number", id }, digits(value));
  const at = winner.findIndex((n, step) => n !== greedy[step]);
  const last = record.nodes[greedy.at(-1)];
  const best = record.nodes[record.best[0]];
  const lines = [
    h("span", {}, "beam ", h("b", {}, h("bdi", { id: "winner" }, spell(record, winner))), " log p ", number("winner-log", best.log)),
    h("span", {}, "greedy ", h("b", {}, h("bdi", { id: "greedy" }, spell(record, greedy))), " log p ", number("greedy-log", last.log)),
  ];
  if (at < 0 && greedy.length === winner.length) lines.push(h("span", {}, "Both find the same answer."));
  else if (winner[at] !== undefined && greedy[at] !== undefined) {
    const [a, b] = [record.nodes[winner[at]], record.nodes[greedy[at]]];
    const ahead = Math.exp(b.own) - Math.exp(a.own);
    lines.push(h("span", {}, `They part at step ${at + 1}: greedy takes `, h("b", {}, h("bdi", {}, shown(b.token))), ahead >= 0 ? `, ahead by ${digits(ahead)} there, ` : ", ", `the beam takes `, h("b", {}, h("bdi", {}, shown(a.token))), ` and is ${digits(Math.exp(best.log - last.log), 2)} times as probable in the end.`));
  }
  return h("div", { class: "readout" }, lines);
}

/** What comes next at a node: the distribution, and where the model looks. */
function nodeCard(scene) {
  const { record, at, behind, context } = scene;
  const node = record.nodes[at];
  const before = node.end ? record.nodes[node.parent] : node;
  const path = pathOf(record, node.end ? node.parent : at);
  if (!behind) {
    const longest = before.step >= record.limit;
    return h("section", { class: "card" }, h("p", { class: "note" }, longest ? `Nothing follows here: an answer has ${record.limit} tokens at most.` : "This saved page does not hold what follows here; qkv serve can compute it."));
  }
  const { tokens, ids, probabilities, source, places } = behind.record;
  const rest = Math.max(0, 1 - probabilities.reduce((a, b) => a + b, 0));
  const wide = Math.min(context.width(), 560);
  const all = [...tokens.map((token, n) => [shown(token), probabilities[n]]), ["all others", rest]];
  const svg = bars(all.map(([name, value], n) => ({ name, value, strong: n === 0 })), { width: wide, title: "Next tokens" });
  const { data, shape: [layers, columns] } = behind.tensors.attention;
  const attention = Array.from({ length: layers }, (_, n) => h("div", { class: "field" }, h("span", { class: "label" }, `where it looks now: ${places[n]}, mean of heads`),
    h("div", { class: "picture" }, lettered(source, [...data.subarray(n * columns, (n + 1) * columns)], wide))));
  const target = (n) => (before.prefix ? `${before.prefix}.${ids[n]}` : String(ids[n]));
  const force = saved ? null : h("div", { class: "choices", role: "group", "aria-label": "Branch from here" }, h("span", { class: "note" }, "go on with"),
    tokens.slice(0, 8).map((token, n) => token !== "END" && h("button", { type: "button", "data-focus": `force ${n}`, onclick: () => choose({ prefix: target(n), node: undefined }) }, h("bdi", {}, shown(token)))));
  return figure({
    title: path.length ? `After ${spell(record, path)}` : "At the start", subtitle: `log p so far ${digits(before.log)}`, svg, name: "next tokens", after: [force, ...attention],
    rows: () => [["token", "probability"], ...all.map(([name, p]) => [name, p])], python: () => python(scene, true),
  });
}

/** Source tokens on the color of their weight. */
function lettered(tokens, values, width) {
  const svg = strip(values, { width, signed: false, names: tokens, title: tokens.map((token, n) => `${shown(token)} ${digits(values[n], 2)}`).join(", ") });
  const size = (Number(svg.getAttribute("width")) - 2) / tokens.length;
  svg.setAttribute("height", 40);
  if (size >= 8) tokens.forEach((token, n) => svg.append(s("text", { x: 1 + (n + 0.5) * size, y: 37, "text-anchor": "middle", class: "label" }, shown(token, Math.max(2, Math.floor(size / 8))))));
  return svg;
}

function tableRows({ record, asked }) {
  const score = (n) => record.nodes[n].log / record.nodes[n].step ** (asked.power / 10);
  const line = (name, n) => [name, spell(record, pathOf(record, n)), record.nodes[n].log, record.nodes[n].step, score(n), Math.exp(record.nodes[n].log)];
  return [["which", "answer", "log p", "tokens", "score", "p"], ...record.best.map((n, k) => line(`beam ${k + 1}`, n)), line("greedy", record.greedy.at(-1))];
}

function python({ record, asked, at }, node = false) {
  const prefix = (text) => `[${text.split(".").filter(Boolean).join(", ")}]`;
  const head = [...record.code, `source = [${record.ids.join(", ")}]`];
  const one = record.nodes[at];
  if (node) return [...head, `print(next_tokens(model, source, ${prefix(one.end ? record.nodes[one.parent].prefix : one.prefix)}, limits_of(model)))`, ""].join("\n");
  return [...head, `found = search_tree(model, source, limits_of(model), beams=${asked.beams}, length_power=${asked.power / 10}, prefix=${prefix(asked.prefix)})`, "print(found.branches[found.best[0]].log_probability, found.rescored)", ""].join("\n");
}

function explain(scene) {
  const { context, record, asked, at } = scene;
  const node = record.nodes[at];
  const before = node.parent === null ? null : record.nodes[node.parent];
  const p = asked.power / 10;
  context.explain({
    formula: formula(
      ["log", "p", "=", sum("t"), "log", "p", row("(", sub("y", "t"), "|", sub("y", "1"), "…", sub("y", "t−1"), ")")],
      before ? [digits(before.log), "+", "(", digits(node.own), ")", "=", digits(node.log)] : ["log", "p", "=", "0"],
      ["score", "=", over(row("log", "p"), power("n", digits(p, 1))), "=", digits(node.step ? node.log / node.step ** p : 0)]),
    values: [["token", shown(node.token)], ["p here", digits(Math.exp(node.own))], ["log p of the path", digits(node.log)], ["step", String(node.step)], ["beam", node.seen ? (node.kept ? "kept" : "looked at, dropped") : "never looked at"], ["greedy", node.greedy ? "goes through" : "does not"]],
    text: "Greedy takes the likeliest token and never looks back. A beam keeps the best few paths at every step: a token that is second now may lead to the better ending. Every node is one that the search really looked at.",
    notes: record.notes,
    python: python(scene),
  });
}

export const help = [["arrows", "in the tree: parent, best child, up, down"], ["b", "in the tree: branch here, forcing the path to this node"]];
