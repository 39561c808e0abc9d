// One session, live: its messages, its open questions, and the user's draft.

import { exact, follow, get, post } from "./api.js";
import { cards, watch } from "./approvals.js";
import { Answers } from "./answers.js";
import { base64, button, h, show } from "./dom.js";
import { keep, kept } from "./kept.js";
import { addressed, renamed } from "./lists.js";
import { prompts } from "./prompts.js";

const STOPPED = new Set(["EHOSTDOWN", "ETIMEDOUT"]);

/** Returns the text of a message, which may also have files and earlier messages. */
function words(input) {
  if (typeof input === "string") return input;
  const content = input.content || input.messages.at(-1).content;
  return content.map((part) => part.text || "").join("");
}

export class Conversation {
  /** `cwd` is the working directory of an agent's new session. */
  constructor(where, { signal, say }, cwd) {
    this.where = where;
    this.cwd = cwd;
    this.signal = signal;
    this.say = say;
    this.key = `${where.scope} ${where.object} ${where.session}`;
    this.pending = new Map();
    this.why = "";  // the reason why the object cannot be reached, from ctx web
    this.log = h("div", { class: "log", role: "log", "aria-label": "Conversation", tabindex: "0" });
    this.note = h("p", { class: "note" });
    this.message = new Message(this.where, { signal, say }, () => this.send(),
      () => keep(`draft ${this.key}`, this.message.box.value));
    this.stop = button("Stop", () => this.cancel(), { disabled: true });
    this.again = button("Retry", () => this.send(this.retried()), { hidden: true });
    this.message.row.append(this.stop, this.again);
    this.answers = new Answers(this.log, {
      begun: (request) => this.begun(request),
      state: () => this.stated(),
    });
    const questions = h("div", { class: "questions" });
    this.asked = cards(questions, say, this.log);
    this.place = h("small", {}, where.object);
    this.element = h("section", { class: "conversation", "aria-label": `${where.object} ${where.session}` },
      h("div", { class: "row" }, h("h1", {}, where.session, " ", this.place), button("Rename", () => this.rename())), this.log, questions, this.note,
      this.message.element);
  }

  async begin() {
    const [past, draft, sent] = await Promise.all([get("/api/past", this.where, this.signal, exact),
      kept(`draft ${this.key}`), kept(`sent ${this.key}`)]);
    this.message.box.value ||= draft;
    const before = Object.entries(JSON.parse(sent || "{}")).filter(([id]) => !this.answers.sent.has(id));
    this.pending = new Map([...before, ...this.pending]);  // the user may have sent a message by now
    this.earlier(past.before);
    if (past.cwd || this.cwd) this.place.textContent += ` in ${past.cwd || this.cwd}`;
    this.answers.hear(past.events);
    this.last = past.last || "";
    for (const [id, input] of this.pending) this.deliver(id, input);
    watch(({ asked }) => this.asked(asked.filter((one) => one.object === this.where.object
      && one.session === this.where.session && one.scope === this.where.scope)), this.signal);
    this.connect();
    document.addEventListener("visibilitychange", () => this.connect(), { signal: this.signal });
    if (!this.element.contains(document.activeElement)) this.message.box.focus(); // unless the focus is in the conversation already
  }

  /** Adds a button that loads earlier events, if there are any before the byte `before`. */
  earlier(before) {
    if (!before) return;
    const load = async () => {
      more.disabled = true;
      try {
        const past = await get("/api/past", { ...this.where, before }, this.signal, exact);
        const place = h("div", {});
        const height = this.log.scrollHeight - this.log.scrollTop;
        new Answers(place, { begun: () => {}, state: () => {} }).hear(past.events);
        more.replaceWith(place);
        this.earlier(past.before);
        this.log.scrollTop = this.log.scrollHeight - height;
        this.log.focus({ preventScroll: true });
        this.say("what was said earlier is shown");
      } catch (problem) {
        more.disabled = false;
        if (!this.signal.aborted) this.say(problem.message);
      }
    };
    const more = button("Show earlier", load, { class: "earlier" });
    this.log.prepend(more);
  }

  /** Connects, unless the tab is hidden: browsers allow six connections for all tabs together. */
  connect() {
    this.line?.abort();
    if (document.hidden || this.signal.aborted) return;
    this.line = new AbortController();
    const signal = AbortSignal.any([this.signal, this.line.signal]);
    follow("/api/events", () => ({ ...this.where, after: this.last }), (found) => this.hear(found), signal,
      (is_there) => this.connected(is_there));
  }

  connected(is_there) {
    this.note.textContent = is_there ? "" : `The connection is lost; trying again. ${this.why}`;
    this.why = "";
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
    this.note.textContent = this.why = frame.message;
    if (frame.code === "EINVAL" && this.last) {  // the session was removed and began again
      this.last = "";
      show(this.log);
    }
  }

  send(input = this.message.take()) {
    if (!input) return;
    const id = crypto.randomUUID();
    this.pending.set(id, input);
    this.latest = input;
    this.keep();
    this.deliver(id, input);
    this.stated();
  }

