// The module that a plugin gets for `import { globalEventBus } from "cortex/plugins"`.
//
// Rules: a handler that fails fails alone. A plugin's events go to its own handlers, and to no other plugin's.

const handlers = new Map();

export const globalEventBus = Object.freeze({
  on(type, handler) {
    if (!handlers.has(type)) handlers.set(type, new Set());
    handlers.get(type).add(handler);
    return () => globalEventBus.off(type, handler);
  },
  off(type, handler) {
    handlers.get(type)?.delete(handler);
  },
  emit(event) {
    for (const handler of [...(handlers.get(event.type) ?? [])]) {
      (async () => handler(event))().catch((error) => console.error(`${event.type}: ${error?.stack ?? error}`));
    }
  },
});
