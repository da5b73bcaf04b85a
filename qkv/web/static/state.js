// What is shown, kept in the address: a copied link opens the same picture.

const NUMBERS = new Set(["place", "head", "row", "column", "zoom", "table", "top", "beams", "quarters", "order", "node", "step", "power", "dropped", "heat", "even"]);
let state = read();
const listeners = [];

function read() {
  const found = {};
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (!NUMBERS.has(name)) found[name] = value;
    else if (/^-?\d{1,9}$/.test(value)) found[name] = Number(value);
  }
  return found;
}

/** All that was chosen so far; what was not is not there. */
export const now = () => state;

/** Choose; undefined forgets. Those who listen are told which names changed. `leave`: what was there is one Back away. Returns whether anything changed. */
export function choose(changes, leave = false) {
  const next = { ...state, ...changes };
  for (const name of Object.keys(next)) if (next[name] === undefined || next[name] === "") delete next[name];
  const changed = new Set(Object.keys({ ...state, ...next }).filter((name) => state[name] !== next[name]));
  if (!changed.size) return false;
  state = next;
  try {
    history[leave ? "pushState" : "replaceState"](null, "", "#" + new URLSearchParams(state));
  } catch {
    // a frame without an address of its own, as in a notebook, keeps its state to itself
  }
  tell(changed);
  return true;
}

const tell = (changed) => listeners.forEach((listener) => listener(changed));

/** Draw once more what is chosen already. */
export const again = () => tell(new Set());

export const listen = (listener) => listeners.push(listener);

addEventListener("hashchange", () => {
  const next = read();
  const changed = new Set(Object.keys({ ...state, ...next }).filter((name) => state[name] !== next[name]));
  state = next;
  if (changed.size) tell(changed);
});
