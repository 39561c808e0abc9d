// Agents: creating one, what an agent may run and why, and removing one. lists.js has an agent's controls.

import { get, post } from "./api.js";
import { button, complaint, form, h, show } from "./dom.js";
import { addressed, agents as listed, bare, within } from "./lists.js";

const PRESETS = [["read", "reads files"], ["code", "works on files"], ["chat", "talks"]];

export async function agents(place, words, context) {
  await listed(place, words, context);
  const [object] = words;
  const known = await get("/api/objects", null, context.signal);
  const of = (kind) => known.map((one) => within(one.object)).filter((name) => name.startsWith(`${kind}/`));
  if (!object) return place.append(another(of("model"), context));
  return place.append(explained(object, of("tool"), context), removed(object, context));
}

function another(models, { say }) {
  const name = h("input", { id: "agent-name", required: true, spellcheck: "false", pattern: "[A-Za-z0-9][A-Za-z0-9._+\\-]*" });
  const preset = h("select", { id: "agent-preset" }, PRESETS.map(([value, about]) => h("option", { value }, `${value}: ${about}`)));
  const model = h("select", { id: "agent-model" }, h("option", { value: "" }, "main"),
    models.map((each) => h("option", {}, each.replace("model/", ""))));
  const tools = h("input", { id: "agent-tools", spellcheck: "false", "aria-describedby": "agent-tools-about" });
  const approval = h("select", { id: "agent-approval" }, h("option", { value: "" }, "as its policy says"),
    h("option", { value: "ask" }, "ask about every call"));
  const system = h("textarea", { id: "agent-system", rows: "2" });
  const make = async () => {
    await post("/api/agent/new", { name: name.value, preset: preset.value, model: model.value,
      tools: tools.value, approval: approval.value, system: system.value });
    say(`made the agent ${name.value}`);
    dispatchEvent(new Event("hashchange"));
  };
  const field = (label, input, about) => [h("label", { for: input.id }, label), input, about];
  return h("details", { class: "narrow" }, h("summary", {}, "New agent"), form(make,
    field("Name", name), field("Preset", preset), field("Model", model),
    field("Tools", tools, h("small", { id: "agent-tools-about" }, "Names or patterns, with commas; empty for those of the preset")),
    field("Approval", approval), field("System prompt", system),
    h("button", { type: "submit", class: "go" }, "Make")));
}

/** Shows whether the agent may run an object: the decision, the rule, and the result of each layer. */
function explained(object, tools, { signal }) {
  const asked = h("input", { id: "explain", list: "explain-tools", required: true, spellcheck: "false" });
  const told = h("div", { role: "region", "aria-label": "Explanation", tabindex: "0" });
  const explain = async (event) => {
    event.preventDefault();
    try {
      const said = await get("/api/policy", { caller: within(object), object: asked.value }, signal);
      show(told, h("p", {}, h("strong", {}, said.allowed ? (said.confirm ? "Allowed, after a question." : "Allowed.") : "Refused."),
        ` ${said.reason}`), h("p", {}, "Rule: ", h("code", {}, said.rule)),
      h("dl", {}, said.steps.map(({ layer, ...rest }) => [h("dt", {}, layer), h("dd", {}, Object.values(rest).join(": "))])));
    } catch (problem) {
      show(told, complaint(problem.message));
    }
  };
  return h("section", { class: "narrow" }, h("h2", {}, "What it may run"), h("form", { onsubmit: explain },
    h("label", { for: "explain" }, "Tool, model or agent"), asked,
    h("datalist", { id: "explain-tools" }, tools.map((each) => h("option", { value: each }))),
    h("button", { type: "submit" }, "Explain")), told);
}

function removed(object, { say }) {
  const name = bare(object);
  const remove = () => confirm(`Remove the agent ${name}? Its sessions stay.`) && post("/api/agent/rm", { name })
    .then(() => { say(`removed the agent ${name}`); location.hash = addressed("agents"); }, (problem) => say(problem.message));
  return h("p", {}, button("Remove this agent", remove));
}
