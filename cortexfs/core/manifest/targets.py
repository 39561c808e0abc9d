"""A plugin that is no Python, as a host is told of it: `hostcalls.Plugin.target`.

Rules: the daemon has read and checked the manifest; a host gets what came of it and reads none itself, so
that what was checked is what runs. A target is text that fits the packet that starts a host.
This file must never know how a program is started or a library called.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.hooks import LOAD_SECONDS
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.manifest import governance
from cortexfs.core.manifest.mcp_server import KIND as MCP_SERVER
from cortexfs.core.manifest.mcp_server import McpTarget
from cortexfs.core.manifest.toml import DEFAULT_OUTPUT, DeclaredProcessTool, Manifest
from cortexfs.core.manifestjson.fields import CommandField

# hostcalls.Plugin.kind; RPC is that of a manifest.json, which is no server of the Model Context Protocol.
PROCESS, NATIVE, ESM, WASM, RPC = "process", hostcalls.NATIVE, hostcalls.ESM, hostcalls.WASM, "mcp"
ESM_SECONDS, WASM_SECONDS = 30, 120  # of a call, where nobody says otherwise
NETWORK = ("network:fetch", "net:outbound")  # capabilities that reach servers
# `json` is one child for each call, `jsonl` one for all of them; `argv` is a script (manifest/script.py).
Protocol: TypeAlias = Literal["json", "jsonl", "argv"]
NOT_STARTED = "failed to spawn process-isolated tool"  # how a fault of the host begins
MAX_TIMEOUT = 604_800  # a week, as for limits in config.toml; more is that
# The packet that starts a host has 64 KiB, for its identity too.
MAX_TARGET = 48 << 10
# Schemas are wordy, and shrink to a tenth; a small target stays readable.
_PLAIN = 16 << 10
_PACKED = "z"
_MAX_UNPACKED = 16 << 20


WordsByParam: TypeAlias = dict[str, dict[str, tuple[str, ...]]]


class ProgramTarget(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    description: str
    input_schema: dict[str, Any]
    argv: tuple[str, ...]  # the first is an absolute path
    working_dir: str  # empty: the caller's
    inherited: tuple[str, ...] = ("PATH",)
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    timeout: int | None = None
    output_bytes: int = DEFAULT_OUTPUT
    memory_bytes: int | None = None
    cpu_seconds: int | None = None
    effects: tuple[hostcalls.Effect, ...] = ()
    dry_run_flag: bool = False


class Programs(msgspec.Struct, frozen=True, omit_defaults=True):
    tools: tuple[ProgramTarget, ...]
    protocol: Protocol = "json"
    stamp: str = ""  # of the plugin's files: with another one, warm children are not those of before


class Library(msgspec.Struct, frozen=True, omit_defaults=True):
    """A shared library, and which one it was when the daemon looked at it."""

    path: str
    stamp: str = ""  # empty: whichever is there


class FetchedPackages(msgspec.Struct, frozen=True):
    """The packages that were fetched for a plugin when it was installed."""

    folder: str
    registries: dict[str, str] = {}


class EsmModule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plugin for Deno."""

    path: str  # of the entry, or its address where it was fetched
    folder: str  # all of the plugin's files
    stamp: str = ""  # of these: with another one, it is another plugin to the pool of hosts
    capabilities: tuple[str, ...] = ()  # the effective ones
    config: dict[str, Any] = {}  # what is set, and else the defaults
    private: tuple[str, ...] = ()  # networks without public addresses that it may talk to, as 10.0.0.0/8
    events: tuple[str, ...] = ()  # what the manifest subscribes to
    commands: tuple[CommandField, ...] = ()  # that the manifest declares
    providers: dict[str, str] = {}  # kinds, and the default model of each
    labels: dict[str, str] = {}  # of these kinds, for people
    dry_runs: tuple[str, ...] = ()  # the tools that the manifest opts in to dry runs
    words: WordsByParam = {}  # to which the manifest restricts params, by tool
    state: str = ""  # an SQLite file of this user's; empty: its state ends with the host
    timeout: int = ESM_SECONDS
    loading: float = LOAD_SECONDS  # how long it may take until it has said what its tools are
    fetched: FetchedPackages | None = None  # when it was installed

    @property
    def entry(self) -> str:
        is_path = self.path.startswith("/")
        return "file://" + quote(self.path.encode(errors="surrogateescape")) if is_path else self.path


class WasmModule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plugin of WebAssembly."""

    path: str
    sha256: str = ""  # of the file, in hex; empty: whichever is there
    capabilities: tuple[str, ...] = ()  # the effective ones
    config: dict[str, Any] = {}  # what is set, and else the defaults
    environment: dict[str, str] = {}  # of the daemon's what `environment_of` picks
    private: tuple[str, ...] = ()  # networks without public addresses that it may talk to, as 10.0.0.0/8
    state: str = ""  # an SQLite file of this user's; empty: its state ends with the host
    cache: str = ""  # a directory for compiled modules; empty: none
    dry_runs: tuple[str, ...] = ()  # the tools that the manifest opts in to dry runs
    words: WordsByParam = {}  # to which the manifest restricts params, by tool
    timeout: int = WASM_SECONDS
    loading: float = LOAD_SECONDS  # how long it may take until it has said what its tools are


class RpcEndpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plugin that is a JSON-RPC server."""

    url: str
    description: str = ""
    methods: tuple[str, ...] = ()  # the tools that the manifest names; empty: any
    capabilities: tuple[str, ...] = ()  # the effective ones
    private: tuple[str, ...] = ()  # networks without public addresses that it may talk to


