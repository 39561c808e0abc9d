"""The fields of a manifest.json, and a tool of it or of its module: its input as a JSON Schema, its result.

Rules: these types are the one table of its keys; problems.py checks values against them and
docs/manifest-json.md lists them. An optional key that is not there is None, or an empty list or map. What a
plugin's code answers is checked like anything from outside.
This file must never know what a value has to look like beyond its JSON type (that is rules.py), nor how a
tool is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault

ParamType: TypeAlias = Literal["string", "number", "boolean", "object", "array", "enum"]
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
    # Of the wild: what an enum takes, as words or as a setting has them; what counts where none is given.
    options: tuple[Any, ...] = ()
    default: Any = msgspec.UNSET
    default_value: Any = msgspec.UNSET

    @property
    def words(self) -> tuple[str, ...]:
        """The only values that it takes; none: any of its type."""
        values = [each.get("value") if isinstance(each, dict) else each for each in self.options]
        return self.enum or tuple(each for each in values if isinstance(each, str))


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
    required: bool = False


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
    ai_disclosure: Any = None  # of its author's tools, for people
    ui: Ui = Ui()
    config: ConfigField = ConfigField()


class JsonToolResult(msgspec.Struct, frozen=True, rename="camel"):
    tool_name: str  # must be the tool's own
    success: bool
    output: str
    duration_ms: float
    error: str | None = None


def words_of(manifest: JsonManifest) -> dict[str, dict[str, tuple[str, ...]]]:
    """Returns the words to which the manifest restricts params, by tool and param."""
    found = {tool.name: {param.name: param.words for param in tool.params} for tool in manifest.tools}
    return {tool: {name: words for name, words in of.items() if words} for tool, of in found.items()}


def input_schema(
    params: Sequence[ToolParam], words: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> dict[str, Any]:
    """Returns the schema of the tool's arguments: its params and no others, so that a misspelt one is
    told. `words` are the manifest's, for a param without words of its own."""
    return {
        "type": "object",
        "properties": {param.name: _property(param, words.get(param.name, ())) for param in params},
        "required": [param.name for param in params if param.required],
        "additionalProperties": False,
    }


def _property(param: ToolParam, words: tuple[str, ...]) -> dict[str, Any]:
    type_ = "string" if param.type == "enum" else param.type
    schema: dict[str, Any] = {"type": type_, "description": param.description}
    if taken := param.words or (words if type_ == "string" else ()):
        schema["enum"] = list(taken)
    default = param.default if param.default_value is msgspec.UNSET else param.default_value
    return schema if default is msgspec.UNSET else schema | {"default": default}


def tool_result(value: Any, tool: str) -> JsonToolResult:
    """Returns the result of a tool's execute; raises EPROTO, with the plugin's fault, if it is none of
    this tool's."""
    try:
        result: JsonToolResult = jsontext.converted(value, JsonToolResult, whole="result")
    except Fault as fault:
        raise Fault("EPROTO", f"the tool {tool} returned no ToolCallResult: {fault.message}") from None
    is_unnamed = not result.success and not result.tool_name  # as in the wild
    if result.tool_name != tool and not is_unnamed:
        raise Fault("EPROTO", f"the tool {tool} returned a result of {jsontext.shown(result.tool_name)}")
    return result
