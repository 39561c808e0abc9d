// The frame of the page: its parts, the choice of the shown one, and the count of open questions.

import { enter, exact, follow, loaded, Refused } from "./api.js";
import { complaint, h, show } from "./dom.js";
import { models, sessions } from "./lists.js";
import { talk } from "./talk.js";

// Other parts than the first ones are loaded when they are opened, or when the browser is idle.
const part = (file, name = file) => async (...given) => {
  const found = await loaded(file);
  given.at(-1).signal.throwIfAborted();  // another part is shown by now
  return found[name](...given);
};
const VIEWS = {
  talk, models, sessions, approvals: part("approvals"), tools: part("tools"), agents: part("agents"),
  plugins: connected, status: part("status"), widgets: part("panels", "widgets"),
};
const LATER = ["conversation", "approvals", "tools", "agents", "plugins", "servers", "status"];
const NAMES = ["Talk", "Approvals", "Tools", "Agents", "Models", "Plugins", "Sessions", "Status"];

const main = h("main", { id: "main", tabindex: "-1" });
const said = h("p", { class: "said", role: "status" });
const FRESH = 1000;  // ms in which a notice is of what leads to another part; one of a part that was left goes
let leaving = new AbortController();
let told = 0;
let open = 0;  // questions that wait for a person

/** Shows plugins, and beside them MCP servers, as both bring tools. */
async function connected(place, words, context) {
  await part("plugins")(place, words, context);
  if (!words[0]) place.append(...(await part("servers")(context)));
}

function say(text) {
  said.textContent = "";
  said.textContent = text;
  told = Date.now();
}

function shell() {
  // A link to the part that is shown already shows it again.
  const again = ({ currentTarget }) => currentTarget.hash === location.hash && dispatchEvent(new Event("hashchange"));
  const links = NAMES.map((name) => h("a", { href: `#/${name.toLowerCase()}`, onclick: again }, name));
  show(document.body,
    h("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); main.focus(); } },
      "Go to the content"),
    h("header", {}, h("strong", {}, "CortexFS"), h("nav", { "aria-label": "Parts" }, links)), main, said);
  return links;
}

/** Names the page in lists of tabs: the questions that wait, the shown thing, its part. */
function entitle() {
  const [name, ...words] = place();
  const part = NAMES.find((each) => each.toLowerCase() === name) || (name === "widgets" ? "Widgets" : "Talk");
  const about = part === "Talk" ? words.slice(1, 3) : words.slice(0, 1);  // an object and its session
  const shown = [about.filter(Boolean).join(" ").slice(0, 150), part, "CortexFS"].filter(Boolean).join(" - ");
  document.title = `${open ? `(${open}) ` : ""}${shown}`;
}

const place = () => location.hash.replace(/^#\//, "").split("/").map(named);

/** Shows the part that the address names, and ends the part before it. */
async function route(links) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [name, ...words] = place();
  entitle();
  const view = VIEWS[name] || talk;
  for (const link of links) {
    const is_here = link.textContent.split(" ")[0].toLowerCase() === (VIEWS[name] ? name : "talk");
    if (is_here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const had = main.contains(document.activeElement);
  show(main, h("p", { class: "note wait" }, "One moment."));
  if (had) main.focus();
  if (Date.now() - told > FRESH) said.textContent = "";
  try {
    await view(main, words, { signal, say });
  } catch (problem) {
    if (!signal.aborted) show(main, h("h1", {}, "This cannot be shown"), complaint(problem.message));
  }
}

function named(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

function shut(why) {
  leaving.abort();
  show(document.body, h("main", {}, h("h1", {}, "CortexFS"), h("p", {}, why ||
    "This page is for who started it. Run ctx web, and open the link that it prints.")));
}

/** Only one tab listens for approvals, and passes them to the others, as browsers allow six connections. */
function inbox(links) {
  const link = links[1];
  const channel = new BroadcastChannel("inbox");
  let newest;  // the part may finish loading for an older state after a newer one has come
  const hear = (state) => {
    newest = state;
    loaded("approvals").then(({ counted }) => counted(newest)).catch(() => null);  // the error is shown when the part is opened
    open = state.asked.length;
    entitle();
    link.textContent = open ? `Approvals (${open})` : "Approvals";
  };
  let latest = null;
  channel.onmessage = ({ data }) => {
    if (data !== "latest?") hear(exact(data));
    else if (latest) channel.postMessage(JSON.stringify(latest));
  };
  channel.postMessage("latest?");
  navigator.locks.request("inbox", () => follow("/api/inbox", () => null, (found) => {
    const before = latest?.asked.length || 0;
    latest = found.at(-1);
    if (latest.asked.length > before) ring(latest.asked.at(-1));
    hear(latest);
    channel.postMessage(JSON.stringify(latest));
  }, new AbortController().signal));
}

/** Notifies a person who does not look at the page, if they have allowed that. */
function ring(asked) {
  if (!window.Notification || Notification.permission !== "granted" || document.hasFocus()) return;
  const told = new Notification(asked.type === "question" ? `${asked.name} asks` : `Allow ${asked.name}?`,
    { body: `${asked.object} ${asked.session}`, tag: asked.question || asked.call });
  told.onclick = () => { window.focus(); location.hash = "#/approvals"; };
}

async function begin() {
  // A link that is opened where the page is already changes the address alone.
  addEventListener("hashchange", () => location.hash.startsWith("#ticket=") && location.reload());
  try {
    if (!(await enter())) return shut();
  } catch (problem) {
    return shut(problem instanceof Refused ? problem.message : problem.name === "SecurityError"
      ? "This browser lets the page keep nothing, as where cookies are blocked. Allow that, and reload the page." : undefined);
  }
  const links = shell();
  addEventListener("shut", () => shut());
  addEventListener("hashchange", () => route(links));
  inbox(links);
  await route(links);
  requestIdleCallback(() => LATER.forEach((file) => loaded(file).catch(() => null)));  // shown when it is opened
}

begin();
