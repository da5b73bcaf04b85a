// Screen 4: a beam search as a tree, with the greedy path in it.

import { isAvailable, request, saved } from "../api.js";
import { bars } from "../chart.js";
import { digits, h, s, slider, tokenText, whole } from "../dom.js";
import { drawTree, legend, shape } from "./decoding_tree.js";
import { figure } from "../figure.js";
import { formula, over, power, row, sub, sum } from "../formula.js";
import { strip } from "../heat.js";
import { choose, now } from "../state.js";

export const title = "Decoding";
const MAX_BEAMS = 16;
/** In tenths. */
const MAX_LENGTH_PENALTY = 20;

const between = (low, value, high) => Math.max(low, Math.min(value, high));

export async function draw(context) {
  const { text } = context.params();
  const prefix = /^\d+(\.\d+)*$/.test(now().prefix) ? now().prefix : "";
  const settings = {
    beams: between(1, now().beams ?? 4, MAX_BEAMS),
    length_penalty: between(0, now().length_penalty ?? 0, MAX_LENGTH_PENALTY),
    prefix,
  };
  drawSide(context, settings); // before the request, so that a choice that fails can be undone
  const { record } = await request("search", { text, ...settings });
  const viewModel = { context, settings, record, ...shape(record) };
  viewModel.at = viewModel.visible.includes(now().node) ? now().node : record.best[0];
  viewModel.next = await requestNext(viewModel, context.params().text);
  drawSide(context, settings, record);
  const svg = drawTree(viewModel);
  context.main({
    title: "Beam and greedy search in one tree",
    subtitle: `beam of ${settings.beams}, ${whole(record.nodes.length - 1)} continuations scored`,
    svg,
    name: `tree of ${settings.beams} beams`,
    rows: () => tableRows(viewModel),
    python: () => python(viewModel),
    before: divergence(viewModel),
    below: nodeCard(viewModel),
    after: [
      h("p", { class: "note", id: "legend" }, legend(viewModel)),
      h(
        "div",
        { class: "choices" },
        h(
          "button",
          {
            type: "button",
            "data-focus": "dropped",
            "aria-pressed": String(Boolean(now().dropped)),
            onclick: () => choose({ dropped: now().dropped ? undefined : 1 }),
          },
          "all dropped continuations",
        ),
      ),
    ],
  });
  explain(viewModel);
  const winner = record.nodes[record.best[0]];
  const off = Math.abs(winner.log_prob - record.rescored);
  context.checks(
    [
      { words: `winner scored again in one pass, without a KV cache: off by ${digits(off, 6)}`, good: off < 1e-3 },
      viewModel.next && sumCheck(viewModel.next.record.total),
    ].filter(Boolean),
    record.seconds,
  );
  const line = viewModel.context.figure()?.querySelector(`[data-node="${viewModel.at}"]`);
  if (document.activeElement?.dataset.focus === "tree") line?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function sumCheck(total) {
  const off = Math.abs(total - 1);
  return { words: `next tokens sum to 1 within ${digits(off, 6)}`, good: off < 1e-4 };
}

/** The next tokens at the chosen node; null if no token can follow or a saved page does not hold them. */
async function requestNext({ record, at }, text) {
  const node = record.nodes[at];
  const { prefix } = node.end ? record.nodes[node.parent] : node;
  if (!isAvailable("node", { prefix }) || prefix.split(".").filter(Boolean).length >= record.max_length) return null;
  return request("node", { text, prefix });
}

/** The choices; the names of forced tokens come with the response. */
function drawSide(context, settings, record) {
  const forced = settings.prefix.split(".").filter(Boolean).length;
  const tokens = !record
    ? "…"
    : record.nodes
        .slice(1, 1 + forced)
        .map((node) => tokenText(node.token))
        .join(" ");
  context.side(() =>
    h(
      "section",
      { class: "card" },
      h("h3", {}, "Search"),
      saved
        ? h("p", { class: "note" }, "Another beam needs qkv serve.")
        : [
            slider("Beams:", {
              value: settings.beams,
              low: 1,
              high: MAX_BEAMS,
              text: String,
              change: (value) => choose({ beams: value, node: undefined }),
            }),
            slider("Length penalty p (scores ÷ lengthᵖ):", {
              value: settings.length_penalty,
              low: 0,
              high: MAX_LENGTH_PENALTY,
              text: (n) => String(n / 10),
              change: (value) => choose({ length_penalty: value, node: undefined }),
            }),
          ],
      forced
        ? [
            h("p", { class: "note" }, "Forced to begin with ", h("b", {}, h("bdi", {}, tokens))),
            h(
              "button",
              { type: "button", "data-focus": "unforce", onclick: () => choose({ prefix: undefined, node: undefined }) },
              "remove the forced prefix",
            ),
          ]
        : null,
    ),
  );
}

const pathOf = ({ nodes }, n) => {
  const path = [];
  for (let at = n; at !== null && at !== undefined; at = nodes[at].parent) path.unshift(at);
  return path.slice(1);
};
const spell = (record, path) => path.map((n) => tokenText(record.nodes[n].token)).join(" ");

/** Both answers as text, and the step at which they diverge. */
function divergence({ record }) {
  const winner = pathOf(record, record.best[0]);
  const { greedy } = record;
  const number = (id, value) => h("span", { class: "number", id }, digits(value));
  const at = winner.findIndex((n, step) => n !== greedy[step]);
  const last = record.nodes[greedy.at(-1)];
  const best = record.nodes[record.best[0]];
  const lines = [
    h("span", {}, "beam ", h("b", {}, h("bdi", { id: "winner" }, spell(record, winner))), " log p ", number("winner-log", best.log_prob)),
    h("span", {}, "greedy ", h("b", {}, h("bdi", { id: "greedy" }, spell(record, greedy))), " log p ", number("greedy-log", last.log_prob)),
  ];
  if (at < 0 && greedy.length === winner.length) lines.push(h("span", {}, "Both find the same answer."));
  else if (winner[at] !== undefined && greedy[at] !== undefined) {
    const [a, b] = [record.nodes[winner[at]], record.nodes[greedy[at]]];
    const ahead = Math.exp(b.token_log_prob) - Math.exp(a.token_log_prob);
    const ratio = Math.exp(best.log_prob - last.log_prob);
    const token = (node) => h("b", {}, h("bdi", {}, tokenText(node.token)));
    lines.push(
      h(
        "span",
        {},
        `They diverge at step ${at + 1}: greedy takes `,
        token(b),
        ahead >= 0 ? `, ahead by ${digits(ahead)} there, ` : ", ",
        "the beam takes ",
        token(a),
        ` and its answer is ${digits(ratio, 2)} times as probable.`,
      ),
    );
  }
  return h("div", { class: "readout" }, lines);
}

/** The next tokens at a node: their distribution, and the attention to the source. */
function nodeCard(viewModel) {
  const { record, at, next, context } = viewModel;
  const node = record.nodes[at];
  const before = node.end ? record.nodes[node.parent] : node;
  const path = pathOf(record, node.end ? node.parent : at);
  if (!next) {
    const longest = before.step >= record.max_length;
    return h(
      "section",
      { class: "card" },
      h(
        "p",
        { class: "note" },
        longest
          ? `No token follows here: an answer has at most ${record.max_length} tokens.`
          : "This saved page does not hold the next tokens here; qkv serve can compute them.",
      ),
    );
  }
  const { tokens, ids, probabilities, source, sites } = next.record;
  const rest = Math.max(0, 1 - probabilities.reduce((a, b) => a + b, 0));
  const wide = Math.min(context.width(), 560);
  const all = [...tokens.map((token, n) => [tokenText(token), probabilities[n]]), ["all others", rest]];
  const svg = bars(
    all.map(([name, value], n) => ({ name, value, strong: n === 0 })),
    { width: wide, title: "Next tokens" },
  );
  const {
    data,
    shape: [layers, columns],
  } = next.tensors.attention;
  const attention = Array.from({ length: layers }, (_, n) =>
    h(
      "div",
      { class: "field" },
      h("span", { class: "label" }, `attention to the source: ${sites[n]}, mean of heads`),
      h("div", { class: "picture" }, tokenStrip(source, [...data.subarray(n * columns, (n + 1) * columns)], wide)),
    ),
  );
  const target = (n) => (before.prefix ? `${before.prefix}.${ids[n]}` : String(ids[n]));
  const force = saved
    ? null
    : h(
        "div",
        { class: "choices", role: "group", "aria-label": "Branch from here" },
        h("span", { class: "note" }, "continue with"),
        tokens
          .slice(0, 8)
          .map(
            (token, n) =>
              token !== "END" &&
              h(
                "button",
                { type: "button", "data-focus": `force ${n}`, onclick: () => choose({ prefix: target(n), node: undefined }) },
                h("bdi", {}, tokenText(token)),
              ),
          ),
      );
  return figure({
    title: path.length ? `After ${spell(record, path)}` : "At the start",
    subtitle: `log p so far ${digits(before.log_prob)}`,
    svg,
    name: "next tokens",
    after: [force, ...attention],
    rows: () => [["token", "probability"], ...all.map(([name, p]) => [name, p])],
    python: () => python(viewModel, true),
  });
}

/** Source tokens on the color of their weights. */
function tokenStrip(tokens, values, width) {
  const svg = strip(values, {
    width,
    signed: false,
    names: tokens,
    title: tokens.map((token, n) => `${tokenText(token)} ${digits(values[n], 2)}`).join(", "),
  });
  const size = (Number(svg.getAttribute("width")) - 2) / tokens.length;
  svg.setAttribute("height", 40);
  if (size >= 8)
    tokens.forEach((token, n) =>
      svg.append(
        s(
          "text",
          { x: 1 + (n + 0.5) * size, y: 37, "text-anchor": "middle", class: "label" },
          tokenText(token, Math.max(2, Math.floor(size / 8))),
        ),
      ),
    );
  return svg;
}

function tableRows({ record, settings }) {
  const score = (n) => record.nodes[n].log_prob / record.nodes[n].step ** (settings.length_penalty / 10);
  const line = (name, n) => [
    name,
    spell(record, pathOf(record, n)),
    record.nodes[n].log_prob,
    record.nodes[n].step,
    score(n),
    Math.exp(record.nodes[n].log_prob),
  ];
  return [
    ["which", "answer", "log p", "tokens", "score", "p"],
    ...record.best.map((n, k) => line(`beam ${k + 1}`, n)),
    line("greedy", record.greedy.at(-1)),
  ];
}

function python({ record, settings, at }, node = false) {
  const prefix = (text) => `[${text.split(".").filter(Boolean).join(", ")}]`;
  const head = [...record.code, `source = [${record.ids.join(", ")}]`];
  const one = record.nodes[at];
  if (node) {
    const before = prefix(one.end ? record.nodes[one.parent].prefix : one.prefix);
    return [...head, `print(next_token_log_probs(model, source, ${before}, search_limits(model)))`, ""].join("\n");
  }
  const options = `beams=${settings.beams}, length_penalty=${settings.length_penalty / 10}, prefix=${prefix(settings.prefix)}`;
  return [
    ...head,
    `tree = search_tree(model, source, search_limits(model), ${options})`,
    "print(tree.nodes[tree.best[0]].log_probability, tree.rescored)",
    "",
  ].join("\n");
}

function beamStatus(node) {
  if (!node.seen_by_beam) return "never scored";
  return node.kept ? "kept" : "scored, dropped";
}

function explain(viewModel) {
  const { context, record, settings, at } = viewModel;
  const node = record.nodes[at];
  const before = node.parent === null ? null : record.nodes[node.parent];
  const p = settings.length_penalty / 10;
  context.explain({
    formula: formula(
      ["log", "p", "=", sum("t"), "log", "p", row("(", sub("y", "t"), "|", sub("y", "1"), "…", sub("y", "t−1"), ")")],
      before ? [digits(before.log_prob), "+", "(", digits(node.token_log_prob), ")", "=", digits(node.log_prob)] : ["log", "p", "=", "0"],
      ["score", "=", over(row("log", "p"), power("n", digits(p, 1))), "=", digits(node.step ? node.log_prob / node.step ** p : 0)],
    ),
    values: [
      ["token", tokenText(node.token)],
      ["p of the token", digits(Math.exp(node.token_log_prob))],
      ["log p of the path", digits(node.log_prob)],
      ["step", String(node.step)],
      ["beam", beamStatus(node)],
      ["greedy path", node.greedy ? "yes" : "no"],
    ],
    text: [
      "Greedy search takes the most probable token at each step. A beam keeps the best few paths: ",
      "a token that is second now may lead to a more probable answer. Every node was really scored by one of the searches.",
    ].join(""),
    notes: record.notes,
    python: python(viewModel),
  });
}

export const help = [
  ["arrows", "in the tree: parent, best child, up, down"],
  ["b", "in the tree: force the path to this node"],
];
