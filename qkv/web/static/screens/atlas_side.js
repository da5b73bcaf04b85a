// The side panel of screen 1: thumbnails of all heads, in a chosen order.

import { request } from "../api.js";
import { onTheme } from "../color.js";
import { digits, h, within } from "../dom.js";
import { thumbnail } from "../heat.js";
import { choose, now } from "../state.js";

const SORTS = [
  ["", "layer and head"],
  ["previous", "weight on the previous token"],
  ["first", "weight on the first token"],
  ["itself", "weight on itself"],
  ["entropy", "entropy"],
  ["largest", "largest weight"],
];

/** The chosen order; by default that of the model. */
const currentSort = () => (SORTS.some(([value]) => value === now().sort) ? now().sort : "");

let built = { key: null };
onTheme(() => (built = { key: null }));

/** Whether the thumbnails have been drawn. */
export const hasThumbnails = () => Boolean(built.box);

/** Draw the thumbnails of all heads into the side panel. */
export async function drawSide(viewModel) {
  const { context, overview } = viewModel;
  const key = JSON.stringify([context.params(), currentSort()]);
  if (built.key !== key) {
    const { record, tensors } = await request("thumbnails", context.params());
    built = { key, box: thumbnails(overview, record, tensors.thumbnails.data) };
  }
  for (const button of built.box.querySelectorAll("button")) {
    const on = Number(button.dataset.site) === viewModel.siteIndex && Number(button.dataset.head) === viewModel.head;
    button.setAttribute("aria-pressed", String(on));
    button.tabIndex = on ? 0 : -1;
  }
  if (!built.box.querySelector("[tabindex='0']")) built.box.querySelector("button").tabIndex = 0;
  const sort = h(
    "select",
    { id: "sort", "data-focus": "sort", onchange: () => choose({ sort: sort.value }) },
    SORTS.map(([value, text]) => h("option", { value }, text)),
  );
  sort.value = currentSort();
  context.side(() =>
    h(
      "section",
      { class: "card" },
      h("h3", {}, "All heads"),
      h("div", { class: "field" }, h("label", { for: "sort" }, "Order by"), sort),
      built.box,
      h(
        "button",
        {
          type: "button",
          "data-focus": "mean",
          "aria-pressed": String(viewModel.head === -1),
          onclick: () => choose({ site: viewModel.siteIndex, head: viewModel.head === -1 ? 0 : -1 }),
        },
        `mean of ${viewModel.site.name}`,
      ),
    ),
  );
}

function thumbnails(overview, { shapes, summaries }, bytes) {
  const all = [];
  let at = 0;
  overview.sites.forEach((site, index) => {
    const [height, width] = shapes[index];
    for (let head = 0; head < site.heads; head++, at += height * width) {
      all.push({
        site: index,
        head,
        name: site.name,
        summary: summaries[index][head],
        canvas: thumbnail(bytes.subarray(at, at + height * width), height, width),
      });
    }
  });
  const sort = currentSort();
  if (sort) all.sort((a, b) => b.summary[sort] - a.summary[sort]);
  const most = Math.max(...overview.sites.map((site) => site.heads));
  const columns = sort ? Math.min(6, all.length) : most;
  const box = h("div", { class: "atlas", role: "group", "aria-label": "Heads; arrow keys move" });
  box.style.gridTemplateColumns = `repeat(${columns}, minmax(16px, ${columns > 6 ? 28 : 52}px))`;
  let last = null;
  for (const one of all) {
    if (!sort && one.site !== last) box.append(h("span", { class: "site" }, one.name));
    const fresh = !sort && one.site !== last;
    last = one.site;
    const words = `${one.name}, head ${one.head + 1}`;
    const button = h(
      "button",
      {
        type: "button",
        title: `${words}: ${summaryText(one.summary)}`,
        "aria-label": words,
        "data-site": one.site,
        "data-head": one.head,
        "data-focus": `head ${one.site} ${one.head}`,
        onclick: () => choose({ site: one.site, head: one.head, row: now().row, column: undefined }),
      },
      one.canvas,
      sort && h("span", { class: "value" }, digits(one.summary[sort], 2)),
    );
    if (fresh) button.style.gridColumnStart = "1";
    box.append(button);
  }
  box.addEventListener("keydown", (event) => walk(event, [...box.querySelectorAll("button")], columns));
  return box;
}

const summaryText = (summary) =>
  [
    `entropy ${digits(summary.entropy, 2)} bits`,
    ...["previous", "first", "itself"].map((name) => `${name} ${digits(summary[name], 2)}`),
  ].join(", ");

/** Move among the buttons of a grid by arrow keys. */
function walk(event, buttons, columns) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
  const at = buttons.indexOf(event.target);
  if (!step || at < 0) return;
  event.preventDefault();
  const next = buttons[within(at + step, buttons.length)];
  next.tabIndex = 0;
  next.focus();
}
