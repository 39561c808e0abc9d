// MCP servers: the list of them, adding one, importing those of another client, and logins.

import { get, post, run } from "./api.js";
import { button, complaint, form, h, show } from "./dom.js";
import { table } from "./lists.js";

const ADDRESS = /^log in there: (https?:\/\/\S+)$/m;

/** Returns a form of one-line fields: `[name, label, attributes]`. */
function lines(caption, fields, verb, press) {
  const inputs = fields.map(([name, , more]) => h("input", { id: `${caption.replaceAll(" ", "-")}-${name}`, spellcheck: "false",
    autocomplete: "off", ...more }));
  const go = async () => {
    start.disabled = true;
    await press(Object.fromEntries(fields.map(([name], place) => [name, inputs[place].value])))
      .finally(() => { start.disabled = false; });
  };
  const start = h("button", { type: "submit" }, verb);
  return h("details", { class: "narrow" }, h("summary", {}, caption), form(go,
    fields.map(([, label], place) => [h("label", { for: inputs[place].id }, label), inputs[place]]), start));
}

export async function servers(context) {
  const { signal, say } = context;
  const found = await get("/api/servers", null, signal);
  const again = (done) => { say(done); dispatchEvent(new Event("hashchange")); };
  const login = h("div", { role: "region", "aria-label": "Login" });
  const step = (path, name, done) => post(path, { name }).then(() => again(done), (problem) => say(problem.message));
  const remove = (name) => confirm(`Remove the MCP server ${name}, with its secrets?`)
    && step("/api/mcp/remove", name, `removed ${name}`);
  const rows = found.map((each) => [each.name, each.server, each.status,
    each.reason || `${each.tools.length} tools`, h("div", { class: "row" },
      each.transport === "http" ? button("Log in", () => enter(login, each.name, context), { "aria-label": `Log in at ${each.name}` }) : null,
      button("Remove", () => remove(each.name), { "aria-label": `Remove ${each.name}` }))]);
  // A server that was added but is broken is in the list all the same.
  const more = async (path, value, done) => {
    try {
      again(done(await post(path, value)));
    } catch (problem) {
      if ((await get("/api/servers", null, signal)).length === found.length) throw problem;
      again(problem.message);
    }
  };
  const add = (value) => more("/api/mcp/add", value, () => `added ${value.name}`);
  const adopt = (value) => more("/api/mcp/import", value, ({ notes }) => notes);
  return [h("h2", {}, "MCP servers"), table("MCP servers", ["Name", "Server", "Status", "Tools", "Do"], rows,
    "There are no MCP servers."), login,
  lines("Add an MCP server", [["name", "Its name here", { required: true }],
    ["command", "Command that starts it, as: uvx mcp-server-time"], ["url", "Or its address"],
    ["secret", "Name of a variable or header that is secret, if it wants one"],
    ["value", "Its value, which is never shown", { type: "password" }]], "Add", add),
  lines("Import those of another client", [["name", "Its file on this machine", { required: true }]], "Import", adopt)];
}

/** Logs in. The user opens the shown address in a browser on this machine. */
async function enter(place, name, { signal, say }) {
  let text = "";
  show(place, h("p", { class: "note" }, `${name} is asked how to log in.`));
  const tell = (line) => {
    text += line;
    const found = ADDRESS.exec(text);
    if (found) show(place, h("p", {}, "Log in there: ", h("a", { href: found[1], target: "_blank",
      rel: "noopener noreferrer" }, found[1])));
  };
  try {
    await run("/api/mcp/login", { name }, (parts) => {
      for (const part of parts) {
        if (part.message) throw new Error(part.message);
        tell(part.text);
      }
    }, signal);
    show(place, h("p", {}, text.trim().split("\n").at(-1)));
    say(`the login at ${name} is over`);
  } catch (problem) {
    if (!signal.aborted) show(place, complaint(problem.message));
  }
}
