"""manifest.toml as values: every field of a plugin's manifest, its default and its possible values.

Rules: decoded values are sound: names fit the tree, numbers fit their types, no text has a NUL. An unknown
field is refused with the nearest known one, except in effects, to which authors may add fields. A fault names
the file, the field and the remedy. governance.py decides if a plugin may do what it claims.
This file must never know where a manifest lies, nor which plugins are enabled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from cortexfs.core import names, tomltext
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import INTEGERS, shown

FILE = "manifest.toml"
PACKAGE_FILE = "package.toml"
BACKUP = ".bak"  # directories with that ending are no plugins
DEFAULT_OUTPUT = 1 << 20

Trust: TypeAlias = Literal[
    "trusted_native", "reviewed_process", "unreviewed_process", "disabled", "quarantined"
]
Level: TypeAlias = Literal[
    "trusted_in_process", "child_process", "uid_no_network", "system_sandbox", "container_vm", "remote_worker"
]
Network: TypeAlias = Literal["none", "allowlist", "inherit"]
Filesystem: TypeAlias = Literal["plugin_only", "read_only_host", "declared_paths"]
Isolation: TypeAlias = Literal["process", "trusted_in_process"]
# `json` starts a child for each call, `jsonl` one for all calls; `argv` is a script (manifest/script.py).
Protocol: TypeAlias = Literal["json", "jsonl", "argv"]
PluginType: TypeAlias = Literal["Tool", "Llm", "Memory"]
EffectKind: TypeAlias = Literal[
    "read_file",
    "read_secret",
    "write_file",
    "delete_file",
    "run_process",
    "network_request",
    "send_message",
    "spend_money",
    "deploy",
    "modify_credential",
    "persist_memory",
    "publish_content",
    "schedule_task",
    "generate_media",
    "introspect_runtime",
    "delegate_work",
]
Reversibility: TypeAlias = Literal["reversible", "partially_reversible", "irreversible"]
Confirmation: TypeAlias = Literal["never", "on_risk", "always"]
DryRun: TypeAlias = Literal["not_supported", "supported", "required_before_execute"]

U32: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
# TOML's own integers end at 63 bits, so u64 and usize do here.
U64: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Seconds: TypeAlias = Annotated[int, Meta(ge=0)]  # of any size: targets.seconds_of limits it


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table with the listed keys and no others."""


class ManifestEffect(msgspec.Struct, frozen=True):
    kind: Annotated[EffectKind, "What the tool does."]
    reversibility: Annotated[Reversibility, "Whether it can be undone."]
    confirmation: Annotated[Confirmation, "When a person must confirm it first."]
    dry_run: Annotated[DryRun, "Whether a dry run can show it."]
    target: Annotated[str, "A path, a host or another name."] = ""
    dry_run_flag: Annotated[bool, "Whether the tool takes `--dry-run`."] = False


class DeclaredProcessTool(Strict, frozen=True):
    name: Annotated[str, "The tool's name."]
    description: Annotated[str, "For a model: what it does, when to use it."]
    command: Annotated[str, "The program; a relative path begins at the plugin."]
    input_schema: Annotated[Any, "JSON Schema of the input."]
    args: Annotated[tuple[str, ...], "Its arguments."] = ()
    working_dir: Annotated[str | None, "Where it runs; by default the plugin's directory."] = None
    allow_host_paths: Annotated[bool, "Whether command and working_dir may lie outside the plugin."] = False
    inherit_env: Annotated[tuple[str, ...], "Variables of the caller that it gets; none means PATH."] = ()
    env: Annotated[dict[str, str], "Variables that are set, over inherited ones."] = {}
    timeout_secs: Annotated[Seconds | None, "Seconds that a call may take."] = None
    max_output_bytes: Annotated[U64 | None, "Bytes of both outputs; 1048576 if left out."] = None
    max_memory_bytes: Annotated[U64 | None, "Address space (RLIMIT_AS)."] = None
    max_cpu_secs: Annotated[U64 | None, "Seconds of processor time (RLIMIT_CPU)."] = None
    effects: Annotated[tuple[ManifestEffect, ...], "Its effects, besides its answer."] = ()

    @property
    def output_limit(self) -> int:
        return DEFAULT_OUTPUT if self.max_output_bytes is None else self.max_output_bytes

    @property
    def inherited(self) -> tuple[str, ...]:
        return self.inherit_env or ("PATH",)


