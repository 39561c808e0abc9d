"""A plugin as described to its host: the content of a target, and the changes that a host can take over."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from msgspec.structs import replace

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import governance, targets
from cortexfs.core.manifest.mcp_server import KIND as MCP_SERVER
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.core.manifest.targets import EsmModule, differ_by_settings
from cortexfs.core.manifest.toml import Manifest, Protocol, decode
from tests.tables import each_of

TEXT = """
name = "notes"
version = "0.1.0"
description = "Keeps notes"
[[native.tools]]
name = "add"
description = "Adds a note"
command = "bin/add"
input_schema = %s
"""
MODULE = EsmModule("/p/mod.ts", "/p", config={"a": 1})
SERVER = McpTarget("far", url="https://example.com/mcp", bearer="one")


def manifest(schema: str = "{}") -> Manifest:
    return decode(tomllib.loads(TEXT % schema))


def plugin(kind: str, target: targets.Target, version: str = "1") -> hostcalls.Plugin:
    return hostcalls.Plugin("p", version, kind, targets.target(target))


@each_of(
    ("protocol", "folder", "streams"), [("json", "/p", False), ("jsonl", "/p", True), ("argv", "", False)]
)
def test_a_program_of_each_protocol(protocol: Protocol, folder: str, streams: bool) -> None:
    made = targets.programs(manifest(), [(("/p/bin/add",), "/p")], protocol)
    assert [tool.working_dir for tool in made.tools] == [folder]  # a script runs in its caller's directory
    [told] = targets.descriptors(plugin(targets.PROCESS, made))
    assert told.name == "add"
    assert (told.capabilities.emits_progress, told.capabilities.emits_observer_text) == (streams, streams)


def test_a_programs_schema_is_an_object() -> None:
    with pytest.raises(Fault, match="'add' has an input_schema that is not an object"):
        targets.programs(manifest('"text"'), [(("/p/bin/add",), "/p")])


@each_of(
    ("old", "new", "wanted"),
    [
        # a module with other settings
        (plugin(targets.ESM, MODULE), plugin(targets.ESM, replace(MODULE, config={"a": 2})), True),
        (plugin(targets.ESM, MODULE), plugin(targets.ESM, MODULE), False),
        (plugin(targets.ESM, MODULE), plugin(targets.ESM, replace(MODULE, config={}, stamp="x")), False),
        (plugin(targets.ESM, MODULE), plugin(targets.ESM, replace(MODULE, config={}), "2"), False),
        # a server with another token
        (plugin(MCP_SERVER, SERVER), plugin(MCP_SERVER, replace(SERVER, bearer="two")), True),
        (plugin(MCP_SERVER, SERVER), plugin(MCP_SERVER, replace(SERVER, bearer="two", tools=("a",))), False),
        # any other kind
        (
            plugin(targets.NATIVE, targets.Library("/p/lib.so")),
            plugin(targets.NATIVE, targets.Library("/p/lib.so", "x")),
            False,
        ),
    ],
)
def test_a_host_is_told_of_other_settings_alone(
    old: hostcalls.Plugin, new: hostcalls.Plugin, wanted: bool
) -> None:
    assert differ_by_settings(old, new) == wanted


@each_of(
    ("read", "write", "sandboxed", "said"),
    [
        ([], [], [], ""),
        (["/etc"], ["/tmp/**"], ["/tmp"], ""),
        (["**"], [], [], "read"),
        (["/etc", "**"], ["**"], [], "read and write"),
        ([], ["/tmp"], ["**"], "write"),
    ],
)
def test_who_asks_for_all_files(read: Any, write: Any, sandboxed: Any, said: str) -> None:
    plain = manifest()
    asking = replace(
        plain,
        capabilities=replace(plain.capabilities, file_read=read, file_write=write),
        sandbox=replace(plain.sandbox, writable_paths=sandboxed),
    )
    assert governance.wants_everything(asking) == said
