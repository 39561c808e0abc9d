"""The fields of a manifest.json.

Rules: these types are the one table of its keys; shape.py checks values against them and
docs/manifest-json.md lists them. An optional key that is not there is None, or an empty list or map.
This file must never know what a value has to look like beyond its JSON type: that is rules.py.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

ParamType: TypeAlias = Literal["string", "number", "boolean", "object", "array"]
WordType: TypeAlias = Literal["string", "number", "boolean"]
FieldType: TypeAlias = Literal["text", "number", "boolean", "select", "secret"]


class Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a manifest; its keys are written in camelCase."""


class ToolParam(Part, frozen=True):
    name: str
    type: ParamType
    description: str
    required: bool = False
    enum: tuple[str, ...] | None = None


class Tool(Part, frozen=True):
    """Informational, but for `dry_run`: what the module exports counts."""

    name: str
    description: str
    params: tuple[ToolParam, ...]
    dry_run: bool = False  # it can be run dry


class Argument(Part, frozen=True):
    name: str
    type: WordType
    description: str
    required: bool = False


class Option(Part, frozen=True):
    name: str  # --<name>
    type: WordType
    description: str
    flag: str  # -v


class Command(Part, frozen=True):
    """`cortex <name>`."""

    name: str
    description: str
    args: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()


class Panel(Part, frozen=True):
    id: str
    title: str
    html_path: str
    icon: str | None = None


class Widget(Part, frozen=True):
    id: str
    title: str
    type: Literal["html", "chart", "table"]
    config: dict[str, Any]


class Choice(Part, frozen=True):
    label: str
    value: str


class SettingField(Part, frozen=True):
    key: str
    label: str
    type: FieldType
    default_value: Any = msgspec.UNSET  # required by the reference, absent in the wild: a warning
    options: tuple[Choice, ...] = ()
    description: str | None = None


class Section(Part, frozen=True):
    section: str
    fields: tuple[SettingField, ...]


class Ui(Part, frozen=True):
    panels: tuple[Panel, ...] = ()
    widgets: tuple[Widget, ...] = ()
    settings: tuple[Section, ...] = ()


class Provider(Part, frozen=True):
    kind: str
    label: str
    default_model: str


class Config(Part, frozen=True):
    providers: tuple[Provider, ...] = ()
    settings: dict[str, Any] = {}


class Manifest(Part, frozen=True):
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
    tools: tuple[Tool, ...] = ()
    cli_commands: tuple[Command, ...] = ()
    ui: Ui = Ui()
    config: Config = Config()
