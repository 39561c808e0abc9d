// Pages of plugins in frames. A page is known by its frame, not by its messages. It hears only of its plugin.

import { get, post } from "./api.js";
import { button, complaint, h, show, written } from "./dom.js";
import { addressed } from "./lists.js";
import { drawn } from "./widgets.js";

const SANDBOX = "allow-scripts allow-forms";
const LOOK = 2000;  // milliseconds between two checks that a frame's plugin is still shown
const MOST_SAID = 200;  // messages of a frame in a second
export const MOST_ASKED = 16;  // requests that wait for their answers
const MOST_TEXT = 1 << 18;  // characters of a message
const CONSIDER = 500;  // milliseconds before a question takes a click: a double click was meant for the frame
const SHOWN = 200;  // characters of a notice
// The events of the mount and of the page, which no frame can emit.
const EVENTS = ["session:start", "session:end", "tool:pre-execute", "tool:post-execute", "llm:pre-call",
  "llm:post-call", "agent:turn-start", "agent:turn-end", "config:change", "daemon:status"];

const hearers = new Set();
const others = new BroadcastChannel("panels");  // our other tabs; frames have another origin and cannot join
others.onmessage = ({ data }) => tell(data);

function tell(said) {
  for (const hear of hearers) hear(said);
}

/** Sends an event to all frames of a plugin, in every tab. */
export function told(plugin, event, data) {
  others.postMessage({ plugin, event, data });
  tell({ plugin, event, data });
}

/** Returns a frame that can be shown and closed. `hear(data, ports)` gets its messages to us, its parent. */
export function frame(title, path, hear, signal, ended) {
  const inner = h("iframe", { title, sandbox: SANDBOX, src: path, referrerpolicy: "no-referrer", class: "frame" });
  const ending = new AbortController();
  let loads = 0;
  let second = 0;
  let said = 0;
  const close = (why) => {
    if (ending.signal.aborted) return;
    ending.abort();
    inner.remove();
    post("/api/frame/close", { frame: path.split("/")[2] }).catch(() => {});
    if (why) ended(why);
  };
  const counted = (data) => {
    const now = Math.floor(Date.now() / 1000);
    [second, said] = [now, now === second ? said + 1 : 1];
    if (said > MOST_SAID) close("It said too much at once, and was closed.");
    else if (!sized(data)) close("It said more than a page may say, and was closed.");
    return !ending.signal.aborted;
  };
  addEventListener("message", ({ source, data, ports }) => {
    if (source === inner.contentWindow && source && counted(data)) hear(data, ports);
  }, { signal: ending.signal });
  inner.addEventListener("load", () => { if (++loads > 1) close("It led itself elsewhere, and was closed."); });
  signal.addEventListener("abort", () => close());
  if (signal.aborted) close();
  return { inner, close, counted, signal: ending.signal };
}

/** Checks from time to time whether a frame's plugin is still shown, and closes the frame if not. `hear` gets
 * the mount's events for that plugin. */
export async function watch(id, { close, signal }, hear = () => {}) {
  while (!signal.aborted) {
    await new Promise((go) => setTimeout(go, LOOK));
    if (signal.aborted) return;
    await post("/api/frame/still", { frame: id }).then(({ events }) => events.forEach(hear), (problem) => {
      if (problem.code === "ENOENT") close(`${problem.message}.`);
    });
  }
}

/** Returns the panel or widget of a plugin, as an element. */
export async function opened(plugin, part, { signal, say }) {
  const found = await post("/api/frame/open", { plugin, part });
  const is_drawn = found.type === "chart" || found.type === "table";
  const place = is_drawn ? h("div", {}) : h("section", { class: "panel", "aria-label": found.title });
  const questions = h("div", {});
  const ended = (why) => show(place, complaint(why));
  if (is_drawn) {
    const call = (tool, args) => run(found, tool, args, null);
    const close = () => post("/api/frame/close", { frame: found.frame }).catch(() => {});
    if (signal.aborted) close();
    else signal.addEventListener("abort", close);
    await drawn(place, found, call, signal);
    return place;
  }
  const state = { found, asked: 0, say, questions, allowed: new Set() };
  const made = frame(found.title, found.path, (data, ports) => {
    if (data === "cortex" && ports.length === 1 && !state.port) connect(state, ports[0], made);
  }, signal, ended);
  show(place, questions, made.inner);
  watch(found.frame, made, ([event, data]) => state.port?.postMessage({ event, data }));
  return place;
}