class Native(Strict, frozen=True):
    library: Annotated[str, "The shared library, from the plugin's directory."] = ""
    abi_version: Annotated[U32 | None, "Version of the native ABI; 1 for a library."] = None
    isolation: Annotated[Isolation, "`trusted_in_process` for a library, else `process`."] = "process"
    tools: Annotated[tuple[DeclaredProcessTool, ...], "Tools that are programs."] = ()
    protocol: Annotated[
        Protocol, "`jsonl`: one program answers many calls; `json`: one call; `argv`: a script."
    ] = "json"


class Python(Strict, frozen=True):
    entry: Annotated[str, "`module:attribute` with the tools; modules lie in the plugin's `lib/`."]


class ManifestCapabilities(Strict, frozen=True):
    provides: Annotated[tuple[str, ...], "Some of tools, skills, prompts, llm, memory."] = ()
    file_read: Annotated[tuple[str, ...], "Paths that it reads."] = ()
    file_write: Annotated[tuple[str, ...], "Paths that it writes."] = ()
    network: Annotated[tuple[str, ...], "Hosts that it talks to."] = ()
    process: Annotated[bool, "Whether it starts programs."] = False
    secrets: Annotated[bool, "Whether it reads secrets of the host."] = False
    background: Annotated[bool, "Whether it schedules work; no call is in the background."] = False


class ManifestSandbox(Strict, frozen=True):
    level: Annotated[Level, "How strictly it is isolated."] = "child_process"
    network: Annotated[Network, "Its access to the network."] = "inherit"
    filesystem: Annotated[Filesystem | None, "Its access to files."] = None
    writable_paths: Annotated[tuple[str, ...], "The only places that it writes to."] = ()
    seccomp: Annotated[str, "Profile of system calls: `default`, or none."] = ""
    uid_drop: Annotated[bool, "Whether it runs as a user without files."] = False
    memory_mb: Annotated[U64 | None, "Memory, in MiB."] = None
    cpu_seconds: Annotated[U64 | None, "Seconds of processor time."] = None


class CertificationCheck(Strict, frozen=True):
    name: Annotated[str, "What was checked."]
    passed: Annotated[bool, "Whether it held."]
    message: Annotated[str, "What was found."] = ""


class Conformance(Strict, frozen=True):
    suite: Annotated[str, "The suite that was run."]
    passed: Annotated[bool, "Whether all of it passed."] = False
    checked_at: Annotated[str, "When, as text."] = ""
    checks: Annotated[tuple[CertificationCheck, ...], "Its parts."] = ()


class Package(Strict, frozen=True):
    publisher_id: Annotated[str, "The signer, such as `example.dev`."] = ""
    manifest_sha256: Annotated[str, "Hash of manifest.toml, in hex."] = ""
    binary_sha256: Annotated[str, "Hash of the library, in hex."] = ""
    signature_algorithm: Annotated[str, "`ed25519`."] = ""
    public_key: Annotated[str, "The publisher's key, in base64."] = ""
    signature: Annotated[str, "The signature, in base64."] = ""
    sbom: Annotated[str, "Where the list of its parts is."] = ""
    risk_profile: Annotated[str, "Where its risk profile is."] = ""
    conformance: Annotated[Conformance | None, "A certificate of checks."] = None


