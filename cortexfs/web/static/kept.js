// What a tab keeps for its reload. It is encrypted by a key that our process has and no storage: whoever has its
// port afterwards, and so its storage, cannot read it.

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

/** The name says nothing either: it could be a session's. */
async function hidden(name) {
  const [, secret] = await key();
  return base64(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes(`${secret} ${name}`))));
}

/** Keeps a text under a name, in the order of the calls; an empty one is gone. */
export function keep(name, text) {
  last = last.then(async () => {
    const place = await hidden(name);
    if (!text) return sessionStorage.removeItem(place);
    const iv = crypto.getRandomValues(new Uint8Array(NONCE));
    const data = await crypto.subtle.encrypt({ name: "AES-GCM", iv }, (await key())[0], bytes(text));
    return sessionStorage.setItem(place, `${base64(iv)} ${base64(new Uint8Array(data))}`);
  }).catch(() => {});  // it is too large, or nobody has the key
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
