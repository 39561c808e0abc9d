// Our side of an ESM plugin's process: it takes requests from the host and passes them to the plugin.
//
//   host  -> here   64 bytes of a secret, then lines:  {"id":1,"load":..}  {"id":2,"call":..}  {"id":3,"hook":..}
//                   {"cancel":2}  {"event":{..}}  {"answer":1,"value":..}
//   here  -> host   the secret and then  {"id":2,"result":..}  {"id":2,"error":"..","stack":".."}
//                   {"id":2,"delta":".."}  {"id":2,"progress":".."}  {"ack":2}  {"ask":1,"what":"state.get","args":[..]}  {"fatal":".."}
//
// Rules: the plugin's code shares this realm, and could replace functions. So the functions that handle a line are
// saved here before its code is loaded. The secret is never text, as texts can be found in a snapshot of the heap.
// The plugin is imported by a name that is not in the source: only for such names does Deno check its permissions.
// Descriptors 3 and 4 are ours, and cannot be taken again.

import { AsyncLocalStorage } from "node:async_hooks";
import process from "node:process";
import { globalEventBus } from "./plugins.js";

const { apply, defineProperty } = Reflect;
const { parse, stringify } = JSON;
const { Pipe, constants } = process.binding("pipe_wrap");
const { TCP } = process.binding("tcp_wrap");
const { WriteWrap, streamBaseState, kReadBytesOrError, kArrayBufferOffset } = process.binding("stream_wrap");
const Bytes = Uint8Array;
const { indexOf, slice, toWellFormed } = String.prototype;
const { exec } = RegExp.prototype;
const setBytes = Bytes.prototype.set;
const [encoder, decoder] = [new TextEncoder(), new TextDecoder()];
const [encode, decode] = [encoder.encode, decoder.decode];
const [Controller, abort] = [AbortController, AbortController.prototype.abort];
const [Later, Failure, text, exit] = [Promise, Error, String, Deno.exit];
const deliver = globalEventBus.emit;
const SECRET = 64;
const MAX_MESSAGE = 8000;
const MAX_ASKED = 1000;
// Deno's messages about an import that it would have to fetch.
const UNFETCHED =
  /(?:not found in cache: |specifier was requested: |find npm package )["']([^"']*)["']|--no-npm is specified|lockfile is out of date/;

const [input, output] = [new Pipe(constants.SOCKET), new Pipe(constants.SOCKET)];
input.open(3);
output.open(4);
const writeBuffer = output.writeBuffer;
const received = new Bytes(SECRET + 1);
const secret = new Bytes(received.buffer, 0, SECRET); // here, as `buffer` is a function that can be replaced
let got = 0;
let rest = "";

// -- lines

function say(message) {
  let json = stringify(message);
  if (apply(indexOf, json, ["\\ud"]) >= 0) json = stringify(message, whole); // other JSON readers refuse half a character
  const data = apply(encode, encoder, [json]);
  const line = new Bytes(SECRET + data.byteLength + 1);
  apply(setBytes, line, [secret]);
  apply(setBytes, line, [data, SECRET]);
  line[SECRET + data.byteLength] = 10;
  apply(writeBuffer, output, [new WriteWrap(), line]);
}

function whole(_, value) {
  return typeof value === "string" ? apply(toWellFormed, value, []) : value;
}

function hear(data) {
  let from = 0;
  while (got <= SECRET && from < data.byteLength) received[got++] = data[from++];
  const some = new Bytes(data.buffer, data.byteOffset + from, data.byteLength - from);
  const chunk = apply(decode, decoder, [some, { stream: true, __proto__: null }]);
  let start = 0;
  for (let end; (end = apply(indexOf, chunk, ["\n", start])) >= 0; start = end + 1) {
    const line = rest + apply(slice, chunk, [start, end]);
    rest = "";
    take(parse(line));
  }
  rest += apply(slice, chunk, [start]);
}

input.onread = (buffer) => {
  const size = streamBaseState[kReadBytesOrError];
  if (size < 0) exit(0); // the host is gone
  hear(new Bytes(buffer, streamBaseState[kArrayBufferOffset], size));
};

// -- requests