/** Serves the frame over its own channel from now on. */
function connect(state, port, { counted, signal }) {
  const { plugin, events } = state.found;
  state.port = port;
  const hear = (one) => {
    if (one.plugin !== plugin || (EVENTS.includes(one.event) && !events.includes(one.event))) return;
    port.postMessage({ event: one.event, data: one.data });
  };
  hearers.add(hear);
  signal.addEventListener("abort", () => { hearers.delete(hear); port.close(); });
  port.onmessage = async ({ data }) => {
    if (!counted(data)) return;
    const own = Object.hasOwn(OPERATIONS, data?.op) ? OPERATIONS[data.op] : null;
    if (!own) return;
    if (state.asked >= MOST_ASKED) return refuse(port, data.id, "EBUSY", "too much is asked at once");
    state.asked += 1;
    try {
      const value = await own(state, data);
      if (data.id !== undefined) port.postMessage({ id: data.id, value });
    } catch (problem) {
      refuse(port, data.id, problem.code || "EINVAL", problem.message);
    } finally {
      state.asked -= 1;
    }
  };
}

function sized(data) {
  try {
    return (JSON.stringify(data) ?? "").length <= MOST_TEXT;
  } catch {
    return false;
  }
}

function refuse(port, id, code, message) {
  if (id !== undefined) port.postMessage({ id, fault: { code, message } });
}

const ask = (found, method, path, body) => post("/api/frame/ask", { frame: found.frame, method, path, body });

const OPERATIONS = {
  async fetch(state, { path, method, body }) {
    const own = `/api/plugins/${state.found.plugin}/`;
    const inside = String(path).startsWith(own) ? String(path).slice(own.length) : String(path);
    const verb = String(method).toUpperCase();
    const tool = /^(?:\/api\/)?tools\/([^/]+)$/.exec(inside);
    try {
      const value = tool && verb === "POST" ? await run(state.found, tool[1], body, state)
        : await ask(state.found, verb, inside, body);
      if (verb === "PUT") changed(state.found.plugin, value, body);
      return { status: 200, value };
    } catch (problem) {
      return { status: problem.status || 403, value: { error: problem.message, code: problem.code } };
    }
  },
  async getConfig(state, { key }) {
    const all = await ask(state.found, "GET", "config", null);
    return key === null ? all : Object.hasOwn(all, key) ? all[key] ?? undefined : undefined;
  },
  async setConfig(state, { key, value }) {
    changed(state.found.plugin, await ask(state.found, "PUT", "config", { [key]: value }), { [key]: value });
  },
  emit(state, { event, data }) {
    if (String(event).length > SHOWN) throw new Error("an event's name is too long");
    if (EVENTS.includes(event)) throw new Error(`${event} is an event of the mount's`);
    const plain = JSON.parse(JSON.stringify(data ?? null));  // only the JSON that was counted, and no buffers
    told(state.found.plugin, String(event), plain);
  },
  notify({ found, say }, { message, type }) {
    const text = String(message).slice(0, SHOWN);
    say(`${found.plugin}: ${type === "error" || type === "warn" ? `${type}: ` : ""}${text}`);
  },
};

/** Sends the changes of settings. `all` has only readable settings, so a secret's value is not sent. */
function changed(plugin, all, keys) {
  for (const key of Object.keys(keys || {})) told(plugin, "config:change", { key, value: all[key] ?? null });
}

