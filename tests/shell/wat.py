"""WebAssembly plugins for tests, written as the bodies of their tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import wasmtime

from cortexfs.core import hostcalls
from cortexfs.core.manifest import targets
from cortexfs.plugins.catalog import Catalog
from cortexfs.plugins.package import targets as files
from tests.shell.calling import Answer, World, serving

# The texts of a plugin lie from here on. The ABI leaves all memory from here to the plugin.
BASE = 0x100000
IMPORTS = """
  (import "env" "host_alloc" (func $alloc (param i32) (result i32)))
  (import "env" "host_free" (func $free (param i32)))
  (import "env" "host_log" (func $log (param i32 i32)))
  (import "env" "host_get_config" (func $config (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_set_state" (func $set (param i32 i32 i32 i32)))
  (import "env" "host_get_state" (func $get (param i32 i32 i32 i32) (result i32)))
  (import "env" "host_http_request"
    (func $http (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "env" "host_get_abi_version" (func $host_abi (result i32)))
  (import "env" "host_get_time_ms" (func $time (result i64)))
  (import "env" "host_random" (func $random (param i32 i32)))
"""
OWN = '(memory (export "memory") 256 512)'
IMPORTED = '(import "env" "memory" (memory 256 512)) (export "memory" (memory 0))'
HIDDEN = '(import "env" "memory" (memory 256 512))'
HELPERS = """
  (global $calls (mut i32) (i32.const 0))
  (func $say (param $p i32) (param $n i32) (param $out i32) (param $length i32) (result i32)
    (memory.copy (local.get $out) (local.get $p) (local.get $n))
    (i32.store (local.get $length) (local.get $n))
    (i32.const 0))
  (func $number (param $v i32) (param $out i32) (param $length i32) (result i32)
    (local $p i32)
    (local.set $p (i32.const 0x1FF020))
    (loop $next
      (local.set $p (i32.sub (local.get $p) (i32.const 1)))
      (i32.store8 (local.get $p) (i32.add (i32.const 48) (i32.rem_u (local.get $v) (i32.const 10))))
      (local.set $v (i32.div_u (local.get $v) (i32.const 10)))
      (br_if $next (local.get $v)))
    (call $say (local.get $p) (i32.sub (i32.const 0x1FF020) (local.get $p))
      (local.get $out) (local.get $length)))
  (func $deep (param $n i32) (result i32)
    (i32.add (i32.const 1) (call $deep (i32.add (local.get $n) (i32.const 1)))))
  (func $is (param $p i32) (param $n i32) (param $q i32) (param $m i32) (result i32)
    (if (i32.ne (local.get $n) (local.get $m)) (then (return (i32.const 0))))
    (loop $next
      (if (i32.eqz (local.get $n)) (then (return (i32.const 1))))
      (local.set $n (i32.sub (local.get $n) (i32.const 1)))
      (br_if $next (i32.eq
        (i32.load8_u (i32.add (local.get $p) (local.get $n)))
        (i32.load8_u (i32.add (local.get $q) (local.get $n))))))
    (i32.const 0))
"""


class Texts:
    """The texts in a plugin's memory, each with its address."""

    def __init__(self) -> None:
        self.data = bytearray()

    def __call__(self, text: str | bytes) -> str:
        """Add a text, and return its pointer and its length as two constants."""
        data = text.encode() if isinstance(text, str) else text
        at = BASE + len(self.data)
        self.data += data
        return f"(i32.const {at}) (i32.const {len(data)})"

    def segment(self) -> str:
        shown = "".join(f"\\{byte:02x}" for byte in self.data)
        return f'(data (i32.const {BASE}) "{shown}")'


def capabilities(tools: Mapping[str, str], /, **fields: Any) -> bytes:
    params = [{"name": "text", "type": "string", "description": "A text", "required": False}]
    said = [{"name": name, "description": "A tool", "params": params} for name in tools]
    return msgspec.json.encode({"abi_version": 1, "tools": said} | fields)


def text(
    tools: Mapping[str, str],
    texts: Texts | None = None,
    *,
    memory: str = OWN,
    abi: str = "(i32.const 1)",
    said: bytes | None = None,
    status: int = 0,
    more: str = "",
    imports: str = IMPORTS,
) -> str:
    """A body has the locals $name $nlen $args $alen $out $length and $t, and leaves the status."""
    texts = texts or Texts()
    answer = texts(capabilities(tools) if said is None else said)
    cases = "".join(
        f"(if (call $is (local.get $name) (local.get $nlen) {texts(name)}) (then (return {body})))\n"
        for name, body in tools.items()
    )
    declared, exported = (memory, "") if memory.startswith("(import") else ("", memory)
    return f"""(module {imports} {declared} {exported} {HELPERS}
  (func (export "plugin_get_abi_version") (result i32) {abi})
  (func (export "plugin_get_capabilities") (param $out i32) (param $length i32) (result i32)
    (drop (call $say {answer} (local.get $out) (local.get $length))) (i32.const {status}))
  (func (export "plugin_execute_tool")
    (param $name i32) (param $nlen i32) (param $args i32) (param $alen i32)
    (param $out i32) (param $length i32)
    (result i32) (local $t i32)
    (global.set $calls (i32.add (global.get $calls) (i32.const 1)))
    {cases} (i32.const 99))
  {more}
  {texts.segment()})"""


def plugin(path: Path, source: str | bytes, name: str = "fixture", **fields: Any) -> hostcalls.Plugin:
    """Create a plugin from this source, and return it as a daemon would describe it to a host."""
    path.write_bytes(wasmtime.wat2wasm(source) if isinstance(source, str) else source)
    path.chmod(0o644)
    declared = files.wasm(str(path), **{"capabilities": ("tools",)} | fields)
    return hostcalls.Plugin(name, "1.0.0", targets.WASM, targets.target(declared))


# -- bodies

OUT = "(local.get $out) (local.get $length)"
ARGS = "(local.get $args) (local.get $alen)"
# A buffer for answers of host functions, and the word that holds its length.
BUFFER, WORD = "(i32.const 0x180000)", "(i32.const 0x17fff0)"
HUGE = "(i32.const -1)"
SHAPES = {"own": OWN, "imported": IMPORTED, "imported, not exported": HIDDEN}


def room(size: int) -> str:
    return f"(i32.store {WORD} (i32.const {size}))"


def answered(call: str, size: int = 64) -> str:
    """Returns code that outputs what a host function has written, or its status if that is not 0."""
    return (
        f"(block (result i32) {room(size)} (local.set $t {call}) (if (local.get $t) (then (return (call"
        f" $number (i32.load {WORD}) {OUT})))) (call $say {BUFFER} (i32.load {WORD}) {OUT}))"
    )


def then(*steps: str) -> str:
    return f"(block (result i32) {' '.join(steps)})"


class Asked:
    """Calls the tools of a plugin in a host."""

    def __init__(self, world: World, plugin: hostcalls.Plugin) -> None:
        self.world = world
        self.plugin = plugin

    async def __call__(self, tool: str, **input: Any) -> Answer:
        inode = self.world.inode(tool, self.plugin)
        return await self.world.call(inode, msgspec.json.encode(input).decode())

    async def said(self, tool: str, **input: Any) -> str:
        answer = await self(tool, **input)
        assert (answer.code, answer.status) == (None, 0), answer.message
        return answer.output


async def broken(place: Path, plugin: hostcalls.Plugin) -> str:
    """Returns the reason why the plugin does not load."""
    async with serving(place) as world:
        catalog = Catalog(world.pool)
        registry = await catalog.registry([plugin])
        assert [o.name for o in registry if o.plugin == plugin] == []
        return catalog.broken.get(plugin.name, "")


TOOLS = {
    "echo": f"(call $say {ARGS} {OUT})",
    "name": f"(call $say (local.get $name) (i32.add (local.get $nlen) (i32.const 1)) {OUT})",
    "after": f"(call $say (i32.add (local.get $args) (local.get $alen)) (i32.const 1) {OUT})",
    "calls": f"(call $number (global.get $calls) {OUT})",
    "room": f"(call $number (i32.load (local.get $length)) {OUT})",
    "silent": "(i32.store (local.get $length) (i32.const 0)) (i32.const 0)",
    "soft": then(f"(drop (call $say {ARGS} {OUT}))", "(i32.const 3)"),
    "wordless": "(i32.const -7)",
    "failed": then("(i32.store (local.get $length) (i32.const 0))", "(i32.const 1)"),
    "trap": "unreachable",
    "spin": "(loop $l (br $l)) (i32.const 0)",
    "deep": "(call $deep (i32.const 0))",
    "lie": then("(i32.store (local.get $length) (i32.const 65537))", "(i32.const 0)"),
    "liar": then(f"(i32.store (local.get $length) {HUGE})", "(i32.const 0)"),
    "latin": then(
        "(i32.store8 (local.get $out) (i32.const 255))",
        "(i32.store (local.get $length) (i32.const 1))",
        "(i32.const 0)",
    ),
    "abi": f"(call $number (call $host_abi) {OUT})",
    "grow": f"(call $number (memory.grow (i32.const 100000)) {OUT})",
    "more": f"(call $number (memory.grow (i32.const 256)) {OUT})",
}
