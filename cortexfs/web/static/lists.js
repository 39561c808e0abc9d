// Lists of agents, models and sessions.

import { get, post } from "./api.js";
import { ago, button, form, h, show } from "./dom.js";

const MOST_SESSIONS = 500;  // that the process lists (telling.py)

export const addressed = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export function table(caption, heads, rows, empty) {
  if (!rows.length) return h("p", {}, empty);
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}

/** Returns the path of an object within its home, and its name. */
export const within = (object) => object.replace(/^home\/\d+\//, "");
export const bare = (object) => within(object).split("/").slice(1).join("/");

async function ofClass(place, title, kind, words, { signal, say }) {
  if (words[0]) return one(place, words[0], { signal, say });
  const found = await get("/api/objects", null, signal);
  const there = found.filter(({ object }) => within(object).startsWith(`${kind}/`));
  show(place, h("h1", {}, title), table(title, ["Name", "Set up", "Status", "From", "About"],
    there.map(({ object, status, origin, description }) => [
      h("a", { href: addressed("talk", "private", object, "default") }, bare(object)),
      h("a", { href: addressed(`${kind}s`, object), "aria-label": `Set up ${bare(object)}` }, "Set up"),
      status, origin, description,
    ]), `There are no ${kind}s.`));
}

/** Shows the control files of an object, to read and to edit. */
async function one(place, object, { signal, say }) {
  const found = await get("/api/controls", { object }, signal);
  show(place, h("h1", {}, bare(object)), found.map(({ name, text, writable }) => {
    if (!writable) return [h("h2", {}, name), h("pre", { tabindex: "0", role: "group", "aria-label": name }, text)];
    const box = h("textarea", { "aria-label": name, rows: "2", spellcheck: "false" });
    box.value = text;
    const save = async () => {
      const whole = box.value && !box.value.endsWith("\n") ? `${box.value}\n` : box.value;
      await post("/api/control", { object, name, text: whole });
      say(`saved ${name}`);
    };
    return [h("h2", {}, name), form(save, box, h("button", { type: "submit", "aria-label": `Save ${name}` }, "Save"))];
  }));
}

export const agents = (place, words, context) => ofClass(place, "Agents", "agent", words, context);

export async function models(place, words, context) {
  await ofClass(place, "Models", "model", words, context);
  if (!words[0]) place.append(...(await providers(context)));
}

/** Returns the table of providers, and the forms for their keys, which are written and never shown. */
async function providers({ signal, say }) {
  const found = await get("/api/providers", null, signal);
  const key = h("input", { id: "key", type: "password", autocomplete: "off", required: true });
  const whose = h("select", { id: "whose" }, found.map(({ name }) => h("option", {}, name)));
  const save = async (event) => {
    event.preventDefault();
    await post("/api/provider/secret", { name: whose.value, value: key.value })
      .then(() => { key.value = ""; say(`the key of ${whose.value} is kept`); }, (problem) => say(problem.message));
  };
  return [h("h2", {}, "Providers"), table("Providers", ["Name", "Format", "Address", "Models", "Key"],
    found.map((each) => [each.name, each.format, each.base_url, String(each.models), each.status]),
    "There are no providers; see: ctx provider add."),
  newcomer(say), found.length ? h("form", { class: "narrow", onsubmit: save }, h("label", { for: "whose" }, "Provider"), whose,
    h("label", { for: "key" }, "Key"), key, h("button", { type: "submit" }, "Keep")) : ""];
}

function newcomer(say) {
  const name = h("input", { id: "vendor", required: true, spellcheck: "false", "aria-describedby": "vendor-about" });
  const add = async (event) => {
    event.preventDefault();
    await post("/api/provider/add", { name: name.value }).then(() => {
      say(`added ${name.value}`);
      dispatchEvent(new Event("hashchange"));
    }, (problem) => say(problem.message));
  };
  return h("form", { class: "narrow", onsubmit: add }, h("label", { for: "vendor" }, "Add a provider"), name,
    h("small", { id: "vendor-about" }, "One that is known by its name, as openai, anthropic or ollama"), " ",
    h("button", { type: "submit" }, "Add"));
}

/** Said below a list that has not all of them. */
export const newest = ({ length }) => (length < MOST_SESSIONS ? null
  : h("p", { class: "note" }, `The newest ${MOST_SESSIONS} are listed and searched; ctx session list has all.`));

export async function sessions(place, words, { signal, say }) {
  const found = await get("/api/sessions", null, signal);
  const remove = async (one, row) => {
    if (!confirm(`Remove the session ${one.session} of ${one.object}? It cannot be had back.`)) return;
    await post("/api/remove", { object: one.object, session: one.session, scope: one.space });
    row.closest("tr").remove();
    place.focus();
    say(`removed the session ${one.session}`);
  };
  const team = found.some(({ machine }) => machine);
  const heads = ["Session", "Of", "State", "Used", "Messages", "Place", ...(team ? ["Machine"] : []), "Change"];
  const where = ({ space, cwd }) => [space === "shared" ? space : "", cwd].filter(Boolean).join(", ");
  show(place, h("h1", {}, "Sessions"), table("Sessions", heads, found.map((one) => {
    const of = `${one.session} of ${one.object}`;
    const failed = (problem) => say(problem.message);
    const away = button("Remove", () => remove(one, away).catch(failed), { "aria-label": `Remove ${of}` });
    const name = button("Rename", () => renamed(one, one.space).then((is) => is && dispatchEvent(new Event("hashchange")), failed),
      { "aria-label": `Rename ${of}` });
    return [h("a", { href: addressed("talk", one.space, one.object, one.session) }, one.session), one.object, one.state,
      ago(one.updated), String(one.messages), where(one), ...(team ? [one.machine || ""] : []), h("span", { class: "row" }, name, away)];
  }), "There are no sessions yet."), newest(found));
}

/** Asks for a new name of a session, and renames it. Returns the name, or null if none was entered. */
export async function renamed({ object, session }, scope) {
  const name = prompt(`The new name of ${session}`, session)?.trim();
  if (!name || name === session) return null;
  await post("/api/rename", { object, session, scope, name });
  return name;
}
