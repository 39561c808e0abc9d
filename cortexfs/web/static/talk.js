// Conversations: the list of them, and one of them as it goes on.

import { follow, get, post } from "./api.js";
import { card, watch } from "./approvals.js";
import { Answers } from "./answers.js";
import { ago, button, h, show } from "./dom.js";
import { addressed } from "./lists.js";

const STOPPED = new Set(["EHOSTDOWN", "ETIMEDOUT"]);

export async function talk(place, words, context) {
  const [scope, object, session] = words;
  const list = h("nav", { class: "sessions", "aria-label": "Conversations" });
  if (!object) {
    show(place, h("div", { class: "talk start" }, list, h("div", { class: "new" }, await beginning(context))));
    await listed(list, null, context);
    return;
  }
  const conversation = new Conversation({ scope, object, session: session || "default" }, context);
  show(place, h("div", { class: "talk" }, list, conversation.element));
  listed(list, conversation.where, context).catch((problem) => context.say(problem.message));
  await conversation.begin();
}

/** The list of sessions, newest first, and the search in it. */
async function listed(list, where, { signal, say }) {
  const items = h("ul", {});
  const search = h("input", { type: "search", "aria-label": "Search", placeholder: "Search" });
  show(list, h("a", { class: "start", href: "#/talk" }, "New conversation"), search, items);
  const found = await get("/api/sessions", null, signal);
  const put = (rows) => show(items, rows.map((one) => h("li", {},
    h("a", {
      href: addressed("talk", one.space || "private", one.object, one.session),
      "aria-current": where && one.object === where.object && one.session === where.session ? "true" : null,
    }, one.session), h("small", {}, `${one.object.replace(/^model\/|^agent\//, "")} · ${one.state || ""} ${ago(one.updated)}`))),
  rows.length ? null : h("li", {}, "none"));
  put(found);
  const look = async () => {
    const text = search.value.trim().toLowerCase();
    const near = found.filter((one) => `${one.object} ${one.session}`.toLowerCase().includes(text));
    put(near);
    if (text.length < 3) return;
    const said = await get("/api/search", { q: text }, signal);
    if (search.value.trim().toLowerCase() !== text) return;
    const keys = new Set(near.map((one) => `${one.object} ${one.session}`));
    const more = new Set(said.map((one) => `${one.object} ${one.session}`));
    put(found.filter((one) => keys.has(`${one.object} ${one.session}`) || more.has(`${one.object} ${one.session}`)));
  };
  search.addEventListener("input", () => look().catch((problem) => signal.aborted || say(problem.message)));
}

