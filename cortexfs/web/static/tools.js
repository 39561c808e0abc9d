// Tools: a form from each tool's schema, the command that does the same, and the output as it comes.

import { exact, get, run } from "./api.js";
import { offered } from "./apps.js";
import { base64, button, complaint, h, show } from "./dom.js";
import { addressed, bare, table, within } from "./lists.js";
import { attached } from "./media.js";

const MOST = 1 << 20;  // characters of output that the page keeps
let numbers = 0;

/** Returns a part of a form: its element, and its current value, which is undefined if it is left out. */
function field(name, schema, is_required) {
  const kind = Array.isArray(schema.type) ? schema.type.find((each) => each !== "null") : schema.type;
  const id = `field-${++numbers}`;
  const hint = schema.description ? h("small", { id: `${id}-about` }, schema.description) : null;
  const told = { id, "aria-describedby": hint ? `${id}-about` : null, required: is_required && kind !== "boolean" };
  const label = h("label", { for: id }, schema.title || name, is_required ? " (needed)" : "");
  const start = schema.default;
  if (Array.isArray(schema.enum)) {
    const all = is_required ? schema.enum : ["", ...schema.enum];
    const names = all.map((each) => schema.enumNames?.[schema.enum.indexOf(each)] ?? String(each));
    const made = h("select", told, names.map((each, place) => h("option", { value: String(place) }, each)));
    if (start !== undefined) made.value = String(all.indexOf(start));
    return part([label, made, hint], () => (all[made.value] === "" ? undefined : all[made.value]));
  }
  if (kind === "boolean") {
    const made = h("input", { ...told, type: "checkbox", checked: start === true });
    return part([h("div", { class: "check" }, made, label), hint],
      () => (made.checked ? true : start === true || is_required ? false : undefined));
  }
  if (kind === "integer" || kind === "number") {
    const made = h("input", { ...told, type: "number", step: kind === "integer" ? "1" : "any",
      min: schema.minimum, max: schema.maximum, value: start });
    return part([label, made, hint], () => (made.value === "" ? undefined : counted(made.value)));
  }
  if (kind === "object" && schema.properties) {
    if (is_required || !schema.required?.length) return group(name, schema, hint);
    const { element, value } = many(name, { items: schema, maxItems: 1 }, hint);  // with all that it needs, or not
    return { element, value: () => value()?.[0] };
  }
  if (kind === "array" && schema.items) return many(name, schema, hint);
  if (schema.isLine) {
    const made = h("input", { ...told, type: "text", value: start });
    return part([label, made, hint], () => (made.value === "" && !is_required ? undefined : made.value));
  }
  if (kind === "string") {
    const made = h("textarea", { ...told, rows: "1", spellcheck: "false" });
    made.value = start ?? "";
    const is_base64 = schema.contentEncoding === "base64";
    const file = h("input", { type: "file", "aria-label": `File for ${name}`, onchange: () => filled(file, made, is_base64) });
    return part([label, made, file, hint], () => (made.value === "" && !is_required ? undefined : made.value));
  }
  const made = h("textarea", { ...told, rows: "2", spellcheck: "false", placeholder: "JSON" });
  made.value = start === undefined ? "" : JSON.stringify(start);
  return part([label, made, hint], () => (made.value.trim() ? parsed(name, made.value) : undefined));
}

/** A number, with all digits of one that JavaScript cannot hold. */
function counted(text) {
  const number = Number(text);
  return Number.isInteger(number) && !Number.isSafeInteger(number) ? parsed("number", text) : number;
}

function parsed(name, text) {
  try {
    return exact(text);
  } catch {
    throw new Error(`${name}: this is no JSON`);
  }
}

async function filled(file, place, is_base64) {
  const [chosen] = file.files;
  if (!chosen) return;
  place.value = is_base64 ? base64(new Uint8Array(await chosen.arrayBuffer())) : await chosen.text();
  place.dispatchEvent(new Event("input", { bubbles: true }));
}

function part(children, value) {
  return { element: h("div", { class: "field" }, children), value };
}

export function group(name, schema, hint) {
  const inner = Object.entries(schema.properties)
    .map(([key, one]) => [key, field(key, one, (schema.required || []).includes(key))]);
  return {
    element: h("fieldset", {}, h("legend", {}, name), hint, inner.map(([, one]) => one.element)),
    value: () => {
      const found = inner.map(([key, one]) => [key, one.value()]).filter(([, value]) => value !== undefined);
      return found.length || (schema.required || []).length ? Object.fromEntries(found) : undefined;
    },
  };
}

