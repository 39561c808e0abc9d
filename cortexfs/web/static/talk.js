// Conversations: the list of them, newest first, and the start of a new one.

import { get, loaded } from "./api.js";
import { ago, h, show } from "./dom.js";
import { addressed, bare, newest, within } from "./lists.js";

export async function talk(place, words, context) {
  const [scope, object, session, cwd] = words;
  const list = h("nav", { class: "sessions", "aria-label": "Conversations" });
  if (!object) {
    show(place, h("div", { class: "talk start" }, list, h("div", { class: "new" }, await beginning(context))));
    await listed(list, null, context);
    return;
  }
  const { Conversation } = await loaded("conversation");
  context.signal.throwIfAborted();  // another part is shown by now
  const conversation = new Conversation({ scope, object, session: session || "default" }, context, cwd);
  show(place, h("div", { class: "talk" }, list, conversation.element));
  listed(list, conversation.where, context).catch((problem) => context.say(problem.message));
  await conversation.begin();
}

/** Shows the list of sessions, newest first, and a search in it. */
async function listed(list, where, { signal, say }) {
  const items = h("ul", {});
  const search = h("input", { type: "search", "aria-label": "Search", placeholder: "Search" });
  show(list, h("a", { class: "start", href: "#/talk" }, "New conversation"), search, items);
  const found = await get("/api/sessions", null, signal);
  const put = (rows) => show(items, rows.map((one) => h("li", {},
    h("a", {
      href: addressed("talk", one.space || "private", one.object, one.session),
      "aria-current": where && one.object === where.object && one.session === where.session ? "true" : null,
    }, one.session), h("small", {}, `${one.object.replace(/^model\/|^agent\//, "")} · ${one.machine ? `${one.machine} · ` : ""}${one.state || ""} ${ago(one.updated)}`))),
  rows.length ? null : h("li", {}, "none"));
  put(found);
  list.append(newest(found) || "");
  const named = ({ object, session }) => `${object} ${session}`;
  const look = async () => {
    const text = search.value.trim().toLowerCase();
    const near = found.filter((one) => named(one).toLowerCase().includes(text));
    put(near);
    if (text.length < 3) return;
    const said = await get("/api/search", { q: text }, signal);
    if (search.value.trim().toLowerCase() !== text) return;
    const keys = new Set([...near, ...said].map(named));
    put(found.filter((one) => keys.has(named(one))));
  };
  search.addEventListener("input", () => look().catch((problem) => signal.aborted || say(problem.message)));
}

/** Returns the form for a new conversation, with the choice of a model or agent. */
async function beginning({ signal }) {
  const found = await get("/api/objects", null, signal);
  const there = found.map(({ object }) => object).filter((object) => /^(model|agent)\//.test(within(object)));
  const whom = h("select", { id: "whom" }, there.map((object) => h("option", { value: object }, bare(object))));
  const name = h("input", { id: "named", value: `chat-${Date.now().toString(36)}`, pattern: "[A-Za-z0-9][A-Za-z0-9._+\\-]{0,63}" });
  const cwd = h("input", { id: "cwd", placeholder: "a directory, as /home/ann/project", pattern: "/.*", spellcheck: "false" });
  const where = h("div", {}, h("label", { for: "cwd" }, "Works in"), cwd);
  const chosen = () => { where.hidden = !whom.value.includes("agent/"); };
  whom.addEventListener("change", chosen);
  chosen();
  const go = (event) => {
    event.preventDefault();
    const place = where.hidden || !cwd.value ? [] : [cwd.value];
    location.hash = addressed("talk", "private", within(whom.value), name.value, ...place);
  };
  return h("form", { onsubmit: go }, h("h1", {}, "Talk"), h("label", { for: "whom" }, "With"), whom,
    h("label", { for: "named" }, "Name"), name, where, h("button", { type: "submit", class: "go" }, "Begin"));
}
