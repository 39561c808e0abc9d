// MCP Apps: a tool's page in a frame, which uses its own server's tools and resources by JSON-RPC.

import { post } from "./api.js";
import { button, complaint, h, show } from "./dom.js";
import { MOST_ASKED, allowed, frame, watch } from "./panels.js";

const VERSION = "2026-01-26";
const TALLEST = 2000;  // pixels: the greatest height that a frame can choose
const ASK = ["tools/call", "resources/read"];

/** Adds a button beside a tool that has an app: it calls the tool, and shows the answer in the app. */
export async function offered(place, object, input, context) {
  if (!/^tool\//.test(object)) return;
  const { uri } = await post("/api/app/find", { object }).catch(() => ({}));
  if (!uri || context.signal.aborted) return;
  const shown = h("section", { "aria-label": "App" });
  place.append(h("h2", {}, "App"), button("Run in its app", async () => {
    try {
      await app(shown, object, input(), context);
    } catch (problem) {
      show(shown, complaint(problem.message));
    }
  }), shown);
}

async function app(place, object, args, { signal, say }) {
  const found = await post("/api/app/open", { object });
  const questions = h("div", {});
  const state = { found, questions, asked: 0, allowed: new Set() };
  const call = (method, params) => post("/api/app/ask", { frame: found.frame, method, params });
  const result = call("tools/call", { name: found.tool.name, arguments: args });
  result.catch(() => {});  // the app gets the error once it listens
  const made = frame(found.title, found.path, async (data) => {
    if (data?.jsonrpc !== "2.0" || typeof data.method !== "string") return;
    const answer = (said) => data.id !== undefined
      && made.inner.contentWindow?.postMessage({ jsonrpc: "2.0", id: data.id, ...said }, "*");
    try {
      answer({ result: await heard(data, state, call, made.inner, say) });
    } catch (problem) {
      answer({ error: { code: problem.rpc || -32000, message: problem.message } });
    }
    if (data.method === "ui/notifications/initialized") begin(made, args, result);
  }, signal, (why) => show(place, complaint(why)));
  show(place, questions, made.inner);
  watch(found.frame, made);
}

async function begin(made, args, result) {
  const tell = (method, params) => made.inner.contentWindow?.postMessage({ jsonrpc: "2.0", method, params }, "*");
  tell("ui/notifications/tool-input", { arguments: args });
  try {
    tell("ui/notifications/tool-result", await result);
  } catch (problem) {
    tell("ui/notifications/tool-result", { content: [{ type: "text", text: problem.message }], isError: true });
  }
}

async function heard({ method, params }, state, call, inner, say) {
  if (method === "ui/initialize") return greeting(state.found.tool);
  if (method === "ping") return {};
  if (method === "ui/notifications/size-changed" && params?.height > 0) {
    inner.style.height = `${Math.min(TALLEST, Math.ceil(params.height))}px`;
  }
  if (method === "notifications/message") say(`${state.found.plugin}: ${String(params?.data).slice(0, 200)}`);
  if (method.startsWith("notifications/") || method.startsWith("ui/notifications/")) return {};
  if (method === "ui/request-display-mode") return { mode: "inline" };
  if (!ASK.includes(method)) throw Object.assign(new Error(`${method.slice(0, 100)} is not done here`), { rpc: -32601 });
  if (state.asked >= MOST_ASKED) throw new Error("too much is asked at once");
  state.asked += 1;
  try {
    if (method === "tools/call") {
      const tool = String(params?.name);
      const about = await post("/api/app/tool", { frame: state.found.frame, tool });
      if (about.asks && !state.allowed.has(tool)) await allowed(state, tool, params.arguments, about.effects);
    }
    return await call(method, params || {});
  } finally {
    state.asked -= 1;
  }
}

function greeting(tool) {
  const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  return {
    protocolVersion: VERSION,
    hostInfo: { name: "CortexFS", version: "1" },
    hostCapabilities: { serverTools: {}, serverResources: {}, logging: {} },
    hostContext: { theme, displayMode: "inline", availableDisplayModes: ["inline"], platform: "web",
      locale: navigator.language, toolInfo: { tool } },
  };
}
