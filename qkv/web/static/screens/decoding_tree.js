// The search tree of screen 4.

import { saved } from "../api.js";
import { announce, digits, s, tokenText, whole } from "../dom.js";
import { choose, now } from "../state.js";

/** Dropped continuations that are drawn per step by default. */
const MAX_DROPPED = 3;

/** The visible nodes, the visible children of each node, and the path of the winner. */
export function shape({ nodes, best }) {
  const winner = new Set();
  for (let n = best[0]; n !== null; n = nodes[n].parent) winner.add(n);
  const dropped = new Map();
  const most = now().dropped ? Math.floor(1200 / Math.max(...nodes.map((node) => node.step))) : MAX_DROPPED;
  const order = nodes.map((_, n) => n).sort((a, b) => nodes[b].log_prob - nodes[a].log_prob || a - b);
  const visible = order
    .filter((n) => {
      const node = nodes[n];
      if (node.kept || node.greedy) return true;
      dropped.set(node.step, (dropped.get(node.step) ?? 0) + 1);
      return dropped.get(node.step) <= most;
    })
    .sort((a, b) => a - b);
  const children = nodes.map(() => []);
  for (const n of visible) if (nodes[n].parent !== null) children[nodes[n].parent].push(n);
  return { children, winner, visible };
}

/** The tree: columns are steps, the most probable path of a column is on top. */
export function drawTree(viewModel) {
  const { record, visible, winner, context, children } = viewModel;
  const columns = [];
  for (const n of visible) (columns[record.nodes[n].step] ??= []).push(n);
  for (const column of columns)
    column.sort((a, b) => record.nodes[b].kept - record.nodes[a].kept || record.nodes[b].log_prob - record.nodes[a].log_prob);
  const wide = Math.max(62, Math.min(104, (context.width() - 10) / columns.length));
  const [box, line] = [wide - 18, 40];
  const corners = new Map();
  columns.forEach((column, step) => column.forEach((n, level) => corners.set(n, [8 + step * wide, 34 + level * line])));
  const [width, height] = [columns.length * wide + 8, 34 + line * Math.max(...columns.map((column) => column.length))];
  const svg = s("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "application",
    tabindex: 0,
    class: "tree",
    "data-focus": "tree",
    "aria-label": "Search tree; arrow keys move, b branches",
  });
  columns.forEach((_, step) => svg.append(s("text", { x: 8 + step * wide, y: 16, class: "axis" }, step ? `step ${step}` : "start")));
  const order = [...visible].sort((a, b) => rank(a) - rank(b));
  function rank(n) {
    return (winner.has(n) ? 2 : 0) + (record.nodes[n].greedy ? 1 : 0) + (record.nodes[n].kept ? 0.5 : 0);
  }
  for (const n of order) {
    const node = record.nodes[n];
    if (node.parent === null) continue;
    const [x, y] = corners.get(n);
    const [fromX, fromY] = corners.get(node.parent);
    const path = (shift) =>
      `M${fromX + box} ${fromY + 14 + shift}C${fromX + box + 14} ${fromY + 14 + shift} ${x - 14} ${y + 14 + shift} ${x} ${y + 14 + shift}`;
    svg.append(
      s("path", {
        d: path(0),
        class: `edge ${winner.has(n) ? "win" : node.kept ? "kept" : "dropped"}`,
        "stroke-width": 1 + 5 * Math.exp(node.token_log_prob),
      }),
    );
    if (node.greedy) svg.append(s("path", { d: path(4), class: "edge greedy", "stroke-width": 2.5 }));
  }
  for (const n of visible) {
    const node = record.nodes[n];
    const [x, y] = corners.get(n);
    const kind = winner.has(n) ? "win" : node.kept ? "kept" : "dropped";
    svg.append(
      s(
        "g",
        { class: `node ${kind}${n === viewModel.at ? " chosen" : ""}`, "data-node": n, onclick: () => choose({ node: n }) },
        s("rect", { x, y, width: box, height: 30, rx: node.end ? 15 : 5 }),
        s("text", { x: x + box / 2, y: y + 13, "text-anchor": "middle", class: "label" }, tokenText(node.token, Math.floor(box / 8))),
        s(
          "text",
          { x: x + box / 2, y: y + 25, "text-anchor": "middle", class: "small" },
          node.parent === null ? "" : `${(100 * Math.exp(node.token_log_prob)).toFixed(1)} %`,
        ),
        node.greedy && node.parent !== null ? s("circle", { cx: x + box - 6, cy: y + 6, r: 3.5, class: "fill2" }) : "",
        s("title", {}, `${tokenText(node.token)}: p ${digits(Math.exp(node.token_log_prob))}, log p of the path ${digits(node.log_prob)}`),
      ),
    );
  }
  svg.addEventListener("keydown", (event) => keys(event, viewModel, columns, children));
  return svg;
}

/** The legend of the tree. */
export function legend({ record, visible }) {
  const hidden = record.nodes.length - visible.length;
  return `green: the winner; orange: greedy; thickness: p of the token; dashed: dropped${hidden ? ` (${whole(hidden)} more not drawn)` : ""}`;
}

function keys(event, { record, at }, columns, children) {
  const node = record.nodes[at];
  const column = columns[node.step];
  const level = column.indexOf(at);
  const next = {
    ArrowLeft: node.parent,
    ArrowUp: column[level - 1],
    ArrowDown: column[level + 1],
    ArrowRight: [...children[at]].sort((a, b) => record.nodes[b].log_prob - record.nodes[a].log_prob)[0],
  };
  if (event.key in next) {
    event.preventDefault();
    if (next[event.key] !== undefined && next[event.key] !== null) {
      choose({ node: next[event.key] });
      const to = record.nodes[next[event.key]];
      announce(`${tokenText(to.token)}, p ${digits(Math.exp(to.token_log_prob))}`);
    }
  } else if (event.key === "b" && !node.end && !saved) choose({ prefix: node.prefix, node: undefined });
}
