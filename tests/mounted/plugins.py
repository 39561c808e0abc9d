"""Plugins for a mount: directories of each boundary, as their authors write them, and their calls."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tests.mounted.ctx_mount import Ctx
from tests.shell import declaring

TOP = 'version = "{version}"\ndescription = "For tests"\nauthor = "ann"\ncortex_version = "1.6.0"\n'
TOOLS = '[capabilities]\nprovides = ["tools"]\n'
PROGRAM = (
    '[[native.tools]]\nname = "{tool}"\ndescription = "For tests"\ncommand = "bin/run"\n'
    'input_schema = {{ type = "object", properties = {{ text = {{ type = "string" }} }} }}\n'
)
LIBRARY = (
    '[sandbox]\nlevel = "trusted_in_process"\n[native]\nlibrary = "lib/lib.so"\n'
    'isolation = "trusted_in_process"\nabi_version = 1\n'
)
TRUSTED = 'trust = "trusted_native"\n'
MODULE = """
import os
from cortexfs.sdk import tool

@tool(name="{tool}")
def run() -> str:
    "For tests."
    return f"{says} {{os.getuid()}}"

plugin = [run]
"""


CALLING = """
import json, subprocess, sys
count = 0
while True:
    done = subprocess.run([sys.argv[1]], capture_output=True)
    frames = [json.loads(line) for line in done.stdout.splitlines()]
    text = "".join(frame["text"] for frame in frames if frame["type"] == "delta")
    line = f"{done.returncode} {text or frames or done.stderr.decode()}"
    print(line + chr(10), end="", flush=True)  # in one piece, also where output is not buffered
"""


def written(where: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if name.startswith("bin/") else 0o644)
    return where


def manifest_text(name: str, version: str, text: str, trust: str = "") -> str:
    return f'name = "{name}"\n{TOP.format(version=version)}{trust}{TOOLS}{text}'


def program(
    where: Path, name: str, says: str = "hello", tool: str = "", version: str = "1.0", text: str = ""
) -> Path:
    """Write a plugin with one tool, a shell script that prints `says` and the uid."""
    manifest = manifest_text(name, version, text + PROGRAM.format(tool=tool or name))
    script = says if says.startswith("#!") else f'#!/bin/sh\nprintf \'"{says} %s"\' "$(id -u)"\n'
    return written(where / name, {"manifest.toml": manifest, "bin/run": script})


DRY = """#!/bin/sh
read line
case "$line" in *'"dry_run":true'*) echo '"would"' ;; *) echo '"did"' ;; esac
"""
EFFECT = (
    '[[native.tools.effects]]\nkind = "write_file"\nreversibility = "irreversible"\n'
    'confirmation = "always"\ndry_run = "{}"\n'
)
OPT_IN = "dry_run_flag = true\n"


def dry(where: Path, name: str, support: str) -> Path:
    """Write a plugin whose program prints if it was run dry, and whose tool declares this support."""
    folder = program(where, name, DRY)
    with open(folder / "manifest.toml", "a") as manifest:
        manifest.write(EFFECT.format(support) + OPT_IN * (support != "not_supported"))
    return folder


def signed(ctx: Ctx, folder: Path) -> Path:
    """Sign a plugin. Installing it with --yes trusts its publisher from then on."""
    key = folder.parent / "key"
    if not key.exists():
        ctx.ctx("plugin", "keygen", str(key))
    ctx.ctx("plugin", "sign", str(folder), "--key", str(key), "--publisher", "example.dev")
    return folder


def python(where: Path, name: str, says: str = "hello", version: str = "1.0", text: str = "") -> Path:
    module = f"{name.replace('-', '_')}_plugin"
    manifest = manifest_text(name, version, f'{text}[python]\nentry = "{module}:plugin"\n')
    code = MODULE.format(tool=name, says=says)
    return written(where / name, {"manifest.toml": manifest, f"lib/{module}.py": code})


SOURCE = r"""
#include <cortexfs_plugin.h>
#include <stdio.h>
#include <unistd.h>

static int state;
static CortexBuffer info(void *self)
{
    (void)self;
    return cortex_text("{\"name\":\"NAME\",\"version\":\"1.0\",\"description\":\"For tests\"}");
}
static size_t count(void *self)
{
    (void)self;
    return 1;
}
static CortexBuffer descriptor(void *self, size_t index)
{
    (void)self, (void)index;
    return cortex_text("{\"name\":\"NAME\",\"description\":\"For tests\","
                       "\"input_schema\":{\"type\":\"object\"},\"timeout_secs\":null,\"capabilities\":{\"emits_progress\":false,"
                       "\"emits_observer_text\":false,\"background_safe\":true}}");
}
EXECUTE
DROP
CORTEX_PLUGIN(&state, info, count, descriptor, execute, drop)
"""


EXECUTE = """
static CortexBuffer execute(void *self, CortexBuffer name, CortexBuffer input, CortexBuffer invocation)
{
    char said[64];
    (void)self, (void)name, (void)input, (void)invocation;
    snprintf(said, sizeof said, "SAYS %d", (int)getuid());
    return cortex_result(said, 0);
}
"""
DROP = """
static void drop(void *self)
{
    (void)self;
}
"""


def tool_source(name: str, execute: str, drop: str = DROP) -> str:
    """Returns the C source of a library with one tool, which the function `execute` executes."""
    return SOURCE.replace("NAME", name).replace("EXECUTE", execute).replace("DROP", drop)


def native(where: Path, name: str, says: str = "hello", version: str = "1.0", drop: str = DROP) -> Path:
    """Write a plugin with a library, which the system's compiler builds."""
    return library(where, name, tool_source(name, EXECUTE.replace("SAYS", says), drop), version)


def library(where: Path, name: str, source: str, version: str = "1.0") -> Path:
    """Write a plugin with a library built from `source`, in which NAME stands for the tool's name."""
    manifest = manifest_text(name, version, LIBRARY, TRUSTED)
    source = source.replace("NAME", name)
    folder = written(where / name, {"manifest.toml": manifest, "src/tool.c": source})
    (folder / "lib").mkdir(exist_ok=True)
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-O0",  # leaves names as written: tests/bench makes other libraries from this one
        "-I",
        str(declaring.INCLUDE),
        "-o",
        str(folder / "lib/lib.so"),
    ]
    subprocess.run([*command, str(folder / "src/tool.c")], check=True)
    return folder


class Maker(Protocol):
    __name__: str

    def __call__(self, where: Path, name: str, says: str = "hello", /) -> Path: ...


KINDS: Mapping[str, Maker] = {"process": program, "native": native, "python": python}


def said(ctx: Ctx, tool: str, uid: int | None = None) -> str:
    answer = ctx.call(tool, uid=uid)
    assert answer.status == 0, answer
    return answer.output


def origin(ctx: Ctx, tool: str) -> str:
    return (ctx.root / "tool" / f"{tool}.d" / "origin").read_text().strip()


def tools(ctx: Ctx) -> list[str]:
    return [name for name in os.listdir(ctx.root / "tool") if not name.endswith(".d")]


def broken(ctx: Ctx) -> str:
    return ctx.status.get("broken plugin", "")