/** Runs a tool of the plugin. If a person has to be asked first, a panel asks, and a drawn widget fails. */
async function run(found, tool, args, state) {
  const about = await post("/api/frame/tool", { frame: found.frame, tool });
  if (about.asks && !state) throw new Error(`${tool} asks before each call, so no widget can call it by itself.`);
  if (about.asks && !state.allowed.has(tool)) await allowed(state, tool, args, about.effects);
  const tell = found.is_hooked ? () => {} : told;  // the mount sends these events, for every tool
  tell(found.plugin, "tool:pre-execute", { toolName: tool, args });
  const result = await post("/api/frame/run", { frame: found.frame, tool, body: args });
  tell(found.plugin, "tool:post-execute", { toolName: tool, result });
  return result;
}

/** Asks whether a panel may call a tool of its plugin. Our page asks, beside the frame. */
export function allowed(state, tool, args, effects) {
  return new Promise((go, fail) => {
    const answer = (is_allowed, lasts) => {
      if (lasts) state.allowed.add(tool);
      asked.remove();
      if (is_allowed) go();
      else fail(Object.assign(new Error(`${tool} was denied`), { code: "EACCES", status: 403 }));
    };
    const choices = [button("Allow", () => answer(true), { class: "go", disabled: true }),
      button("Allow while it is open", () => answer(true, true), { disabled: true }), button("Deny", () => answer(false))];
    setTimeout(() => choices.forEach((each) => { each.disabled = false; }), CONSIDER);
    const asked = h("section", { class: "asked", "aria-label": `Question about ${tool}` }, h("h2", {}, `Call ${tool}?`),
      h("p", {}, `${state.found.title} of ${state.found.plugin} asks.`), h("pre", { tabindex: "0" }, written(args ?? {})),
      effects ? h("pre", { tabindex: "0" }, effects) : null,
      h("div", { class: "row" }, choices));
    state.questions.append(asked);
  });
}

const of = (row) => addressed("plugins", row.plugin, row.part);

/** Returns the links to panels of one plugin, and its widgets; or only links, for all plugins. */
export async function contributed(plugin, context) {
  const found = await get("/api/ui", null, context.signal).catch((problem) => problem);
  if (found instanceof Error) return [h("p", { class: "error" }, found.message)];
  const own = found.filter((row) => !row.fault && (!plugin || row.plugin === plugin));
  const panels = own.filter(({ part }) => part.startsWith("panel/"));
  const links = panels.length ? [h("h2", {}, "Panels"), h("ul", {}, panels.map((row) => h("li", {},
    h("a", { href: of(row) }, row.title), plugin ? null : ` of ${row.plugin}`)))] : [];
  const widgets = own.filter(({ part }) => part.startsWith("widget/"));
  if (!widgets.length) return links;
  if (!plugin) return [...links, h("p", {}, h("a", { href: "#/widgets" }, "Widgets"))];
  return [...links, h("h2", {}, "Widgets"), placed(widgets, context, "h3")];
}

/** Returns the widgets. Each is filled when it has loaded; a failed one shows its error. */
function placed(rows, context, level) {
  return h("div", { class: "widgets" }, rows.map((row) => {
    const place = h("div", { class: "widget" }, h(level, {}, row.title));
    opened(row.plugin, row.part, context).then((made) => place.append(made), (problem) => {
      if (!context.signal.aborted) place.append(complaint(problem.message));
    });
    return place;
  }));
}

export async function widgets(place, words, context) {
  const rows = (await get("/api/ui", null, context.signal)).filter((row) => !row.fault && row.part.startsWith("widget/"));
  show(place, h("h1", {}, "Widgets"), rows.length ? placed(rows, context, "h2") : h("p", {}, "No plugin has widgets."));
}

/** Shows one panel by itself. */
export async function panel(place, [plugin, part], context) {
  const made = await opened(plugin, part, context);
  show(place, h("h1", {}, made.getAttribute("aria-label")), h("p", {}, "of ",
    h("a", { href: addressed("plugins", plugin) }, plugin)), made);
}
