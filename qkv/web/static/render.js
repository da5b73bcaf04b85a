// What a box holds, replaced: whoever had the focus gets it back, and a slider that is being used stays where it is.

/** Put children into a box in place of what it holds. A function is called when the old is still there. */
export function render(box, ...children) {
  const focus = box.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  const used = box.querySelector("input[type=range]:active") ?? box.querySelector("input[type=range]:focus");
  const fresh = children.map((child) => (typeof child === "function" ? child() : child)).flat(4).filter(Boolean);
  const twin = used && twinOf(used, fresh);
  if (twin) replaceAround(box, fresh, used, twin);
  else box.replaceChildren(...fresh);
  if (focus && !box.contains(document.activeElement)) box.querySelector(named(focus))?.focus({ preventScroll: true });
}

const named = (focus) => `[data-focus="${CSS.escape(focus)}"]`;

function twinOf(used, fresh) {
  const found = fresh.map((child) => (child.matches(named(used.dataset.focus)) ? child : child.querySelector(named(used.dataset.focus))));
  return found.find(Boolean);
}

/** All is replaced but the boxes around the slider: a browser ends the drag of one that is taken out, if only to be moved. */
function replaceAround(box, fresh, used, twin) {
  const holder = [...box.childNodes].find((node) => node.contains(used));
  const place = fresh.findIndex((node) => node.contains(twin));
  for (const node of [...box.childNodes]) if (node !== holder) node.remove();
  holder.before(...fresh.slice(0, place));
  holder.after(...fresh.slice(place + 1));
  if (holder === used) adopt(used, twin);
  else replaceAround(holder, [...fresh[place].childNodes], used, twin);
}

function adopt(used, twin) {
  for (const { name, value } of twin.attributes) used.setAttribute(name, value);
  used.oninput = twin.oninput;
  if (!used.matches(":active")) used.value = twin.value;
}
