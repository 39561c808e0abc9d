// Requests to the process of the page, with its token: as a header, never as a cookie.

const TOKEN = "cortexfs.token";
const PAUSES = [0.1, 0.3, 1, 2, 5];

export class Refused extends Error {
  constructor(code, message, status) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

/** Exchanges the ticket of the link for the token, and takes it out of the address. */
export async function enter() {
  const found = /^#ticket=([\w-]+)$/.exec(location.hash);
  const had = Boolean(localStorage.getItem(TOKEN));  // throws if the browser blocks storage, before the ticket is used
  if (!found) return had;
  const answer = await fetch("/api/enter", posted({ ticket: found[1] }));  // after a failure, a reload tries it again
  history.replaceState(null, "", "/#/talk");
  if (!answer.ok && !had) throw await refusal(answer);
  if (answer.ok) localStorage.setItem(TOKEN, (await answer.json()).token);
  return true;
}

function posted(value) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) };
}

async function refusal(answer) {
  const said = await answer.json().catch(() => ({ code: "EPROTO", message: `the page answers ${answer.status}` }));
  return new Refused(said.code, said.message, answer.status);
}

let is_proven = false;
const losses = new BroadcastChannel("losses");
losses.onmessage = () => { is_proven = false; };

/** Has all tabs check again which process has the port, after a connection was lost. */
function lost() {
  is_proven = false;
  losses.postMessage("");
}

/** Checks that our process has the port: its successor there must not get the token or unsent messages. */
async function proven() {
  if (is_proven) return;
  const bytes = (text) => new TextEncoder().encode(text);
  const hex = (buffer) => [...new Uint8Array(buffer)].map((each) => each.toString(16).padStart(2, "0")).join("");
  const nonce = crypto.randomUUID();
  const key = await crypto.subtle.importKey("raw", bytes(localStorage.getItem(TOKEN) || "none"),
    { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const { proof } = await (await fetch("/api/prove", posted({ nonce }))).json();
  if (proof !== hex(await crypto.subtle.sign("HMAC", key, bytes(nonce)))) {
    localStorage.removeItem(TOKEN);
    dispatchEvent(new Event("shut"));
    throw new Refused("EACCES", "this is not the ctx web that this page is of", 401);
  }
  is_proven = true;
}

async function asked(path, options = {}) {
  const headers = { ...options.headers, Authorization: `Bearer ${localStorage.getItem(TOKEN)}` };
  let answer;
  try {
    await proven();
    answer = await fetch(path, { ...options, headers, credentials: "omit" });
  } catch (problem) {
    if (problem.name === "AbortError" || problem instanceof Refused) throw problem;
    lost();
    throw new Refused("EHOSTDOWN", "ctx web does not answer; is it still running?", 0);
  }
  if (answer.status === 401) {
    localStorage.removeItem(TOKEN);
    dispatchEvent(new Event("shut"));
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

/** Parses a JSON text. A whole number beyond 2^53, such as an id, keeps its digits. */
export function exact(text) {
  if (!JSON.rawJSON || !/\d{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (key, value, { source }) =>
    (Number.isInteger(value) && !Number.isSafeInteger(value) ? JSON.rawJSON(source) : value));
}

function address(path, words) {
  return words ? `${path}?${new URLSearchParams(words)}` : path;
}

export const get = async (path, words, signal, read = JSON.parse) =>
  read(await (await asked(address(path, words), { signal })).text());
export const post = async (path, value) => (await asked(path, posted(value))).json();

/** Returns a picture, sound or film at an address of this machine. */
export const file = async (url) => (await asked("/api/media", posted({ url }))).blob();

/** Reads events until they end, several at a time: `hear([{id, data}, ...])`. */
async function read(answer, hear) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    const found = [];
    for (const part of parts) {
      const place = part.indexOf("data: ");
      if (place >= 0) found.push(exact(part.slice(place + 6)));
    }
    if (found.length) hear(found);
  }
}

export async function run(path, value, hear, signal) {
  await read(await asked(path, { ...posted(value), signal }), hear);
}

/** Follows a stream until `signal` ends it, and connects again when the connection is lost. */
export async function follow(path, words, hear, signal, state = () => {}) {
  for (let times = 0; !signal.aborted; times++) {
    try {
      const answer = await asked(address(path, words()), { signal });
      let is_there = false;
      await read(answer, (found) => {
        if (!is_there && found[0].type !== "error") {
          is_there = true;
          times = 0;
          state(true);
        }
        hear(found);
      });
    } catch (problem) {
      if (signal.aborted || problem.status === 401) return;
    }
    if (signal.aborted) return;
    lost();
    state(false);
    await new Promise((go) => setTimeout(go, 1000 * PAUSES[Math.min(times, PAUSES.length - 1)]));
  }
}

/** Returns the module of a part. Browsers do not retry a file that failed, so the error says to reload. */
export async function loaded(file) {
  try {
    return await import(`./${file}.js`);
  } catch {
    throw new Error("This part of the page could not be loaded. Reload the page, or run ctx web again if it has ended.");
  }
}
