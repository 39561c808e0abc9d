// Pictures, sounds and films that a tool made, and links to files on other hosts.

import { file } from "./api.js";
import { h } from "./dom.js";

const PLAYED = ["image", "audio", "video"];
let turn = Promise.resolve();  // one file at a time: it may never come, and browsers allow six connections

/** Returns an attachment, which is filled when its file has come. Nothing is loaded from another host. */
export function attached({ media_type: kind, url, caption }) {
  const path = String(url || "");
  const lies = path.startsWith("data:") ? String(kind) : path;
  const name = String(caption || lies.split("/").pop() || "file");
  if (/^https?:/i.test(path))
    return h("p", { class: "note" }, h("a", { href: path, rel: "noopener noreferrer nofollow", target: "_blank" }, name),
      ` (${kind})`);
  const place = h("figure", { class: "media" }, h("figcaption", {}, caption ? `${name}, ${lies}` : lies));
  if (PLAYED.includes(kind)) turn = turn.then(() => filled(place, path, name));
  return place;
}

async function filled(place, path, name) {
  try {
    const found = await file(path);
    const src = URL.createObjectURL(found);
    if (found.type.startsWith("image/")) place.prepend(h("img", { src, alt: name, onload: () => URL.revokeObjectURL(src) }));
    else place.prepend(h(found.type.startsWith("audio/") ? "audio" : "video", { src, controls: true, "aria-label": name }));
  } catch (problem) {
    place.append(h("p", { class: "note" }, problem.message));
  }
}
