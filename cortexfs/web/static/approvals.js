// Open questions: each with its whole call, and the possible answers.

import { exact, get, post } from "./api.js";
import { button, complaint, h, seen, show, written } from "./dom.js";
import { question, whence } from "./questions.js";

const CONSIDER = 500;  // ms without clicks after a card has gone, as the next card moves to its place
const LOOK = 5000;  // ms between two checks for sessions that began elsewhere, while this part is visible
let latest = { asked: [], active: [] };
const watching = new Set();

/** Passes on a new state of the inbox. */
export function counted(state) {
  latest = state;
  for (const look of watching) look(state);
}

function diffed(lines) {
  const names = { "+": "added", "-": "removed", "@": "place", "!": "remark", " ": "same" };
  return h("pre", { class: "diff", tabindex: "0", role: "group", "aria-label": "Change" }, lines.map((line) => {
    const [side, text] = Array.isArray(line) ? line : [line.side, line.text];
    return h("span", { class: names[side] }, `${seen(text)}\n`);
  }));
}

/** Returns all of a call as elements: its change, its command, its input. */
export function about(name, input, diff) {
  const parts = [];
  let rest = input;
  if (diff) {
    parts.push(diffed(diff));
    rest = Object.fromEntries(Object.entries(input).filter(([key]) => !["content", "old", "new", "diff"].includes(key)));
  } else if (name === "shell.exec" && typeof input?.cmd === "string") {
    parts.push(h("pre", { class: "command", tabindex: "0", role: "group", "aria-label": "Command" }, seen(input.cmd)));
    rest = Object.fromEntries(Object.entries(input).filter(([key]) => key !== "cmd"));
  }
  if (rest && (typeof rest !== "object" || Object.keys(rest).length))
    parts.unshift(h("pre", { tabindex: "0", role: "group", "aria-label": "Input" }, written(rest)));
  return parts;
}

/** Returns a question with its answers, as an element. */
function card(asked, say) {
  const text = seen(JSON.stringify(asked.input, null, 2));
  const edit = h("textarea", { "aria-label": "Input", rows: "6", spellcheck: "false" });
  edit.value = text;
  const fault = complaint();
  const decide = async (decision, done) => {
    fault.textContent = "";
    const changed = edit.value !== text;
    try {
      const input = changed && decision !== "deny" ? exact(edit.value) : undefined;
      if (input && decision === "allow_session") throw new Error("what was edited can be allowed once only");
      made.focus();  // as a button that is disabled loses it
      for (const each of buttons) each.disabled = true;
      await post("/api/approve", { object: asked.object, run: asked.run, call: asked.call, decision, input });
      say(`${done}: ${asked.name}`);
    } catch (problem) {
      for (const each of buttons) each.disabled = false;
      fault.textContent = problem.message;
    }
  };
  const buttons = [
    button("Allow", () => decide("allow_once", "allowed"), { class: "go" }),
    button("Allow for this session", () => decide("allow_session", "allowed for this session")),
    button("Deny", () => decide("deny", "denied")),
  ];
  const made = h("section", { class: "asked", tabindex: "-1", "aria-label": `Question about ${asked.name}` },
    h("h2", {}, `Allow ${asked.name}?`),
    h("p", {}, whence(asked), asked.reason ? `: ${seen(asked.reason)}` : ""),
    asked.effects?.length ? h("ul", { "aria-label": "Effects" }, asked.effects.map((each) => h("li", {}, seen(each)))) : null,
    about(asked.name, asked.input, asked.diff),
    h("details", {}, h("summary", {}, "Edit"), edit), h("div", { class: "row" }, buttons), fault);
  return made;
}

/** Keeps a list of cards, one for each open question. A card keeps its edits while its question is open.
 * If a card with the focus goes, the next card gets the focus, or else `rest`. */
export function cards(list, say, rest) {
  const made = new Map();
  let waits;
  const wait = () => {
    list.style.pointerEvents = "none";
    clearTimeout(waits);
    waits = setTimeout(() => { list.style.pointerEvents = ""; }, CONSIDER);
  };
  return (asked) => {
    const now = new Map(asked.map((one) => [`${one.type} ${one.run} ${one.question || one.call}`, one]));
    for (const [key, element] of made) {
      if (now.has(key)) continue;
      const had = element.contains(document.activeElement);
      element.remove();
      if (had) (list.querySelector(".asked") || rest).focus();
      made.delete(key);
      wait();
    }
    for (const [key, one] of now) {
      if (made.has(key)) continue;
      made.set(key, (one.type === "question" ? question : card)(one, say));
      list.append(made.get(key));
    }
  };
}

export async function approvals(place, words, { signal, say }) {
  const list = h("div", {});
  const none = h("p", {}, "Nothing waits to be decided.");
  const fault = complaint();
  let state = latest;
  const put = cards(list, say, place);
  const look = (now) => {
    state = now;
    put(now.asked);
    none.hidden = now.asked.length > 0 || fault.textContent !== "";
  };
  const told = (why) => {
    if (why !== fault.textContent) fault.textContent = why;  // it is read aloud each time that it is set
    look(state);
  };
  const ring = window.Notification && Notification.permission === "default"
    ? button("Notify me", () => Notification.requestPermission().then((given) => say(`notifications: ${given}`))) : null;
  show(place, h("h1", {}, "Approvals"), none, fault, list, ring);
  watch(look, signal);
  // A request for the sessions makes the server find and hold those that a terminal began.
  const find = () => document.hidden || get("/api/sessions", null, signal)
    .then(() => told(""), (problem) => signal.aborted || told(problem.message));
  const timer = setInterval(find, LOOK);
  signal.addEventListener("abort", () => clearInterval(timer));
  find();
}

/** Calls `look` with each state of the inbox, until `signal`. */
export function watch(look, signal) {
  watching.add(look);
  signal.addEventListener("abort", () => watching.delete(look));
  look(latest);
}