const running = { __proto__: null };
const asked = { __proto__: null };
const tools = { __proto__: null };
let asks = 0, waiting = 0;
let module = {}, plugin = {}, config = {};

const works = { __proto__: null, load, configure, list, call, hook, provider, command };

function take(message) {
  if (message.cancel !== undefined) {
    if (running[message.cancel]) apply(abort, running[message.cancel], []);
    else say({ id: message.cancel, error: "cancelled" });
    say({ ack: message.cancel });
  } else if (message.answer !== undefined) {
    const { done, failed } = asked[message.answer];
    delete asked[message.answer];
    waiting--;
    if (message.error === undefined) done(message.value);
    else failed(new Failure(message.error));
  } else if (message.event !== undefined) {
    deliver(message.event);
  } else {
    serve(message);
  }
}

async function serve(message) {
  const { id } = message;
  running[id] = new Controller();
  try {
    const result = await works[message.do](message);
    say({ id, result: result === undefined ? null : result });
  } catch (error) {
    say({ id, error: described(error), stack: traced(error) });
  } finally {
    delete running[id];
  }
}

function described(error) {
  try {
    const said = apply(slice, text(error?.message ?? error), [0, MAX_MESSAGE]);
    return unfetched(apply(exec, UNFETCHED, [said])) || said || "it failed without a message";
  } catch {
    return "it failed without a message";
  }
}

function traced(error) {
  try {
    return apply(slice, text(error?.stack ?? ""), [0, MAX_MESSAGE]);
  } catch {
    return "";
  }
}

function unfetched(found) {
  if (!found) return "";
  const what = found[1] ? `it imports "${found[1]}"` : "it imports something from npm";
  return `${what}, which was not fetched when it was installed; name it in an import of its own files, and install it again`;
}

function ask(what, ...args) {
  return new Later((done, failed) => {
    if (waiting >= MAX_ASKED) throw new Failure(`over ${MAX_ASKED} questions to the host are under way`);
    say({ ask: ++asks, what, args });
    waiting++;
    asked[asks] = { done, failed };
  });
}

// -- the context of a call

function context(id, more) {
  return { ...plugin, ...more, signal: id && running[id]?.signal, ...voice(id) };
}

function voice(id) {
  const tell = (message) => void (running[id] && say({ id, ...message }));
  return {
    emit: (delta) => tell({ delta: text(delta) }),
    onProgress: (progress) => tell({ progress: text(progress?.message ?? progress) }),
  };
}

const words = (value) => (typeof value === "string" ? value : stringify(value) ?? "");

const state = {
  get: (key) => ask("state.get", text(key)),
  set: (key, value) => ask("state.set", text(key), words(value)),
  delete: (key) => ask("state.delete", text(key)),
  list: () => ask("state.list"),
};

const settings = {
  get: async (key) => (key === undefined ? { ...config } : config[key] ?? null),
  getAll: async () => ({ ...config }),
  set: async (key, value) => {
    await ask("config.set", text(key), value ?? null);
    config[key] = value ?? null;
  },
};

const complain = console.error;
const log = (level) => (...said) => complain(`${plugin.pluginId}: ${level}:`, ...said);
const logger = { info: log("info"), warn: log("warn"), error: log("error"), debug: log("debug") };

function register(tool) {
  const name = tool?.definition?.name;
  if (typeof name !== "string" || typeof tool.execute !== "function") {
    throw new Failure("a tool has a definition with a name, and execute");
  }
  if (tools[name]) throw new Failure(`it registers the tool ${name} twice`);
  tools[name] = tool;
}

const host = { registerTool: register, unregisterTool: (name) => void delete tools[name] };

// -- the host's requests

async function load(message) {
  plugin = { ...message.plugin, state, config: settings, logger, host };
  config = { __proto__: null, ...message.config };
  const entry = message.load;
  module = await import(entry);
  if (!Array.isArray(module.tools ?? [])) throw new Failure("its export tools is no list; write: export const tools = [...]");
  for (const tool of module.tools ?? []) register(tool);
  const found = { __proto__: null };
  for (const name in module) found[name] = typeof module[name];
  const commands = message.commands ? module.cliCommands ?? [] : [];
  return { exports: found, providers: Object.keys(module.providers ?? {}), commands };
}

