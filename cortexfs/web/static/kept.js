// Data that a tab keeps for its reload. Its key is in the memory of our process and in no storage: the next
// process at our port gets the tab's storage, but cannot read it.

import { get } from "./api.js";
import { base64 } from "./dom.js";

const NONCE = 12;
const bytes = (text) => new TextEncoder().encode(text);
let asked = null;
let last = Promise.resolve();

async function key() {
  asked ||= get("/api/keep").then(async (told) => {
    const raw = Uint8Array.from(told.key.match(/../g), (each) => Number.parseInt(each, 16));
    return [await crypto.subtle.importKey("raw", raw, "AES-GCM", false, ["encrypt", "decrypt"]), told.key];
  });
  asked.catch(() => { asked = null; });
  return asked;
}

/** Returns a name that reveals nothing, as the given one may have a session's name. */
async function hidden(name) {
  const [, secret] = await key();
  return base64(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes(`${secret} ${name}`))));
}

/** Keeps a text under a name, in the order of the calls. An empty text removes the entry. */
export function keep(name, text) {
  last = last.then(async () => {
    const place = await hidden(name);
    if (!text) return sessionStorage.removeItem(place);
    const iv = crypto.getRandomValues(new Uint8Array(NONCE));
    const data = await crypto.subtle.encrypt({ name: "AES-GCM", iv }, (await key())[0], bytes(text));
    return sessionStorage.setItem(place, `${base64(iv)} ${base64(new Uint8Array(data))}`);
  }).catch(() => {});  // the text is too large, or the process with the key has ended
}

export async function kept(name) {
  try {
    const found = sessionStorage.getItem(await hidden(name));
    if (!found) return "";
    const [iv, data] = found.split(" ").map((part) => Uint8Array.from(atob(part), (each) => each.charCodeAt(0)));
    return new TextDecoder().decode(await crypto.subtle.decrypt({ name: "AES-GCM", iv }, (await key())[0], data));
  } catch {
    return "";
  }
}
