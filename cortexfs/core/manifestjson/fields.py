"""The fields of a manifest.json, and a tool of it or of its module: its input as a JSON Schema, its result.

Rules: these types are the one table of its keys; problems.py checks values against them and
docs/manifest-json.md lists them. An optional key that is not there is None, or an empty list or map. What a
plugin's code answers is checked like anything from outside.
This file must never know what a value has to look like beyond its JSON type (that is rules.py), nor how a
tool is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault

ParamType: TypeAlias = Literal["string", "number", "boolean", "object", "array"]
WordType: TypeAlias = Literal["string", "number", "boolean"]
FieldType: TypeAlias = Literal["text", "number", "boolean", "select", "secret"]


class ManifestPart(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a manifest; its keys are written in camelCase."""


class ToolParam(ManifestPart, frozen=True):
    name: str
    type: ParamType
    description: str
    required: bool = False
    enum: tuple[str, ...] | None = None


class ToolField(ManifestPart, frozen=True):
    """Informational, but for `dry_run`: what the module exports counts."""

    name: str
    description: str
    params: tuple[ToolParam, ...]
    dry_run: bool = False  # it can be run dry


class Argument(ManifestPart, frozen=True):
    name: str
    type: WordType
    description: str
    required: bool = False


class Option(ManifestPart, frozen=True):
    name: str  # --<name>
    type: WordType
    description: str
    flag: str  # -v


class CommandField(ManifestPart, frozen=True):
    """`cortex <name>`."""

    name: str
    description: str
    args: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()


class Panel(ManifestPart, frozen=True):
    id: str
    title: str
    html_path: str
    icon: str | None = None


class Widget(ManifestPart, frozen=True):
    id: str
    title: str
    type: Literal["html", "chart", "table"]
    config: dict[str, Any]


class SettingChoice(ManifestPart, frozen=True):
    label: str
    value: str


class SettingField(ManifestPart, frozen=True):
    key: str
    label: str
    type: FieldType
    default_value: Any = msgspec.UNSET  # required by the reference, absent in the wild: a warning
    options: tuple[SettingChoice, ...] = ()
    description: str | None = None


class Section(ManifestPart, frozen=True):
    section: str
    fields: tuple[SettingField, ...]


class Ui(ManifestPart, frozen=True):
    panels: tuple[Panel, ...] = ()
    widgets: tuple[Widget, ...] = ()
    settings: tuple[Section, ...] = ()


class ProviderField(ManifestPart, frozen=True):
    kind: str
    label: str
    default_model: str


class ConfigField(ManifestPart, frozen=True):
    providers: tuple[ProviderField, ...] = ()
    settings: dict[str, Any] = {}


class JsonManifest(ManifestPart, frozen=True):
    name: str
    version: str
    description: str
    kind: Literal["esm", "mcp", "wasm"]
    entry_point: str
    runtime: Literal["deno", "wasm"]
    capabilities: tuple[str, ...]
    author: str | None = None
    homepage: str | None = None
    license: str | None = None
    repository: str | None = None
    hash: str | None = None
    signature: str | None = None
    dependencies: dict[str, str] = {}
    peer_dependencies: dict[str, str] = {}
    events: tuple[str, ...] = ()
    tools: tuple[ToolField, ...] = ()
    cli_commands: tuple[CommandField, ...] = ()
    ui: Ui = Ui()
    config: ConfigField = ConfigField()


class JsonToolResult(msgspec.Struct, frozen=True, rename="camel"):
    tool_name: str  # must be the tool's own
    success: bool
    output: str
    duration_ms: float
    error: str | None = None


def input_schema(params: Sequence[ToolParam]) -> dict[str, Any]:
    """Returns the schema of the tool's arguments: its params and no others, so that a misspelt one is
    told."""
    return {
        "type": "object",
        "properties": {param.name: _property(param) for param in params},
        "required": [param.name for param in params if param.required],
        "additionalProperties": False,
    }


def _property(param: ToolParam) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": param.type, "description": param.description}
    return schema | {"enum": list(param.enum)} if param.enum else schema


def tool_result(value: Any, tool: str) -> JsonToolResult:
    """Returns the result of a tool's execute; raises EPROTO, with the plugin's fault, if it is none of
    this tool's."""
    try:
        result: JsonToolResult = jsontext.converted(value, JsonToolResult, whole="result")
    except Fault as fault:
        raise Fault("EPROTO", f"the tool {tool} returned no ToolCallResult: {fault.message}") from None
    if result.tool_name != tool:
        raise Fault("EPROTO", f"the tool {tool} returned a result of {jsontext.shown(result.tool_name)}")
    return result
