// The mount's status, its faults, and the use and costs of models.

import { get, post } from "./api.js";
import { button, complaint, h, show } from "./dom.js";
import { table } from "./lists.js";

export async function status(place, words, context) {
  const { signal, say } = context;
  const found = await get("/api/status", null, signal);
  const more = h("p", {});
  const another = async () => {
    const { link } = await post("/api/ticket", {});
    show(more, "This works once: ", h("code", {}, link));
    say("a link was made");
  };
  const costs = h("section", {});
  show(place, h("h1", {}, "Status"),
    h("dl", {}, Object.entries(found).map(([name, value]) => [h("dt", {}, name.replaceAll("_", " ")),
      h("dd", {}, typeof value === "object" ? JSON.stringify(value) : String(value))])),
    doctor(context), costs,
    h("h2", {}, "Another browser"), button("Make a link", () => another().catch((problem) => say(problem.message))),
    more);
  get("/api/usage", null, signal).then((told) => used(costs, told),
    (problem) => signal.aborted || show(costs, h("h2", {}, "Used"), h("p", { class: "error" }, problem.message)));
}

function doctor({ signal, say }) {
  const told = h("div", {});
  const look = async () => {
    check.disabled = true;
    show(told, h("p", { class: "note" }, "It is looked at."));
    try {
      const found = await get("/api/doctor", null, signal);
      const rank = ["fail", "warn", "ok"];
      found.sort((one, two) => rank.indexOf(one.level) - rank.indexOf(two.level));
      show(told, table("Checks", ["Check", "Result", "Why", "How to mend it"],
        found.map((one) => [one.check, one.level, one.why, one.mend || ""]), "Nothing was checked."));
      say(`${found.filter(({ level }) => level !== "ok").length} findings`);
    } catch (problem) {
      if (!signal.aborted) show(told, complaint(problem.message));
    }
    check.disabled = false;
  };
  const check = button("Check", look);
  return h("section", { "aria-label": "Doctor" }, h("h2", {}, "Doctor"), check, told);
}

const KEYS = [["day", "Day"], ["model", "Model"], ["agent", "Agent"]];

/** Shows tokens and costs, added up by day, model or agent. */
function used(place, { currency, usage, limits }) {
  const list = h("select", { id: "by" }, KEYS.map(([key, name]) => h("option", { value: key }, name)));
  const rows = h("div", {});
  const put = () => {
    const sums = new Map();
    for (const line of usage) {
      const name = line[list.value] || "(none)";
      const sum = sums.get(name) || { calls: 0, input_tokens: 0, output_tokens: 0, cost: null };
      for (const key of ["calls", "input_tokens", "output_tokens"]) sum[key] += line[key];
      if (line.cost !== null) sum.cost = (sum.cost || 0) + line.cost;
      sums.set(name, sum);
    }
    show(rows, table("Used", [list.selectedOptions[0].textContent, "Calls", "Tokens in", "Out", "Cost"],
      [...sums].map(([name, sum]) => [name, sum.calls, sum.input_tokens, sum.output_tokens].map(String)
        .concat(sum.cost === null ? "" : `${sum.cost.toFixed(2)} ${currency || ""}`)), "No model was called yet."));
  };
  list.addEventListener("change", put);
  put();
  show(place, h("h2", {}, "Used"), h("div", { class: "narrow" }, h("label", { for: "by" }, "By"), list), rows,
    limits.map((limit) => h("p", {}, "A limit of this month: ", h("code", {}, JSON.stringify(limit)))));
}