Target: TypeAlias = Programs | Library | EsmModule | WasmModule | RpcEndpoint | McpTarget
_Declared = TypeVar("_Declared", bound=Target)


def environment_of(plugin: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of the daemon's environment that answers host_get_config, to a module of
    WebAssembly."""
    mapped = plugin.upper().replace("-", "_")
    ours = (f"CORTEX_PLUGIN_{plugin.upper()}_", f"CORTEX_PLUGIN_{mapped}_", "CORTEX_WASM_")
    return {name: value for name, value in environ.items() if name.startswith(ours)}


def programs(
    manifest: Manifest,
    commands: Iterable[tuple[tuple[str, ...], str]],
    protocol: Protocol = "json",
    stamp: str = "",
) -> Programs:
    """The process tools of a manifest; `commands` are argv and working directory of each."""
    tools = manifest.native.tools if manifest.native else ()
    made = (_program(manifest, tool, *command) for tool, command in zip(tools, commands, strict=True))
    if protocol == "argv":  # as any command, where its caller is
        made = (replace(one, working_dir="") for one in made)
    return Programs(tuple(made), protocol, stamp)


def _program(
    manifest: Manifest, tool: DeclaredProcessTool, argv: tuple[str, ...], working_dir: str
) -> ProgramTarget:
    if not isinstance(tool.input_schema, dict):
        mend = 'write a table, as input_schema = { type = "object" }'
        raise Fault("EINVAL", f"process tool '{tool.name}' has an input_schema that is no object; {mend}")
    return ProgramTarget(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        argv=argv,
        working_dir=working_dir,
        inherited=tool.inherited,
        environment=tool.env,
        timeout=seconds_of(tool.timeout_secs),
        output_bytes=tool.output_limit,
        memory_bytes=tool.max_memory_bytes,
        cpu_seconds=tool.max_cpu_secs,
        effects=tuple(governance.tool_effects(manifest, tool)),
        dry_run_flag=any(effect.dry_run_flag for effect in tool.effects),
    )


def seconds_of(declared: int | None) -> int | None:
    """Returns the seconds of a tool that declares so many: none for 0, and the most for more."""
    return min(declared, MAX_TIMEOUT) if declared else None


def descriptors(plugin: hostcalls.Plugin) -> list[hostcalls.Descriptor]:
    """Returns the description that a host would give of these tools: nothing of it is the plugin's own
    word."""
    told = declared(plugin, Programs)
    streams = told.protocol == "jsonl"
    return [
        hostcalls.Descriptor(
            tool.name,
            tool.description,
            tool.input_schema,
            tool.timeout,
            hostcalls.Capabilities(streams, streams, False, tool.effects),
            dry_run_flag=tool.dry_run_flag,
        )
        for tool in {tool.name: tool for tool in told.tools}.values()
    ]


def differ_by_settings(old: hostcalls.Plugin, new: hostcalls.Plugin) -> bool:
    """Returns True if both are one module with other settings, or one MCP server with another token, which
    its host can be told."""
    if old == new or replace(old, target="") != replace(new, target=""):
        return False
    if old.kind == MCP_SERVER:
        servers = [declared(each, McpTarget) for each in (old, new)]
        return replace(servers[0], bearer="") == replace(servers[1], bearer="")
    if old.kind != ESM:
        return False
    both = [declared(each, EsmModule) for each in (old, new)]
    return replace(both[0], config={}) == replace(both[1], config={})


def target(declared: Target) -> str:
    text = msgspec.json.encode(declared)
    if len(text) > _PLAIN:
        text = _PACKED.encode() + binascii.b2a_base64(zlib.compress(text), newline=False)
    if len(text) > MAX_TARGET:
        told = f"its tools take {len(text) >> 10} KiB to tell a host of, over {MAX_TARGET >> 10}"
        raise Fault("EMSGSIZE", f"{told}; shorten their schemas and descriptions, or make two plugins of it")
    return text.decode()


def declared(plugin: hostcalls.Plugin, type_: type[_Declared]) -> _Declared:
    """Returns the value that `target` was made of; raises EPROTO for anything else."""
    text = plugin.target.encode()
    try:
        if text.startswith(_PACKED.encode()):
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(binascii.a2b_base64(text[1:]), _MAX_UNPACKED)
        return msgspec.json.decode(text, type=type_)
    except (*UNREADABLE, zlib.error, binascii.Error, UnicodeError) as error:
        raise Fault("EPROTO", f"the daemon did not say what the plugin {plugin.name} is: {error}") from None
