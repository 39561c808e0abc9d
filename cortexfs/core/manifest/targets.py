"""The description of a plugin for its host, unless it is written in Python: `hostcalls.Plugin.target`.

Rules: the daemon reads and checks the manifest, and passes the result to a host. A host reads no manifest, so
that it runs only what was checked. A target is text that fits into the packet that starts a host.
This file must never know how a program is started or a library called.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar
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
from cortexfs.core.manifest.toml import DEFAULT_OUTPUT, DeclaredProcessTool, Manifest, Protocol
from cortexfs.core.manifestjson.fields import CommandField

# hostcalls.Plugin.kind. RPC is a kind of manifest.json, and no server of the Model Context Protocol.
PROCESS, NATIVE, ESM, WASM, RPC = "process", hostcalls.NATIVE, hostcalls.ESM, hostcalls.WASM, "mcp"
ESM_SECONDS, WASM_SECONDS = 30, 120  # the default time limits of a call
NETWORK = ("network:fetch", "net:outbound")  # capabilities that reach servers
NOT_STARTED = "failed to spawn process-isolated tool"  # begins a fault of the host
MAX_TIMEOUT = 604_800  # a week, as for limits in config.toml; a longer timeout is cut to it
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
    argv: tuple[str, ...]  # the first word is an absolute path
    working_dir: str  # empty: the caller's directory
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
    stamp: str = ""  # changes with the plugin's files, so that running children of old files serve no calls


class Library(msgspec.Struct, frozen=True, omit_defaults=True):
    """A shared library, and a stamp of the file that the daemon looked at."""

    path: str
    stamp: str = ""  # empty: any file at the path will do


class FetchedPackages(msgspec.Struct, frozen=True):
    """The packages that the installation of a plugin fetched."""

    folder: str
    registries: dict[str, str] = {}


class EsmModule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plugin for Deno."""

    path: str  # the path of the entry, or its address if it was fetched
    folder: str  # the folder with all of the plugin's files
    stamp: str = ""  # changes with these files, so that the pool of hosts takes it for another plugin then
    capabilities: tuple[str, ...] = ()  # the effective ones
    config: dict[str, Any] = {}  # the settings, with defaults for those that are not set
    private: tuple[str, ...] = ()  # networks that are not public and may be reached, such as 10.0.0.0/8
    events: tuple[str, ...] = ()  # the events to which the manifest subscribes
    commands: tuple[CommandField, ...] = ()  # the commands that the manifest declares
    providers: dict[str, str] = {}  # by kind of provider: its default model
    labels: dict[str, str] = {}  # by kind of provider: its name for people
    dry_runs: tuple[str, ...] = ()  # the tools that the manifest opts in to dry runs
    words: WordsByParam = {}  # by tool and param: the only words that the manifest allows
    state: str = ""  # an SQLite file of this user; empty: its state ends with the host
    timeout: int = ESM_SECONDS
    loading: float = LOAD_SECONDS  # the time for the module to load and describe its tools
    fetched: FetchedPackages | None = None  # the packages fetched at installation

    @property
    def entry(self) -> str:
        is_path = self.path.startswith("/")
        return "file://" + quote(self.path.encode(errors="surrogateescape")) if is_path else self.path


class WasmModule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plugin of WebAssembly."""

    path: str
    sha256: str = ""  # the hash of the file, in hex; empty: any file at the path will do
    capabilities: tuple[str, ...] = ()  # the effective ones
    config: dict[str, Any] = {}  # the settings, with defaults for those that are not set
    environment: dict[str, str] = {}  # the part of the daemon's environment that `environment_of` returns
    private: tuple[str, ...] = ()  # networks that are not public and may be reached, such as 10.0.0.0/8
    state: str = ""  # an SQLite file of this user; empty: its state ends with the host
    cache: str = ""  # a directory for compiled modules; empty: none
    dry_runs: tuple[str, ...] = ()  # the tools that the manifest opts in to dry runs
    words: WordsByParam = {}  # by tool and param: the only words that the manifest allows
    timeout: int = WASM_SECONDS
    loading: float = LOAD_SECONDS  # the time for the module to load and describe its tools


class RpcEndpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plugin that is a JSON-RPC server."""

    url: str
    description: str = ""
    methods: tuple[str, ...] = ()  # the tools that the manifest names; empty: all tools
    capabilities: tuple[str, ...] = ()  # the effective ones
    private: tuple[str, ...] = ()  # networks that are not public and may be reached


