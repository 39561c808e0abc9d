(() => {
  // The requests of a plugin's page. This script begins the page, before any script of the plugin.
  // Our page knows a request by its frame. "*" is our page, as no other page may frame this one.
  const { port1: port, port2 } = new MessageChannel();
  const waiting = new Map();
  const hearers = new Map();
  let last = 0;
  const ask = (op, words) => new Promise((done, fail) => {
    waiting.set(++last, { done, fail });
    port.postMessage({ id: last, op, ...words });
  });
  port.onmessage = ({ data }) => {
    if (data.event !== undefined) {
      for (const hear of hearers.get(data.event) || []) hear(data.data);
      return;
    }
    const { done, fail } = waiting.get(data.id);
    waiting.delete(data.id);
    if (data.fault) fail(Object.assign(new Error(data.fault.message), { code: data.fault.code }));
    else done(data.value);
  };
  const fetched = async (path, init = {}) => {
    const body = init.body === undefined || init.body === null ? null : JSON.parse(init.body);
    const said = await ask("fetch", { path: String(path), method: String(init.method || "GET"), body });
    return new Response(JSON.stringify(said.value),
      { status: said.status, headers: { "Content-Type": "application/json" } });
  };
  const notify = (message, type = "info") => {
    port.postMessage({ op: "notify", message: String(message), type: String(type) });
  };
  Object.defineProperty(window, "Cortex", { value: Object.freeze({
    fetch: fetched,
    getConfig: (key) => ask("getConfig", { key: key === undefined ? null : String(key) }),
    setConfig: (key, value) => ask("setConfig", { key: String(key), value }),
    onEvent: (event, hear) => { hearers.set(event, [...(hearers.get(event) || []), hear]); },
    emit: (event, data) => { port.postMessage({ op: "emit", event: String(event), data }); },
    notify,
    showNotification: notify,
  }) });
  parent.postMessage("cortex", "*", [port2]);
})();
