"""Plugins with hooks for tests: listeners keep their events, the guard changes a call as its text says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.mounted.ctx_mount import Ctx
from tests.mounted.plugins import said
from tests.mounted.test_esm import plugin
from tests.waiting import until

LISTENING = """
import { globalEventBus } from "cortex/plugins";
const heard = [];
export function onLoad() {
  for (const type of %s) globalEventBus.on(type, (event) => heard.push(event));
}
"""

ASKED = "it hangs"  # stands in the log once a call waits for the hook `hang`
# The effect on a call of `echo`, by the call's text.
GUARD = """
let runs = 0;
const never = () => new Promise(() => {});
const before = {
  bad: () => ({ abort: { reason: "policy", message: "not that" } }),
  odd: () => ({ modifyInput: { text: "even" } }),
  wrong: () => ({ modifyInput: { text: 7 } }),
  throw: () => { throw new Error("broken") },
  hang: () => { console.error("it hangs"); return never(); },
  spin: () => { for (;;); },
  die: () => Deno.exit(3),
  garbage: () => 7,
  flood: () => ({ modifyInput: { text: "x".repeat(3 << 20) } }),
  context: (ctx) => ({ modifyInput: { text: JSON.stringify(ctx) } }),
};
const after = {
  secret: () => ({ modifyOutput: "******" }),
  withhold: () => ({ abort: { reason: "secrets" } }),
  spoil: () => { throw new Error("spoilt") },
  result: (ctx) => ({ modifyOutput: JSON.stringify(ctx) }),
};
export const middlewarePre = async (ctx) => before[ctx.toolCall.args.text]?.(ctx);
export const middlewarePost = async (ctx) => after[ctx.toolCall.args.text]?.(ctx);
"""
ECHO = {
    "echo": "runs += 1; return args.text",
    "runs": "return runs",
    "stream": "ctx.onProgress('working'); ctx.emit('one '); ctx.emit('two '); return args.text",
    "failing": "ctx.emit('half'); throw new Error('it broke')",
}
BOTH = ("middleware:pre", "middleware:post")


def guard(where: Path, *stages: str) -> Path:
    return plugin(where, "guard", ECHO, GUARD, capabilities=["tools", *(stages or BOTH)])


def listener(where: Path, name: str, *events: str, more: str = "", **changes: Any) -> Path:
    """Write a plugin that keeps its events, with a tool of the plugin's name that returns them."""
    fields: dict[str, Any] = {"capabilities": ["tools", "events:listener"], "events": list(events)} | changes
    body = {name: "return JSON.stringify(heard)"}
    return plugin(where, name, body, LISTENING % json.dumps(events) + more, **fields)


def heard(ctx: Ctx, name: str, uid: int | None = None) -> list[dict[str, Any]]:
    """Returns the events that a listener has kept, without events of its own tool."""
    found: list[dict[str, Any]] = json.loads(said(ctx, name, uid))
    return [event for event in found if event.get("toolName") != name]


def hears(ctx: Ctx, name: str, count: int, uid: int | None = None) -> list[dict[str, Any]]:
    """Wait until a listener has kept at least `count` events, and return them."""
    return until(lambda: heard(ctx, name, uid), lambda found: len(found) >= count)
