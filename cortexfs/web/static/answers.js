// The messages of a session, as elements. Answers grow while they come; final parts become Markdown.
// All frames that arrive together change the page once, however many they are.

import { post } from "./api.js";
import { about } from "./approvals.js";
import { built, complaint, h, show } from "./dom.js";
import { attached } from "./media.js";

const STEP = 200;  // ms between two checks for a part that can no longer change
const MOST = 48 << 10;  // characters; a longer part is not checked
const PIECE = 8 << 10;  // characters of plain text in an element: longer ones are slow to lay out
const NEAR = 80;  // pixels from the end of the log that count as its end

class Run {
  constructor(log) {
    this.element = h("article", { class: "answer", "aria-label": "Answer" });
    this.log = log;
    this.calls = new Map();
    this.renew();
  }

  renew() {
    this.text = "";
    this.streamed = 0;
    this.fresh = [];
    this.part = h("div", { class: "part" }, this.done = h("div", { class: "markdown" }),
      this.live = h("div", { class: "live" }));
  }

  /** Puts the growing part into the page, from its first word on. */
  put() {
    if (!this.part.isConnected) this.add(this.part);
  }

  add(made) {
    if (!this.element.isConnected) this.log.append(this.element);
    this.element.append(made);
  }
}

export class Answers {
  constructor(log, hooks) {
    this.log = log;
    this.hooks = hooks;
    this.runs = new Map();
    this.active = new Set();
    this.sent = new Map();
    this.words = "";
    this.ended = "";
  }

  hear(frames) {
    const is_end = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR;
    for (const frame of frames) {
      const run = this.of(frame);
      (HEARD[frame.type] || (() => {})).call(this, run, frame);
    }
    for (const run of this.runs.values()) this.flow(run);
    if (is_end) this.log.scrollTop = this.log.scrollHeight;
    this.hooks.state();
  }

  /** Shows a message of this tab, which the object has not received yet, after all other messages. */
  mine(id, text) {
    if (this.sent.has(id)) return this.log.append(this.sent.get(id));
    this.sent.set(id, this.user(text, true));
    this.words = text;
    this.log.scrollTop = this.log.scrollHeight;
  }

  failed(id, message) {
    this.sent.get(id)?.append(complaint(message));
  }

  user(text, is_pending) {
    const made = h("article", { class: is_pending ? "user pending" : "user", "aria-label": "You" }, h("p", {}, text));
    this.log.append(made);
    return made;
  }

  of(frame) {
    if (!this.runs.has(frame.run)) {
      this.runs.set(frame.run, new Run(this.log));
      this.active.add(frame.run);
    }
    return this.runs.get(frame.run);
  }

  /** Puts the text of received deltas into the page, and looks for finished blocks. */
  flow(run) {
    if (!run.pieces?.length) return;
    const text = run.pieces.join("");
    run.pieces = [];
    run.put();
    run.text += text;
    let last = run.live.lastElementChild;
    if (!last || last.textContent.length > PIECE || last.tagName !== "SPAN") run.live.append(last = h("span", {}));
    last.append(text);
    this.look(run);
  }

  async look(run) {
    if (run.looking || run.text.length > MOST) return;
    run.looking = true;
    await new Promise((go) => setTimeout(go, STEP));
    const { text, part } = run;
    if (text) {
      try {
        const found = await post("/api/markdown", { text });
        if (run.part === part && run.text.startsWith(text)) {
          run.done.append(...built(found.settled));
          show(run.live, built(found.live));
          const rest = run.text.slice(text.length);
          if (rest) run.live.append(h("span", {}, rest));
          run.text = run.text.slice(found.done);
        }
      } catch {
        // the whole message comes later in any case
      }
    }
    run.looking = false;
    if (run.part === part && run.text.length > text.length) this.look(run);
  }
}

const HEARD = {
  start(run, frame) {
    run.request = frame.request;
    this.hooks.begun(frame.request);
  },
  delta(run, frame) {
    (run.pieces ||= []).push(frame.text);
    run.streamed += frame.text.length;
  },
  message(run, frame) {
    const text = frame.content.map((part) => part.text).join("");
    if (frame.role === "user") {
      const mine = this.sent.get(run.request);
      if (mine) mine.classList.remove("pending");
      else this.user(text, false);
      this.words = text;
      return;
    }
    this.flow(run);
    run.put();
    run.fresh.push(...built(frame.nodes || [text]));
    run.streamed -= text.length;
    if (run.streamed > 0) return;
    const { part, fresh } = run;
    run.renew();
    show(part, h("div", { class: "markdown" }, fresh));
  },
  reasoning_delta(run, frame) {
    if (!run.thought?.isConnected || run.thought !== run.element.lastElementChild) {
      run.thought = h("details", { class: "thought" }, h("summary", {}, "Reasoning"), h("pre", { tabindex: "0" }));
      run.add(run.thought);
    }
    run.thought.lastElementChild.append(frame.text);
  },
  tool_call(run, frame) {
    this.flow(run);
    run.renew();
    const made = h("details", { class: "call" }, h("summary", {}, frame.name),
      about(frame.name, frame.input, frame.diff));
    run.calls.set(frame.call, made);
    run.add(made);
  },
  tool_result(run, frame) {
    const made = run.calls.get(frame.call);
    const result = h("pre", { class: frame.is_error ? "error" : "result", tabindex: "0", role: "group", "aria-label": "Result" },
      frame.output || "(nothing)");
    if (made) {
      made.append(result);
      made.firstElementChild.textContent = `${frame.name}${frame.is_error ? " failed" : ""}`;
    } else run.add(result);
  },
  progress(run, frame) {
    if (frame.early) run.add(complaint(frame.message));
    else if (run.progress?.isConnected) run.progress.textContent = frame.message;
    else run.add(run.progress = h("p", { class: "progress" }, frame.message));
  },
  media(run, frame) {
    run.add(attached(frame.attachment || {}));
  },
  usage(run, frame) {
    run.usage = frame;
  },
  error(run, frame) {
    this.flow(run);
    run.add(complaint(frame.message));
  },
  done(run, frame) {
    this.flow(run);
    this.active.delete(frame.run);
    this.ended = frame.status;
    run.progress?.remove();
    if (frame.status === "cancelled") run.add(h("p", { class: "note" }, "Stopped."));
    if (run.usage) run.add(h("p", { class: "usage" },
      `${run.usage.input_tokens} tokens in, ${run.usage.output_tokens} out${run.usage.model ? `, ${run.usage.model}` : ""}`));
  },
};
