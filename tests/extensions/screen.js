// The number of attention sites, as an example of a screen.

import { request } from "../api.js";
import { s } from "../dom.js";

export const title = "Counts";

export async function draw(context) {
  const { record } = await request("counts", context.params());
  const text = `${record.sites} attention sites`;
  context.main({
    title,
    subtitle: "of this model",
    name: "counts",
    svg: s("svg", { viewBox: "0 0 200 20" }, s("text", { id: "counts", y: 15 }, text)),
    rows: () => [["sites"], [record.sites]],
    python: () => "",
  });
}
