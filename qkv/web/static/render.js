// Replace the contents of a box, keeping the focus and a slider that is being dragged.

/** Replace the children of a box. A child that is a function is called before the old children are removed. */
export function render(box, ...children) {
  const focus = box.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  const used = box.querySelector("input[type=range]:active") ?? box.querySelector("input[type=range]:focus");
  const fresh = children
    .map((child) => (typeof child === "function" ? child() : child))
    .flat(4)
    .filter(Boolean);
  const twin = used && twinOf(used, fresh);
  if (twin) replaceAround(box, fresh, used, twin);
  else box.replaceChildren(...fresh);
  if (focus && !box.contains(document.activeElement)) box.querySelector(named(focus))?.focus({ preventScroll: true });
}

const named = (focus) => `[data-focus="${CSS.escape(focus)}"]`;

/** The new slider that replaces the one in use. */
function twinOf(used, fresh) {
  const found = fresh.map((child) => (child.matches(named(used.dataset.focus)) ? child : child.querySelector(named(used.dataset.focus))));
  return found.find(Boolean);
}

/** Replace everything except the boxes around the slider: a browser ends the drag of an element that is moved. */
function replaceAround(box, fresh, used, twin) {
  const holder = [...box.childNodes].find((node) => node.contains(used));
  const index = fresh.findIndex((node) => node.contains(twin));
  for (const node of [...box.childNodes]) if (node !== holder) node.remove();
  holder.before(...fresh.slice(0, index));
  holder.after(...fresh.slice(index + 1));
  if (holder === used) adopt(used, twin);
  else replaceAround(holder, [...fresh[index].childNodes], used, twin);
}

/** Take over the attributes and the handler of the new slider. */
function adopt(used, twin) {
  for (const { name, value } of twin.attributes) used.setAttribute(name, value);
  used.oninput = twin.oninput;
  if (!used.matches(":active")) used.value = twin.value;
}