class Manifest(Strict, frozen=True):
    name: Annotated[str, "The plugin's name."]
    version: Annotated[str, "Its version, as `0.1.0`."]
    description: Annotated[str, "Its purpose."]
    author: Annotated[str, "Its author."] = ""
    cortex_version: Annotated[str, "The oldest host that it runs on; required."] = ""
    trust: Annotated[Trust, "How far its code is trusted."] = "unreviewed_process"
    capabilities: Annotated[ManifestCapabilities, "What it provides and requests."] = ManifestCapabilities()
    sandbox: Annotated[ManifestSandbox, "Its isolation."] = ManifestSandbox()
    package: Annotated[Package, "Who published it."] = Package()
    native: Annotated[Native | None, "Its programs or its library."] = None
    python: Annotated[Python | None, "Its tools in Python."] = None
    plugin_type: Annotated[PluginType, "What an index lists it as."] = "Tool"
    dependencies: Annotated[tuple[str, ...], "Unused."] = ()


_ENTRY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def decode(table: Mapping[str, Any], where: str = FILE) -> Manifest:
    """Returns a parsed manifest. Raises a Fault that begins with `where`: `invalid manifest.toml: ...`."""
    manifest = tomltext.converted(table, Manifest, f"invalid {where}")
    if fault := _fault(manifest):
        raise Fault("EINVAL", f"invalid {where}: {fault}")
    return manifest


def decode_package(table: Mapping[str, Any], where: str = PACKAGE_FILE) -> Package:
    """Returns a parsed package.toml, which has the fields of [package] at its top level."""
    return tomltext.converted(table, Package, f"invalid {where}")


def _fault(manifest: Manifest) -> str | None:
    """Returns the first fault that types cannot find, or None."""
    if fault := names.fault_of(manifest.name):
        return f"name: the name {shown(manifest.name)} {fault}"
    if manifest.name.endswith(BACKUP):
        return f"name: the name {manifest.name!r} ends in {BACKUP}, and such directories are ignored"
    # The review reports a blank version. Any other becomes part of file names and of `origin`.
    if manifest.version.strip() and (fault := names.fault_of(manifest.version)):
        return f"version: the version {shown(manifest.version)} {fault}"
    if manifest.python and not _ENTRY.fullmatch(manifest.python.entry):
        return f"python.entry: {shown(manifest.python.entry)} is not of the form module:attribute"
    seen: set[str] = set()
    for position, tool in enumerate(manifest.native.tools if manifest.native else ()):
        duplicate = f"name: another tool is called {tool.name}; rename one of them"
        if fault := duplicate if tool.name in seen else _tool_fault(tool):
            return f"native.tools[{position}].{fault}"
        seen.add(tool.name)
    return None


def _tool_fault(tool: DeclaredProcessTool) -> str | None:
    for field in ("command", "args", "working_dir", "inherit_env", "env"):
        value = getattr(tool, field)
        texts = [value] if isinstance(value, str) else [*(value or ()), *_values(value)]
        if any("\0" in text for text in texts):
            return f"{field}: contains a NUL character, which a program cannot receive"
    for field in ("inherit_env", "env"):
        if misfit := next((name for name in getattr(tool, field) if not name or "=" in name), None):
            return f"{field}: {shown(misfit)} is not the name of a variable, as it contains ="
        if "" in getattr(tool, field):
            return f"{field}: the name of a variable is empty"
    if tool.name.strip() and (fault := names.fault_of(tool.name)):
        return f"name: the name {shown(tool.name)} {fault}"
    if (misfit := _not_json(tool.input_schema)) is not None:
        return f"input_schema: {misfit} is not a JSON value; write it as a string, or leave it out"
    return None


def _values(value: object) -> list[str]:
    return list(value.values()) if isinstance(value, dict) else []


def _not_json(value: object) -> str | None:
    """Returns the first value that TOML can write and JSON cannot: dates and times, infinity, NaN, or
    integers beyond 64 bits."""
    pending = [value]
    for node in pending:  # grows while it is walked
        if isinstance(node, dict | list):
            pending += node.values() if isinstance(node, dict) else node
        elif isinstance(node, float) and node - node != 0:
            return str(node)
        elif isinstance(node, int) and node not in INTEGERS:
            return "an integer that 64 bits cannot hold"
        elif not isinstance(node, str | int | float):
            return str(node)
    return None
