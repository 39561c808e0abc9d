// A tool's questions to a person: a form to fill in, or an address to open, below the name of the tool.

import { post } from "./api.js";
import { button, complaint, h, seen } from "./dom.js";
import { addressed } from "./lists.js";
import { group } from "./tools.js";

/** Returns the link to the session of a question. */
export function whence(asked) {
  return ["Asked by ", h("a", { href: addressed("talk", asked.scope, asked.object, asked.session) },
    `${asked.object} ${asked.session}`)];
}

function schema({ kind, label, choices, default: start }) {
  const told = { title: label, default: start ?? undefined };
  const listed = { enum: choices.map(([value]) => value), enumNames: choices.map(([, title]) => title) };
  if (kind === "choice") return { ...told, ...listed };
  if (kind === "choices") return { ...told, type: "array", items: { type: "string", title: label, ...listed } };
  return { ...told, type: kind, isLine: kind === "string" };
}

export function question(asked, say) {
  const fault = complaint();
  const answer = async (content, done) => {
    fault.textContent = "";
    const { object, run, question: id } = asked;
    try {
      await post("/api/answer", { object, run, question: id, content });
      say(`${done}: ${asked.name}`);
    } catch (problem) {
      fault.textContent = problem.message;
    }
  };
  const decline = button("Decline", () => answer(undefined, "declined"));
  return h("section", { class: "asked", tabindex: "-1", "aria-label": `Question of ${asked.name}` },
    h("h2", {}, `${asked.name} asks`), h("p", {}, whence(asked)), h("p", { class: "about" }, asked.message),
    body(asked, answer, decline), fault);
}

function body(asked, answer, decline) {
  if (asked.fault) return [h("p", {}, `This cannot be answered: ${asked.fault}.`), decline];
  if (asked.url) {
    const opened = { href: asked.url, target: "_blank", rel: "noopener noreferrer nofollow",
      onclick: () => answer({}, "opened") };
    return [h("p", {}, "It asks you to open: ", h("code", {}, seen(asked.url))),
      h("div", { class: "row" }, h("a", opened, `Open ${host(asked.url)}`), decline)];
  }
  const fields = group("Answer", {
    properties: Object.fromEntries(asked.fields.map((field) => [field.name, schema(field)])),
    required: asked.fields.filter(({ required }) => required).map(({ name }) => name),
  });
  const press = (event) => {
    event.preventDefault();
    answer(fields.value() || {}, "answered");
  };
  return h("form", { onsubmit: press }, fields.element,
    h("div", { class: "row" }, h("button", { type: "submit", class: "go" }, "Answer"), decline));
}

function host(url) {
  try {
    return new URL(url).host;
  } catch {
    return url;
  }
}