Target: TypeAlias = Programs | Library | EsmModule | WasmModule | RpcEndpoint | McpTarget
_Declared = TypeVar("_Declared", bound=Target)


def environment_of(plugin: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of the daemon's environment that a WebAssembly module reads by host_get_config."""
    identifier = plugin.upper().replace("-", "_")
    prefixes = (f"CORTEX_PLUGIN_{plugin.upper()}_", f"CORTEX_PLUGIN_{identifier}_", "CORTEX_WASM_")
    return {name: value for name, value in environ.items() if name.startswith(prefixes)}


def programs(
    manifest: Manifest,
    commands: Iterable[tuple[tuple[str, ...], str]],
    protocol: Protocol = "json",
    stamp: str = "",
) -> Programs:
    """Returns the process tools of a manifest. `commands` has argv and working directory of each."""
    tools = manifest.native.tools if manifest.native else ()
    results = (_program(manifest, tool, *command) for tool, command in zip(tools, commands, strict=True))
    if protocol == "argv":  # runs in its caller's directory, as any command does
        results = (replace(each, working_dir="") for each in results)
    return Programs(tuple(results), protocol, stamp)


def _program(
    manifest: Manifest, tool: DeclaredProcessTool, argv: tuple[str, ...], working_dir: str
) -> ProgramTarget:
    if not isinstance(tool.input_schema, dict):
        mend = 'write a table, as input_schema = { type = "object" }'
        raise Fault("EINVAL", f"process tool '{tool.name}' has an input_schema that is not an object; {mend}")
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
    """Returns the timeout of a tool that declares so many seconds: None for 0, and at most MAX_TIMEOUT."""
    return min(declared, MAX_TIMEOUT) if declared else None


def descriptors(plugin: hostcalls.Plugin) -> list[hostcalls.Descriptor]:
    """Returns the description that a host would give of these tools, all of which is in the manifest."""
    declaration = declared(plugin, Programs)
    streams = declaration.protocol == "jsonl"
    return [
        hostcalls.Descriptor(
            tool.name,
            tool.description,
            tool.input_schema,
            tool.timeout,
            hostcalls.Capabilities(streams, streams, False, tool.effects),
            dry_run_flag=tool.dry_run_flag,
        )
        for tool in {tool.name: tool for tool in declaration.tools}.values()
    ]


def differ_by_settings(old: hostcalls.Plugin, new: hostcalls.Plugin) -> bool:
    """Returns True if both are one module with other settings, or one MCP server with another token. A
    running host can take these."""
    if old == new or replace(old, target="") != replace(new, target=""):
        return False
    if old.kind == MCP_SERVER:
        servers = [declared(each, McpTarget) for each in (old, new)]
        return replace(servers[0], bearer="") == replace(servers[1], bearer="")
    if old.kind != ESM:
        return False
    modules = [declared(each, EsmModule) for each in (old, new)]
    return replace(modules[0], config={}) == replace(modules[1], config={})


def target(declared: Target) -> str:
    text = msgspec.json.encode(declared)
    if len(text) > _PLAIN:
        text = _PACKED.encode() + binascii.b2a_base64(zlib.compress(text), newline=False)
    if len(text) > MAX_TARGET:
        message = (
            f"the description of its tools has {len(text) >> 10} KiB, over the limit of {MAX_TARGET >> 10}"
        )
        raise Fault("EMSGSIZE", f"{message}; shorten schemas and descriptions, or make two plugins of it")
    return text.decode()


def declared(plugin: hostcalls.Plugin, type_: type[_Declared]) -> _Declared:
    """Returns the value of which `target` made the text. Raises EPROTO for other texts."""
    text = plugin.target.encode()
    try:
        if text.startswith(_PACKED.encode()):
            unpacker = zlib.decompressobj()
            text = unpacker.decompress(binascii.a2b_base64(text[1:]), _MAX_UNPACKED)
        return msgspec.json.decode(text, type=type_)
    except (*UNREADABLE, zlib.error, binascii.Error, UnicodeError) as error:
        raise Fault("EPROTO", f"the daemon's description of {plugin.name} cannot be read: {error}") from None
