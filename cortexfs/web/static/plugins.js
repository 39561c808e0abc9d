// Plugins: their review before installation, their permissions, and their settings.

import { get, post } from "./api.js";
import { button, complaint, h, show } from "./dom.js";
import { addressed, table } from "./lists.js";
import { contributed, panel, told } from "./panels.js";

export async function plugins(place, words, context) {
  if (words[1]) return panel(place, words, context);
  const found = await get("/api/plugins", null, context.signal);
  const chosen = found.find(({ name }) => name === words[0]);
  if (words[0] && !chosen) throw new Error(`there is no plugin ${words[0]}`);
  if (chosen) {
    await one(place, chosen, context);
    place.append(...(await contributed(chosen.name, context)));
    return;
  }
  show(place, h("h1", {}, "Plugins"), table("Plugins", ["Name", "Version", "Enabled", "Status", "Publisher"],
    found.map((each) => [h("a", { href: addressed("plugins", each.name) }, each.name), each.version || "",
      each.enabled ? "yes" : "no", each.status || "", each.publisher || "unsigned"]), "There are no plugins."),
  await contributed(null, context), newcomer(context));
}

/** Returns the form for a new plugin: it is reviewed first, and then installed. */
function newcomer({ say }) {
  const source = h("input", { id: "source", required: true, spellcheck: "false" });
  const told = h("div", {});
  const failed = (problem) => show(told, complaint(problem.message));
  const review = (event) => {
    event.preventDefault();
    const name = source.value.trim();
    show(told, h("p", { class: "note" }, "It is looked at."));
    post("/api/plugin/review", { name }).then(({ output, notes }) => show(told,
      h("pre", { tabindex: "0", role: "region", "aria-label": "Review" }, `${output}${notes}`),
      button("Install", () => install(name), { class: "go" })), failed);
  };
  const install = (name) => post("/api/plugin/install", { name }).then(() => {
    say("the plugin is installed");
    dispatchEvent(new Event("hashchange"));
  }, failed);
  return h("section", {}, h("h2", {}, "Install"), h("form", { class: "narrow", onsubmit: review },
    h("label", { for: "source" }, "Directory or package on this machine"), source,
    h("button", { type: "submit" }, "Review")), told);
}

async function one(place, chosen, { signal, say }) {
  const about = await get("/api/plugin", { name: chosen.name }, signal);
  const again = () => dispatchEvent(new Event("hashchange"));
  const step = (path, value, done) => post(path, { name: chosen.name, ...value })
    .then(() => say(done), (problem) => say(problem.message)).then(again); // also after a failure, as the plugin may be enabled now
  const facts = Object.entries(chosen).filter(([, value]) => value !== null && value !== "" && value?.length !== 0);
  const verb = chosen.enabled ? "disable" : "enable";
  show(place, h("h1", {}, chosen.name), h("dl", {}, facts.map(([name, value]) => [h("dt", {}, name),
    h("dd", {}, typeof value === "string" ? value : JSON.stringify(value))])),
  permissions(about.permissions, step), settings(about.settings, chosen.name, say),
  button(chosen.enabled ? "Disable" : "Enable", () => step(`/api/plugin/${verb}`, {}, `${verb}d ${chosen.name}`),
    { class: "go" }));
}

function permissions(found, step) {
  if (typeof found === "string" || !found.capabilities.length) return "";
  return [h("h2", {}, "Permissions"), table("Permissions", ["Capability", "Effective", "Why", "Decide"],
    found.capabilities.map(({ capability, effective, reason }) => [capability, effective ? "yes" : "no", reason,
      h("div", { class: "row" }, ["grant", "deny", "default"].map((decision) => button(decision,
        () => step("/api/plugin/permission", { capability, decision }, `${decision}: ${capability}`),
        { "aria-label": `${decision} ${capability}` })))]), "")];
}

/** Returns a form for each setting of a plugin, which is saved by itself. */
function settings(found, plugin, say) {
  if (typeof found === "string" || !found.length) return "";
  return [h("h2", {}, "Settings"), found.map((one, place) => setting(one, `setting-${place}`, plugin, say))];
}

/** Returns the form of one setting. A secret is written and never shown; an empty field keeps it. */
function setting(one, id, plugin, say) {
  const value = one.value ?? one.default;
  const label = one.label || one.key;
  const [input, read] = entry(one, { id, "aria-describedby": `${id}-about` }, value);
  const step = async (given, done) => {
    try {
      await post("/api/plugin/setting", { name: plugin, key: one.key, ...given });
      const { settings: fresh } = await get("/api/plugin", { name: plugin });
      const now = fresh.find(({ key }) => key === one.key);
      form.replaceWith(setting(now, id, plugin, say));
      if (one.type !== "secret") told(plugin, "config:change", { key: one.key, value: now.value ?? null });
      say(done);
    } catch (problem) {
      say(problem.message);
    }
  };
  const save = (event) => {
    event.preventDefault();
    const given = read();
    if (given !== null) step({ value: given }, `set ${one.key} of ${plugin}`);
  };
  const form = h("form", { class: "narrow", onsubmit: save }, h("label", { for: id }, label), input,
    h("small", { id: `${id}-about` }, one.about, one.is_set ? " (set)" : one.is_required ? " (needed)" : ""),
    h("div", { class: "row" }, h("button", { type: "submit", "aria-label": `Save ${label}` }, "Save"),
      one.is_set ? button("Unset", () => step({}, `unset ${one.key}`), { "aria-label": `Unset ${label}` }) : null));
  return form;
}

function entry(one, about, value) {
  if (one.type === "boolean") {
    const box = h("input", { ...about, type: "checkbox", checked: value === true });
    return [box, () => String(box.checked)];
  }
  if (one.type === "select") {
    const list = h("select", about, one.choices.map((each) => h("option", { selected: each === value }, each)));
    return [list, () => list.value];
  }
  const kind = { secret: "password", number: "number" }[one.type] || "text";
  const shown = kind === "password" ? "" : typeof value === "string" ? value : JSON.stringify(value ?? "");
  const line = h("input", { ...about, type: kind, step: "any", autocomplete: "off", value: shown === '""' ? "" : shown,
    placeholder: kind === "password" && one.is_set ? "kept; write another one" : null });
  return [line, () => (kind === "password" ? line.value || null : line.value)];
}
