// What there is: agents, models, plugins, sessions, and what the mount says of itself.

import { get, post } from "./api.js";
import { ago, button, h, show } from "./dom.js";

export const addressed = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

function table(caption, heads, rows, empty) {
  if (!rows.length) return h("p", {}, empty);
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell) => h("td", {}, cell)))))));
}

const bare = (object) => object.split("/").slice(object.startsWith("home/") ? 3 : 1).join("/");

async function ofClass(place, title, kind, signal) {
  const found = await get("/api/objects", null, signal);
  const there = found.filter(({ object }) => object.replace(/^home\/\d+\//, "").startsWith(`${kind}/`));
  show(place, h("h1", {}, title), table(title, ["Name", "Status", "From", "About"],
    there.map(({ object, status, origin, description }) => [
      h("a", { href: addressed("talk", "private", object, "default") }, bare(object)), status, origin, description,
    ]), `There are no ${kind}s.`));
}

export const agents = (place, words, { signal }) => ofClass(place, "Agents", "agent", signal);
export const models = (place, words, { signal }) => ofClass(place, "Models", "model", signal);

export async function plugins(place, words, { signal }) {
  const found = await get("/api/plugins", null, signal);
  const chosen = found.find(({ name }) => name === words[0]);
  if (chosen) {
    const facts = Object.entries(chosen).filter(([, value]) => value !== null && value !== "");
    show(place, h("h1", {}, chosen.name), h("dl", {}, facts.map(([name, value]) => [
      h("dt", {}, name), h("dd", {}, typeof value === "string" ? value : JSON.stringify(value))])));
    return;
  }
  show(place, h("h1", {}, "Plugins"), table("Plugins", ["Name", "Version", "Status"],
    found.map((one) => [h("a", { href: addressed("plugins", one.name) }, one.name), one.version || "", one.status || ""]),
    "There are no plugins."));
}

export async function sessions(place, words, { signal, say }) {
  const found = await get("/api/sessions", null, signal);
  const remove = async (one, row) => {
    if (!confirm(`Remove the session ${one.session} of ${one.object}? It cannot be had back.`)) return;
    await post("/api/remove", { object: one.object, session: one.session, scope: one.space });
    row.closest("tr").remove();
    say(`removed the session ${one.session}`);
  };
  show(place, h("h1", {}, "Sessions"), table("Sessions", ["Session", "Of", "State", "Used", "Messages", ""],
    found.map((one) => {
      const away = button("Remove", () => remove(one, away).catch((problem) => say(problem.message)),
        { "aria-label": `Remove ${one.session} of ${one.object}` });
      return [h("a", { href: addressed("talk", one.space, one.object, one.session) }, one.session),
        one.object, one.state, ago(one.updated), String(one.messages), away];
    }), "There are no sessions yet."));
}

export async function status(place, words, { signal, say }) {
  const found = await get("/api/status", null, signal);
  const more = h("p", {});
  const another = async () => {
    const { link } = await post("/api/ticket", {});
    show(more, "This works once: ", h("code", {}, link));
    say("a link was made");
  };
  show(place, h("h1", {}, "Status"),
    h("dl", {}, Object.entries(found).map(([name, value]) => [h("dt", {}, name.replaceAll("_", " ")),
      h("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value))])),
    h("h2", {}, "Another browser"), button("Make a link", () => another().catch((problem) => say(problem.message))),
    more);
}
