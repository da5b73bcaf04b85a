// The current choices, kept in the address bar: a copied link opens the same picture.

/** Parameters that are integers; those of the screens are added at the start. */
const integers = new Set(["table"]);
const listeners = [];
let state = {};

function read() {
  const found = {};
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (!integers.has(name)) found[name] = value;
    else if (/^-?\d{1,9}$/.test(value)) found[name] = Number(value);
  }
  return found;
}

/** Read the address bar, in which the parameters of these names are integers. */
export function startState(names) {
  for (const name of names) integers.add(name);
  state = read();
}

/** All choices so far; a parameter that was never chosen is missing. */
export const now = () => state;

/** Change parameters; undefined removes one. With `leave`, Back returns to what was there. Returns whether anything changed. */
export function choose(changes, leave = false) {
  const next = { ...state, ...changes };
  for (const name of Object.keys(next)) if (next[name] === undefined || next[name] === "") delete next[name];
  const changed = changedNames(next);
  if (!changed.size) return false;
  state = next;
  try {
    history[leave ? "pushState" : "replaceState"](null, "", "#" + new URLSearchParams(state));
  } catch {
    // a frame without an address, as in a notebook, keeps its state to itself
  }
  notify(changed);
  return true;
}

const changedNames = (next) => new Set(Object.keys({ ...state, ...next }).filter((name) => state[name] !== next[name]));

const notify = (changed) => listeners.forEach((listener) => listener(changed));

/** Draw the current choices again. */
export const redraw = () => notify(new Set());

/** Call `listener` with the set of changed names after every change. */
export const onChange = (listener) => listeners.push(listener);

addEventListener("hashchange", () => {
  const next = read();
  const changed = changedNames(next);
  state = next;
  if (changed.size) notify(changed);
});