  async deliver(id, input) {
    this.answers.mine(id, words(input));
    try {
      await post("/api/send", { ...this.where, id, input, cwd: this.last ? undefined : this.cwd });
    } catch (problem) {
      if (STOPPED.has(problem.code)) return;  // it is sent again under the same id
      this.begun(id);
      this.answers.failed(id, problem.message);
      this.message.box.value ||= words(input);
      this.stated();
    }
  }

  keep() {
    keep(`sent ${this.key}`, this.pending.size ? JSON.stringify(Object.fromEntries(this.pending)) : "");
  }

  begun(request) {
    if (this.pending.delete(request)) this.keep();
  }

  stated() {
    const had = this.stop === document.activeElement;
    this.stop.disabled = !(this.answers.active.size || this.pending.size);
    if (had && this.stop.disabled) this.message.box.focus();
    this.again.hidden = !(this.answers.ended && this.answers.ended !== "ok" && this.answers.words);
  }

  async cancel() {
    const ids = [...this.answers.active, ...this.pending.keys()];
    for (const run of ids) {
      await post("/api/cancel", { object: this.where.object, run }).catch((problem) => {
        if (!STOPPED.has(problem.code) || !this.pending.has(run)) return this.say(problem.message);
        this.message.box.value ||= words(this.pending.get(run));
        this.begun(run);
        this.answers.failed(run, "Stopped before it was sent.");
      });
    }
    this.stated();
  }

  /** Renames the session. A session in use cannot be renamed, so this tab disconnects first. */
  async rename() {
    if (this.answers.active.size || this.pending.size) return this.say("It can be renamed when it is answered.");
    this.line?.abort();
    try {
      const name = await renamed(this.where, this.where.scope);
      if (name) location.hash = addressed("talk", this.where.scope, this.where.object, name);
      else this.connect();
    } catch (problem) {
      this.say(problem.message);
      this.connect();
    }
  }

  /** Returns the last message again, with its files if this tab sent it. */
  retried() {
    const { words: text } = this.answers;
    return this.latest && words(this.latest) === text ? this.latest : text;
  }
}

/** The user's draft: its text, its files, and a prompt's messages before it. */
class Message {
  constructor(where, context, send, changed) {
    this.where = where;
    this.say = context.say;
    this.files = [];
    this.before = [];
    this.changed = changed;
    this.box = h("textarea", { "aria-label": "Message", rows: "2", placeholder: "Message" });
    this.list = h("ul", { class: "files", "aria-label": "Attached", hidden: true });
    const chosen = h("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files to attach" });
    chosen.addEventListener("change", () => this.attach([...chosen.files]).then(() => { chosen.value = ""; }));
    this.row = h("div", { class: "row" }, h("button", { type: "submit", class: "go" }, "Send"),
      button("Attach", () => chosen.click()), chosen);
    const submit = (event) => {
      event.preventDefault();
      if (this.reading) this.say("A file is being read; send the message when it is attached.");
      else send();
    };
    this.reading = 0;
    this.element = h("form", { onsubmit: submit }, this.box, this.list,
      this.row, prompts(context, (told) => this.put(told)));
    this.box.addEventListener("input", changed);
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    });
    for (const [name, field] of [["paste", "clipboardData"], ["drop", "dataTransfer"]]) {
      this.element.addEventListener(name, (event) => {
        if (!event[field]?.files.length) return;
        event.preventDefault();
        this.attach([...event[field].files]);
      });
    }
  }

  /** Empties the draft and returns its message, or null if it was empty. */
  take() {
    const text = this.box.value;
    if (!text.trim() && !this.files.length) return null;
    const parts = this.files.flatMap((file) => file.parts);
    const content = text.trim() ? [{ type: "text", text }, ...parts] : parts;
    const { before } = this;
    [this.files, this.before] = [[], []];
    this.shown();
    this.box.value = "";
    this.changed();
    if (before.length) return { messages: [...before, { role: "user", content }] };
    return parts.length ? { content } : text;
  }

  async attach(files) {
    this.reading += 1;
    for (const file of files) await this.add(file.name, file.arrayBuffer().then((data) => base64(new Uint8Array(data))));
    this.reading -= 1;
  }

  /** Attaches a file. If the object's model cannot take it, the reason is shown now. */
  async add(name, data) {
    try {
      const parts = await post("/api/attach", { object: this.where.object, name, data: await data });
      this.files.push({ name, parts });
      this.say(`attached ${name}`);
    } catch (problem) {
      this.say(problem.message.includes(name) ? problem.message : `${name}: ${problem.message}`);
    }
    this.shown();
  }

  shown() {
    this.list.hidden = !(this.files.length + this.before.length);
    show(this.list, this.before.length ? h("li", {}, `${this.before.length} messages of the prompt`) : null,
      this.files.map((file) => h("li", {}, file.name, " ", button("Remove", () => {
        this.files.splice(this.files.indexOf(file), 1);
        this.shown();
      }, { "aria-label": `Remove ${file.name}` }))));
  }

  async put({ text, files, before }) {
    this.box.value = [this.box.value, text].filter((each) => each.trim()).join("\n\n");
    this.changed();
    this.before = before;
    this.shown();
    for (const { name, data } of files) await this.add(name, data);
    this.box.focus();
  }
}
