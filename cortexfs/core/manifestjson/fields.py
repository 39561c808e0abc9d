"""The fields of a manifest.json, and the input of its tools, as a JSON Schema, and their result.

Rules: these types are the one table of its keys. problems.py checks values against them, and
docs/manifest-json.md lists them. An optional key that is missing is None, or an empty list or map. Answers of
a plugin's code are untrusted input.
This file must never know the rules for a value beyond its JSON type (they are in rules.py), nor how a tool is
called.
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
    """A part of a manifest. Its keys are in camelCase."""


class ToolParam(ManifestPart, frozen=True):
    name: str
    type: ParamType
    description: str
    required: bool = False
    enum: tuple[str, ...] | None = None
    # Keys of real manifests: the values of an enum, as words or in the form of a setting; the default.
    options: tuple[Any, ...] = ()
    default: Any = msgspec.UNSET
    default_value: Any = msgspec.UNSET

    @property
    def words(self) -> tuple[str, ...]:
        """Returns the only values that it takes, or nothing if it takes all of its type."""
        values = [each.get("value") if isinstance(each, dict) else each for each in self.options]
        return self.enum or tuple(each for each in values if isinstance(each, str))


class ToolField(ManifestPart, frozen=True):
    """A tool of the manifest. Only `dry_run` and enums count; the rest comes from the module's exports."""

    name: str
    description: str
    params: tuple[ToolParam, ...]
    dry_run: bool = False  # it has dry runs


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
    """A command `cortex <name>`."""

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
    default_value: Any = msgspec.UNSET  # required by the reference; a warning, as real manifests lack it
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
    ai_disclosure: Any = None  # about the use of AI by its author, for people
    ui: Ui = Ui()
    config: ConfigField = ConfigField()


class JsonToolResult(msgspec.Struct, frozen=True, rename="camel"):
    tool_name: str  # must be the name of the tool
    success: bool
    output: str
    duration_ms: float
    error: str | None = None


def words_of(manifest: JsonManifest) -> dict[str, dict[str, tuple[str, ...]]]:
    """Returns the only words that the manifest allows, by tool and param."""
    found = {tool.name: {param.name: param.words for param in tool.params} for tool in manifest.tools}
    return {tool: {name: words for name, words in of.items() if words} for tool, of in found.items()}


def input_schema(
    params: Sequence[ToolParam], words: Mapping[str, tuple[str, ...]] = MappingProxyType({})
) -> dict[str, Any]:
    """Returns the schema of the tool's arguments. It allows no other params, so misspelt ones are refused.
    `words` are those of the manifest, for params without words of their own."""
    return {
        "type": "object",
        "properties": {param.name: _property(param, words.get(param.name, ())) for param in params},
        "required": [param.name for param in params if param.required],
        "additionalProperties": False,
    }


def _property(param: ToolParam, words: tuple[str, ...]) -> dict[str, Any]:
    type_ = "string" if param.type == "enum" else param.type
    schema: dict[str, Any] = {"type": type_, "description": param.description}
    if values := param.words or (words if type_ == "string" else ()):
        schema["enum"] = list(values)
    default = param.default if param.default_value is msgspec.UNSET else param.default_value
    return schema if default is msgspec.UNSET else schema | {"default": default}


def tool_result(value: Any, tool: str) -> JsonToolResult:
    """Returns the result of a tool's execute. Raises EPROTO, as the plugin's fault, for any other value."""
    try:
        result: JsonToolResult = jsontext.converted(value, JsonToolResult, whole="result")
    except Fault as fault:
        raise Fault("EPROTO", f"the tool {tool} returned no ToolCallResult: {fault.message}") from None
    is_unnamed = not result.success and not result.tool_name  # real plugins return this
    if result.tool_name != tool and not is_unnamed:
        raise Fault("EPROTO", f"the tool {tool} returned a result of {jsontext.shown(result.tool_name)}")
    return result
