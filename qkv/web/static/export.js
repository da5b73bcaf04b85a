// Export of pictures and values: SVG as on the screen, PNG at twice the size, CSV, Python.

import { announce, h } from "./dom.js";

const STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "font-size",
  "font-family",
  "font-weight",
  "text-anchor",
  "opacity",
];

/** The picture as a self-contained SVG text: the page's styles become attributes. */
function svgText(svg) {
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")];
  const copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((original, n) => {
    if (original.tagName === "image" || original.tagName === "stop") return;
    const style = getComputedStyle(original);
    for (const name of STYLES) copies[n].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "tabindex", "data-focus", "role"]) copies[n].removeAttribute(name);
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  paper.setAttribute("width", "100%");
  paper.setAttribute("height", "100%");
  paper.setAttribute(
    "fill",
    getComputedStyle(document.documentElement).getPropertyValue("--paper") ||
      getComputedStyle(document.querySelector(".card")).backgroundColor,
  );
  copy.prepend(paper);
  return new XMLSerializer().serializeToString(copy);
}

/** The picture as a PNG blob. */
async function png(svg, scale = 2) {
  const picture = new Image();
  picture.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svgText(svg));
  await picture.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [svg.width.baseVal.value * scale, svg.height.baseVal.value * scale];
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

/** Rows of texts and values as CSV; texts are always quoted. */
function csv(rows) {
  const cell = (value) => (typeof value === "number" ? String(value) : `"${String(value).replaceAll('"', '""')}"`);
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", { class: "unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  announce("Copied.");
  const before = button.textContent;
  button.textContent = "copied";
  setTimeout(() => (button.textContent = before), 1200);
}

/** Export buttons of a picture {name, svg(), rows(), python()}; `table` = {on, toggle} switches its table. */
export function exportButtons(picture, table) {
  const button = (text, label, act) =>
    h(
      "button",
      { type: "button", "aria-label": label, "data-focus": `${label} ${picture.name}`, onclick: (event) => act(event.currentTarget) },
      text,
    );
  const toggle = button("table", "Show as a table", table.toggle);
  toggle.setAttribute("aria-pressed", String(table.on));
  return h(
    "div",
    { class: "choices", role: "group", "aria-label": "Export" },
    toggle,
    button("SVG", "Save as SVG", () => save(new Blob([svgText(picture.svg())], { type: "image/svg+xml" }), `${picture.name}.svg`)),
    button("PNG", "Save as PNG", async () => save(await png(picture.svg()), `${picture.name}.png`)),
    button("CSV", "Save as CSV", () => save(new Blob([csv(picture.rows())], { type: "text/csv" }), `${picture.name}.csv`)),
    button("copy Python", "Copy as Python", (it) => copy(picture.python(), it)),
  );
}