/** The form for a new conversation: whom to talk to. */
async function beginning({ signal }) {
  const found = await get("/api/objects", null, signal);
  const there = found.map(({ object }) => object).filter((object) => /^(home\/\d+\/)?(model|agent)\//.test(object));
  const whom = h("select", { id: "whom" }, there.map((object) => h("option", { value: object },
    object.replace(/^home\/\d+\//, "").replace(/^model\/|^agent\//, ""))));
  const name = h("input", { id: "named", value: `chat-${Date.now().toString(36)}`, pattern: "[A-Za-z0-9][A-Za-z0-9._+-]{0,63}" });
  const go = (event) => {
    event.preventDefault();
    location.hash = addressed("talk", "private", whom.value.replace(/^home\/\d+\//, ""), name.value);
  };
  return h("form", { onsubmit: go }, h("h1", {}, "Talk"), h("label", { for: "whom" }, "With"), whom,
    h("label", { for: "named" }, "Name"), name, h("button", { type: "submit", class: "go" }, "Begin"));
}

/** One session, in this tab. */
class Conversation {
  constructor(where, { signal, say }) {
    this.where = where;
    this.signal = signal;
    this.say = say;
    this.key = `${where.scope} ${where.object} ${where.session}`;
    this.pending = new Map(Object.entries(JSON.parse(sessionStorage.getItem(`sent ${this.key}`) || "{}")));
    this.log = h("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });
    this.questions = h("div", { class: "questions" });
    this.note = h("p", { class: "note" });
    this.box = h("textarea", { "aria-label": "Message", rows: "2", placeholder: "Message" });
    this.box.value = sessionStorage.getItem(`draft ${this.key}`) || "";
    this.stop = button("Stop", () => this.cancel(), { disabled: true });
    this.again = button("Retry", () => this.retry(), { hidden: true });
    this.answers = new Answers(this.log, {
      begun: (request) => this.begun(request),
      state: () => this.stated(),
      pending: (request) => this.pending.get(request),
    });
    const form = h("form", { onsubmit: (event) => { event.preventDefault(); this.send(); } }, this.box,
      h("div", { class: "row" }, h("button", { type: "submit", class: "go" }, "Send"), this.stop, this.again));
    this.box.addEventListener("input", () => sessionStorage.setItem(`draft ${this.key}`, this.box.value));
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    this.element = h("section", { class: "conversation", "aria-label": `${where.object} ${where.session}` },
      h("h1", {}, where.session, " ", h("small", {}, where.object)), this.log, this.questions, this.note, form);
  }

  async begin() {
    const past = await get("/api/past", this.where, this.signal);
    if (past.more) this.log.append(h("p", { class: "note" }, "What was said before is in: ",
      h("code", {}, `ctx session show ${this.where.object} ${this.where.session}`)));
    this.answers.hear(past.events);
    this.last = past.last || "";
    for (const [id, input] of this.pending) this.deliver(id, input);
    watch((state) => this.asked(state), this.signal);
    this.connect();
    document.addEventListener("visibilitychange", () => this.connect(), { signal: this.signal });
    this.box.focus();
  }

  /** A tab out of sight has no connection: browsers allow six for all tabs together. */
  connect() {
    this.line?.abort();
    if (document.hidden || this.signal.aborted) return;
    this.line = new AbortController();
    const signal = AbortSignal.any([this.signal, this.line.signal]);
    follow("/api/events", () => ({ ...this.where, after: this.last }), (found) => this.hear(found), signal,
      (is_there) => this.connected(is_there));
  }

  connected(is_there) {
    this.note.textContent = is_there ? "" : "The connection is lost; trying again.";
    if (is_there) for (const [id, input] of this.pending) this.deliver(id, input);
  }

  hear(found) {
    const events = found.filter((frame) => !frame.id || Number(frame.id) > Number(this.last || 0));
    for (const frame of events) {
      if (frame.id) this.last = frame.id;
      else if (frame.type === "error" && !frame.run) this.refused(frame);
    }
    this.answers.hear(events.filter((frame) => frame.run));
  }

  refused(frame) {
    this.note.textContent = frame.message;
    if (frame.code === "EINVAL" && this.last) {  // the session was begun anew
      this.last = "";
      show(this.log);
    }
  }

  send(text = this.box.value) {
    if (!text.trim()) return;
    if (text === this.box.value) {
      this.box.value = "";
      sessionStorage.removeItem(`draft ${this.key}`);
    }
    const id = crypto.randomUUID();
    this.pending.set(id, text);
    this.keep();
    this.answers.mine(id, text);
    this.deliver(id, text);
    this.stated();
  }

  async deliver(id, input) {
    this.answers.mine(id, input);
    try {
      await post("/api/send", { ...this.where, id, input });
    } catch (problem) {
      if (STOPPED.has(problem.code)) return;  // it is said again under the same id
      this.pending.delete(id);
      this.keep();
      this.answers.failed(id, problem.message);
      if (!this.box.value) this.box.value = input;
      this.stated();
    }
  }

  keep() {
    sessionStorage.setItem(`sent ${this.key}`, JSON.stringify(Object.fromEntries(this.pending)));
  }

  begun(request) {
    if (this.pending.delete(request)) this.keep();
  }

  stated() {
    this.stop.disabled = !(this.answers.active.size || this.pending.size);
    this.again.hidden = !(this.answers.ended && this.answers.ended !== "ok" && this.answers.words);
  }

  async cancel() {
    const ids = [...this.answers.active, ...this.pending.keys()];
    for (const run of ids) {
      await post("/api/cancel", { object: this.where.object, run }).catch((problem) => this.say(problem.message));
    }
  }

  retry() {
    this.send(this.answers.words);
  }

  /** The questions of this session, below what was said. */
  asked({ asked }) {
    const here = asked.filter((one) => one.object === this.where.object && one.session === this.where.session);
    const key = here.map((one) => one.call).join(" ");
    if (key === this.shown) return;
    this.shown = key;
    show(this.questions, here.map((one) => card(one, this.say)));
  }
}
