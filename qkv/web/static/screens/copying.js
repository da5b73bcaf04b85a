// The copying problem with its slider, for screen 3.

import { WIDE, chart, joinPictures } from "../chart.js";
import { digits, h, slider } from "../dom.js";
import { figure } from "../figure.js";
import { heat, largestOf } from "../heat.js";
import { choose, now } from "../state.js";

/** The copying problem: orthogonal a, b, c, d of norm beta, and tokens that share one of them. */
export function copyingCard({ context, kind, reference }, exact, other) {
  const quarters = Math.max(1, Math.min(now().quarters ?? 4, exact.betas.length));
  const [left, right] = [exact, other].map((found) => found.results[quarters - 1]);
  const readouts = [
    ["x₁ keeps", left.weights[0][0], "copy-weight"],
    ["takes from x₃", left.weights[0][2], "copy-other"],
    ["error of x₁", left.errors[0], "copy-error"],
    ["of x₂", left.errors[1], "copy-error-2"],
  ];
  const note = [
    "a, b, c, d are orthogonal, yet x₁ and x₃ share d: their score is β², not 0. ",
    "So token 1 takes from token 3 as well, and copying holds only in the limit of large β.",
  ].join("");
  return figure({
    title: "When does attention copy?",
    subtitle: "q = k = v = x, scale 1",
    name: `copying beta ${quarters / 4}`,
    svg: copyingPictures(context.width(), { kind, reference, quarters, exact, other }),
    rows: () => [
      [
        "token",
        "norm",
        "score with x1",
        "with x2",
        "with x3",
        `${reference} weight x1`,
        "x2",
        "x3",
        "error",
        `${kind} weight x1`,
        "x2",
        "x3",
        "error",
      ],
      ...["x1", "x2", "x3"].map((name, n) => [
        name,
        left.norms[n],
        ...left.scores[n],
        ...left.weights[n],
        left.errors[n],
        ...right.weights[n],
        right.errors[n],
      ]),
    ],
    before: slider("β, the norm of a, b, c and d:", {
      value: quarters,
      low: 1,
      high: exact.betas.length,
      text: (n) => String(n / 4),
      change: (value) => choose({ quarters: value }),
    }),
    after: [
      h(
        "div",
        { class: "readout" },
        readouts.map(([text, value, id]) => h("span", {}, `${text} `, h("span", { class: "number", id }, digits(value, 6)))),
      ),
      h("p", { class: "note" }, note),
    ],
    python: () =>
      `from qkv.attention import Softmax\nfrom qkv.explain import copying\n\nprint(copying(${quarters / 4}, Softmax(scale=1.0)))\n`,
  });
}

/** Both weight matrices at this beta, and the errors over beta. */
function copyingPictures(width, { kind, reference, quarters, exact, other }) {
  const sideBySide = width > WIDE;
  const rowLabels = ["x₁=d+b", "x₂=a", "x₃=c+d"];
  const [left, right] = [exact, other].map((found) => found.results[quarters - 1].weights.flat());
  const all = [...left, ...right];
  const scale = { largest: Math.max(1, largestOf(all)), signed: all.some((value) => value < 0) };
  const map = (weights, heading, bare) => {
    const matrix = { data: Float32Array.from(weights), rows: 3, columns: 3, rowLabels, columnLabels: ["x₁", "x₂", "x₃"] };
    const mapWidth = sideBySide ? (width - 28) * (bare ? 0.24 : 0.38) : width;
    const title = `${heading} at beta ${quarters / 4}`;
    return { heading, svg: heat(matrix, { bare, width: mapWidth, title, rowTitle: "", columnTitle: "", ...scale }).svg };
  };
  const line = (found, token, name, style) => ({
    name,
    style,
    points: found.betas.map((beta, n) => [beta, found.results[n].errors[token]]),
  });
  const curve = chart({
    title: "Copying error against beta",
    xTitle: "β",
    width: sideBySide ? (width - 28) * 0.38 : width,
    height: 210,
    log: true,
    mark: quarters / 4,
    series: [line(exact, 0, `x₁ ${reference}`, 1), line(exact, 1, `x₂ ${reference}`, 2), line(other, 0, `x₁ ${kind}`, 4)],
  });
  const error = { heading: "copying error ‖y − x‖ / ‖x‖", svg: curve };
  return joinPictures([map(left, reference, false), map(right, kind, sideBySide), error], width);
}
