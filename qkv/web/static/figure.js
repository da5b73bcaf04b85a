// A picture in its card: heading, picture, text, export buttons, and the same values as a table.

import { digits, h, tokenText } from "./dom.js";
import { exportButtons } from "./export.js";
import { choose, now } from "./state.js";

/** rows() returns the values, header first: for the CSV and, unless `table` builds another, for the table. */
export function figure({ title, subtitle, before, svg, after, name, rows, python, table }) {
  const on = Boolean(now().table);
  return h(
    "section",
    { class: "card" },
    h("div", { class: "head" }, h("h2", {}, title), subtitle && h("span", { class: "quiet" }, subtitle)),
    before,
    h("figure", { class: "picture" }, svg),
    after,
    exportButtons(
      { name: name.replace(/[^a-z0-9.]+/gi, "-"), svg: () => svg, rows, python },
      { on, toggle: () => choose({ table: on ? undefined : 1 }) },
    ),
    on &&
      h(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table: ${title}`, "data-focus": `table ${name}` },
        table ? table() : plainTable(title, rows()),
      ),
  );
}

/** A table of at most 300 rows. */
export function plainTable(caption, [header, ...rows]) {
  const most = 300;
  return h(
    "table",
    {},
    h("caption", {}, rows.length > most ? `${caption}; the first ${most} of ${rows.length} rows, the CSV has all` : caption),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        header.map((text) => h("th", { scope: "col" }, h("bdi", {}, tokenText(text, 24).replaceAll("␣", " ")))),
      ),
    ),
    h(
      "tbody",
      {},
      rows.slice(0, most).map((line) =>
        h(
          "tr",
          {},
          line.map((value, n) =>
            h(
              n ? "td" : "th",
              n ? {} : { scope: "row" },
              typeof value === "number" ? (Number.isInteger(value) ? String(value) : digits(value, 6)) : h("bdi", {}, tokenText(value, 24)),
            ),
          ),
        ),
      ),
    ),
  );
}