function configure(message) {
  config = { __proto__: null, ...message.config };
  for (const kind in made) delete made[kind]; // a provider was made with the former settings
}

function list() {
  const found = [];
  for (const name in tools) {
    const { description, params, capabilities } = tools[name].definition;
    found[found.length] = { name, description, params, capabilities };
  }
  return found;
}

function call(message) {
  const tool = tools[message.call];
  if (!tool) throw new Failure(`Unknown tool: ${message.call}`);
  return tool.execute(message.args, context(message.id, message.context));
}

function hook(message) {
  const chosen = module[message.hook];
  if (typeof chosen !== "function") return null;
  const given = message.bare ? message.args : [...message.args, context(message.id, {})];
  return apply(chosen, undefined, given);
}

const speaking = new AsyncLocalStorage(); // the command to which the console's output belongs
const shown = (said) => said.map((each) => (typeof each === "string" ? each : Deno.inspect(each))).join(" ");
const spoken = {
  __proto__: null,
  log: (to, said) => to.emit(shown(said) + "\n"),
  info: (to, said) => to.emit(shown(said) + "\n"),
  warn: (to, said) => to.onProgress(shown(said)),
  error: (to, said) => to.onProgress(shown(said)),
};

for (const name in spoken) {
  const print = console[name];
  console[name] = (...said) => {
    const speaker = speaking.getStore();
    return speaker ? spoken[name](voice(speaker), said) : print(...said);
  };
}

function command(message) {
  const name = message.command.replace(/[-_.]+([a-zA-Z0-9])/g, (_, letter) => letter.toUpperCase());
  const handler = typeof module.default === "function" ? module.default : module[name];
  if (typeof handler !== "function") throw new Failure(`its module exports no handler ${name}`);
  return speaking.run(message.id, () => handler(message.args, context(message.id, message.context)));
}

const made = { __proto__: null };

async function provider(message) {
  const kind = message.provider;
  made[kind] ??= await module.providers[kind]({ ...config });
  const options = { ...message.options, signal: running[message.id].signal };
  if (typeof made[kind].stream !== "function") return answered(await made[kind].complete(options));
  const { emit } = voice(message.id);
  let usage;
  for await (const piece of await made[kind].stream(options)) {
    emit(content(piece));
    usage = piece?.usage ?? usage;
  }
  return answered({ usage });
}

function content(piece) {
  if (typeof piece === "string") return piece;
  for (const name of ["content", "text", "delta"]) if (typeof piece?.[name] === "string") return piece[name];
  return "";
}

function answered(answer) {
  const usage = answer?.usage ?? answer;
  const [input, output] = [usage?.tokensIn ?? usage?.inputTokens, usage?.tokensOut ?? usage?.outputTokens];
  const counted = typeof input === "number" && typeof output === "number" ? [input, output] : null;
  return { text: content(answer), usage: counted };
}

// -- the end of the process, and its beginning

// Keep the channel from programs that the plugin starts. Deno cannot close a descriptor to them, but the C library can.
function seal() {
  const [F_SETFD, FD_CLOEXEC] = [2, 1];
  const libc = Deno.dlopen("libc.so.6", { fcntl: { parameters: ["i32", "i32", "i32"], result: "i32" } });
  for (const fd of [3, 4]) if (libc.symbols.fcntl(fd, F_SETFD, FD_CLOEXEC)) throw new Failure("fcntl failed");
  libc.close();
  Deno.permissions.revokeSync({ name: "ffi" });
}
if (Deno.permissions.querySync({ name: "ffi" }).state === "granted") seal();

for (const kind of ["error", "unhandledrejection"]) {
  addEventListener(kind, (event) => say({ fatal: described(event.error ?? event.reason) }));
}

const refuse = () => {
  throw new Failure("a plugin may not take descriptors of its process");
};
const refused = { __proto__: null, value: refuse, configurable: false, writable: false };
for (const handle of [Pipe, TCP]) defineProperty(handle.prototype, "open", refused);
defineProperty(process, "binding", refused);
delete Deno[Deno.internal];
input.readStart();