function many(name, schema, hint) {
  const rows = [];
  const list = h("div", {});
  const add = (start) => {
    const one = field(`${name} ${rows.length + 1}`, start === undefined ? schema.items : { ...schema.items, default: start }, true);
    rows.push(one);
    const row = h("div", { class: "row" }, one.element, button("Remove", () => {
      rows.splice(rows.indexOf(one), 1);
      row.remove();
      more.disabled = false;
      more.focus();
      list.dispatchEvent(new Event("input", { bubbles: true }));
    }, { "aria-label": `Remove ${name} ${rows.length}` }));
    list.append(row);
    more.disabled = rows.length >= schema.maxItems;
  };
  const more = button("Add", () => add(), { "aria-label": `Add ${name}` });
  for (const each of Array.isArray(schema.default) ? schema.default : []) add(each);
  return {
    element: h("fieldset", {}, h("legend", {}, name), hint, list, more),
    value: () => (rows.length ? rows.map((one) => one.value()) : undefined),
  };
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export async function tools(place, words, context) {
  const found = await get("/api/objects", null, context.signal);
  const there = found.filter(({ object }) => within(object).startsWith("tool/"));
  if (words[0]) {
    const chosen = there.find(({ object }) => bare(object) === words[0]);
    if (!chosen) throw new Error(`there is no tool ${words[0]}`);
    return one(place, chosen.object, context);
  }
  show(place, h("h1", {}, "Tools"), h("ul", { class: "cards" }, there.map(({ object, description, status }) =>
    h("li", {}, h("a", { href: addressed("tools", bare(object)) }, bare(object)),
      status === "ready" ? null : ` (${status})`, h("p", {}, description)))));
}

async function one(place, object, { signal, say }) {
  const facts = await get("/api/tool", { object }, signal);
  const form = group("Input", { ...facts.schema, properties: facts.schema.properties || {} });
  const line = h("code", {});
  const output = h("pre", { class: "output", role: "log", "aria-label": "Output", tabindex: "0" });
  const made = h("div", {});
  const fault = complaint();
  const ran = h("ul", {});
  let going = null;
  const dry = h("input", { id: "dry", type: "checkbox" });
  const stop = button("Stop", () => going?.abort(), { disabled: true });
  const start = h("button", { type: "submit", class: "go" }, "Run");
  const look = () => {
    try {
      line.textContent = `ctx run ${object}${dry.checked ? " --dry-run" : ""} ${quoted(JSON.stringify(form.value() || {}))}`;
    } catch (problem) {
      line.textContent = problem.message;
    }
  };
  const press = async (event) => {
    event.preventDefault();
    if (!stop.disabled) return;  // it runs; a button that is disabled would lose the focus
    fault.textContent = "";
    output.textContent = "";
    show(made);
    going = new AbortController();
    stop.disabled = false;
    try {
      const input = form.value() || {};
      await run("/api/run", { object, input, dry: dry.checked }, (frames) => hear(frames, { output, made, fault, say }),
        AbortSignal.any([going.signal, signal]));
      ran.prepend(h("li", {}, h("code", {}, line.textContent)));
    } catch (problem) {
      fault.textContent = problem.name === "AbortError" ? "Stopped." : problem.message;
    }
    if (stop === document.activeElement) start.focus();
    stop.disabled = true;
  };
  const effects = facts.effects.trim();
  show(place, h("h1", {}, bare(object)), h("p", { class: "about" }, facts.description),
    effects ? h("details", {}, h("summary", {}, "Effects"), h("pre", { tabindex: "0" }, effects)) : null,
    h("form", { onsubmit: press, oninput: look }, form.element, facts.dry
      ? h("div", { class: "check" }, dry, h("label", { for: "dry" }, "Dry run: say what it would do")) : null,
    h("div", { class: "row" }, start, stop)),
    h("h2", {}, "In a shell"), h("p", {}, line), h("h2", {}, "Output"), fault, output, made,
    h("details", {}, h("summary", {}, "Past runs"), ran, table("Past runs", ["When", "How it ended", "Took"],
      facts.runs.map(({ ts, status, code, ms }) => [new Date(ts).toLocaleString(), code ? `${status} (${code})` : status,
        `${(ms / 1000).toFixed(1)} s`]), "It was not run yet.")));
  look();
  offered(place, object, () => form.value() || {}, { signal, say });
}

function hear(frames, { output, made, fault, say }) {
  let text = "";
  for (const frame of frames) {
    if (frame.type === "delta") text += frame.text;
    else if (frame.type === "media") made.append(attached(frame.attachment || {}));
    else if (frame.type === "progress") say(frame.message);
    else if (frame.type === "error") fault.textContent = frame.message;
    else if (frame.type === "done") say(`the run ended: ${frame.status}`);
  }
  if (text) output.append(text);
  let size = output.textContent.length;
  while (size > MOST && output.childNodes.length > 1) {
    size -= output.firstChild.textContent.length;
    output.firstChild.remove();
    fault.textContent = "The output is long: only the end of it is shown.";
  }
}
