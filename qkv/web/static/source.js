// Where numbers come from: the server that sent this page, or the page itself if it was saved with its answers.

const recorded = new Map(
  [...document.querySelectorAll("script.recorded")].map((element) => [element.dataset.key, element]),
);
const asked = new Map();
const KEPT = 24;

/** Whether this page was saved: then only what was recorded can be asked. */
export const saved = recorded.size > 0;

/** {record, tensors} of a question; an error in words otherwise. */
export function ask(name, question = {}) {
  const key = `${name} ${canonical(question)}`;
  if (!asked.has(key)) {
    const answer = saved ? recall(name, question) : fetchAnswer(name, question);
    asked.set(key, answer);
    answer.catch(() => asked.delete(key));
    if (asked.size > KEPT) asked.delete(asked.keys().next().value);
  }
  return asked.get(key);
}

/** Whether a question can be asked here: always of a server, of a saved page if it was recorded. */
export const holds = (name, question) => !saved || recorded.has(`${name} ${canonical(question)}`);

const canonical = (question) => JSON.stringify(question, Object.keys(question).sort());

async function recall(name, { text, answer, ...rest }) {
  const element = recorded.get(`${name} ${canonical(rest)}`);
  if (!element) throw new Error("This saved page does not hold that; `qkv serve` can compute it.");
  const bytes = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
  return unpack(bytes.buffer);
}

async function fetchAnswer(name, question) {
  let response;
  try {
    response = await fetch(`/api/${name}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(question),
    });
  } catch {
    throw new Error("The server does not answer: it was stopped, or this page is from an earlier one.");
  }
  if (response.ok) return unpack(await response.arrayBuffer());
  const words = await response.text();
  let said = words.trim();
  try {
    said = JSON.parse(words).error;
  } catch {
    // the guard answers in plain text
  }
  throw new Error(said || `The server answered ${response.status}.`);
}

/** Four bytes of length, a JSON record, then the tensors: see qkv/web/wire.py. */
function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const record = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const tensors = {};
  let place = 4 + length;
  for (const { name, type, shape } of record.tensors) {
    const count = shape.reduce((a, b) => a * b, 1);
    const data = type === "u1" ? new Uint8Array(buffer, place, count) : new Float32Array(buffer, place, count);
    tensors[name] = { shape, data };
    place += Math.ceil(data.byteLength / 4) * 4;
  }
  return { record, tensors };
}
