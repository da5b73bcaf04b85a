// Requests to the server that sent this page, or to the responses embedded in a saved page.

const embedded = new Map([...document.querySelectorAll("script.recorded")].map((element) => [element.dataset.key, element]));
const cache = new Map();
const CACHE_SIZE = 24;
const MAX_RETRIES = 20;
let turn = 0;

/** Whether this page was saved: then only embedded responses are available. */
export const saved = embedded.size > 0;

/** Import the module of a screen; a saved page finds it in its import map. */
export const importScreen = (module) => import(saved ? `qkv/${module}` : `./${module}`);

/** {record, tensors} of a request; rejects with an error message for the reader. */
export function request(name, params = {}) {
  const key = `${name} ${canonical(params)}`;
  if (!cache.has(key)) {
    abortOutdated();
    const controller = new AbortController();
    const entry = { controller, pending: true, response: saved ? readEmbedded(name, params) : fetchResponse(name, params, controller.signal) };
    cache.set(key, entry);
    entry.response.then(
      () => (entry.pending = false),
      () => cache.get(key) === entry && cache.delete(key),
    );
    if (cache.size > CACHE_SIZE) cache.delete(cache.keys().next().value);
  }
  cache.get(key).turn = turn;
  return cache.get(key).response;
}

/** Begin another picture: requests that it does not make as well are outdated. */
export const startTurn = () => turn++;

/** Abort outdated requests, so that the server stops computing them. */
export function abortOutdated() {
  for (const [key, entry] of [...cache]) {
    if (!entry.pending || entry.turn === turn) continue;
    cache.delete(key);
    entry.controller.abort();
  }
}

/** Whether a request can be answered: always by a server, by a saved page if it holds the response. */
export const isAvailable = (name, params) => !saved || embedded.has(`${name} ${canonical(params)}`);

const canonical = (params) => JSON.stringify(params, Object.keys(params).sort());

async function readEmbedded(name, { text, answer, ...rest }) {
  const element = embedded.get(`${name} ${canonical(rest)}`);
  if (!element) throw new Error("This saved page does not hold that; `qkv serve` can compute it.");
  const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
  return unpack(bytes.buffer);
}

async function fetchResponse(name, params, signal, retries = MAX_RETRIES) {
  let response;
  try {
    response = await fetch(`/api/${name}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(params),
      signal,
    });
  } catch {
    throw new Error("The server does not answer: it was stopped, or this page is from an earlier one.");
  }
  if (response.ok) return unpack(await response.arrayBuffer());
  if (response.status === 429 && retries && !signal.aborted) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * Number(response.headers.get("retry-after") ?? 1)));
    if (!signal.aborted) return fetchResponse(name, params, signal, retries - 1);
  }
  const body = await response.text();
  let message = body.trim();
  try {
    message = JSON.parse(body).error;
  } catch {
    // access control answers in plain text
  }
  throw new Error(message || `The server answered ${response.status}.`);
}

/** Four bytes of length, a JSON record, then the tensors: see qkv/web/wire.py. */
function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const record = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const tensors = {};
  let offset = 4 + length;
  for (const { name, type, shape } of record.tensors) {
    const count = shape.reduce((a, b) => a * b, 1);
    const data = type === "u1" ? new Uint8Array(buffer, offset, count) : new Float32Array(buffer, offset, count);
    tensors[name] = { shape, data };
    offset += Math.ceil(data.byteLength / 4) * 4;
  }
  return { record, tensors };
}
