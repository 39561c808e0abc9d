// The prompts of MCP servers, as forms. The server fills the prompt in, and the result goes into the draft.

import { get, run } from "./api.js";
import { complaint, form, h, show } from "./dom.js";
import { group } from "./tools.js";

const SERVER = /^tool\/(.+)\.mcp$/;

/** Returns the form. `put({ text, files, before })` gets the filled-in prompt. */
export function prompts(context, put) {
  const inside = h("div", {});
  const made = h("details", { class: "prompts" }, h("summary", {}, "Prompts"), inside);
  made.addEventListener("toggle", () => {
    if (!made.open) return;
    show(inside, h("p", { class: "note" }, "They are looked for."));
    listed(context.signal).then((found) => show(inside, choice(found, context, (told) => {
      made.open = false;
      put(told);
    })), (problem) => show(inside, complaint(problem.message)));
  });
  return made;
}

async function listed(signal) {
  const objects = (await get("/api/objects", null, signal)).filter(({ object }) => SERVER.test(object));
  const told = await Promise.all(objects.map(({ object }) => get("/api/tool", { object }, signal).catch(() => null)));
  return objects.flatMap(({ object }, place) => (told[place]?.schema.prompts || []).map((prompt) => ({ object, prompt })));
}

function choice(found, { signal, say }, put) {
  if (!found.length) return h("p", {}, "No MCP server of this mount has prompts.");
  const list = h("select", { id: "prompt" }, found.map(({ object, prompt }, place) =>
    h("option", { value: String(place) }, `${SERVER.exec(object)[1]}.${prompt.name}`)));
  const about = h("p", { class: "about" });
  const place = h("div", {});
  let fields = null;
  const chosen = () => {
    const { prompt: { description = "", required = [], optional = [] } } = found[list.value];
    about.textContent = description;
    const properties = Object.fromEntries([...required, ...optional].map((name) => [name, { type: "string" }]));
    fields = group("Arguments", { properties, required });
    show(place, required.length + optional.length ? fields.element : null);
  };
  const use = async () => {
    const { object, prompt } = found[list.value];
    put(await said(object, { name: prompt.name, arguments: fields.value() || {} }, signal));
    say(`the prompt ${prompt.name} is in your message`);
  };
  list.addEventListener("change", chosen);
  chosen();
  return form(use, h("label", { for: "prompt" }, "Prompt"), list, about, place,
    h("button", { type: "submit" }, "Use this prompt"));
}

/** Returns the filled-in prompt. Its messages up to the assistant's last one go before the user's message. */
async function said(object, params, signal) {
  let text = "";
  let fault = null;
  await run("/api/run", { object, input: { method: "prompts/get", params } }, (frames) => {
    for (const frame of frames) {
      if (frame.type === "delta") text += frame.text;
      else if (frame.type === "error") fault = frame;
    }
  }, signal);
  if (fault) throw new Error(fault.message);
  const { messages } = JSON.parse(text);
  const last = messages.findLastIndex(({ role }) => role === "assistant");
  const before = messages.slice(0, last + 1).map(({ role, content }) => ({ role, content: written(content) }));
  const rest = messages.slice(last + 1).map(({ content }) => content);
  return { text: rest.map(written).filter(Boolean).join("\n\n"), files: rest.map(file).filter(Boolean), before };
}

const written = ({ type, text = "", uri = "", resource }) => (type === "resource_link" ? uri : resource ? resource.text || "" : text);

function file({ data, mimeType = "", resource }) {
  const found = data || resource?.blob;
  return found ? { name: (resource?.uri || mimeType).split("/").at(-1), data: found } : null;
}
