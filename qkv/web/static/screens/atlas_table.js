// The values of one head as CSV rows and as a table, for screen 1.

import { digits, h, tokenText } from "../dom.js";
import { rangeText, viewOf } from "../heat.js";

/** The drawn part of the matrix, and the sum of the chosen rows. */
export function csvRows({ matrix, rows }, { view }) {
  const columns = Array.from({ length: view.columns }, (_, n) => view.left + n);
  const lines = Array.from({ length: view.rows }, (_, n) => view.top + n);
  const out = [["", ...columns.map((j) => String(matrix.columnLabels[j]))]];
  for (const i of lines) out.push([String(matrix.rowLabels[i]), ...columns.map((j) => matrix.data[i * matrix.columns + j])]);
  if (rows.length > 1)
    out.push(["sum of the chosen rows", ...columns.map((j) => rows.reduce((total, i) => total + matrix.data[i * matrix.columns + j], 0))]);
  return out;
}

/** The same values as a table: at most 24 rows and columns around the cell. */
export function cellTable({ matrix, row, column, site }) {
  const view = viewOf(matrix.rows, matrix.columns, 24, row, column);
  const columns = Array.from({ length: view.columns }, (_, n) => view.left + n);
  const isPart = view.rows < matrix.rows || view.columns < matrix.columns;
  const range = isPart ? `; ${rangeText(view, matrix)}, around the cell; the CSV has more` : "";
  return h(
    "table",
    {},
    h("caption", {}, `Attention weights, rows: ${site.rows}, columns: ${site.columns}${range}`),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, ""),
        columns.map((j) => h("th", { scope: "col" }, h("bdi", {}, tokenText(matrix.columnLabels[j])))),
      ),
    ),
    h(
      "tbody",
      {},
      Array.from({ length: view.rows }, (_, n) => view.top + n).map((i) =>
        h(
          "tr",
          { class: i === row ? "strong" : null },
          h("th", { scope: "row" }, h("bdi", {}, tokenText(matrix.rowLabels[i]))),
          columns.map((j) => h("td", {}, site.causal && j > i ? "–" : digits(matrix.data[i * matrix.columns + j]))),
        ),
      ),
    ),
  );
}
