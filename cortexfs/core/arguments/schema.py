"""The parts of a JSON Schema that matter for typed words: property names, and the types of their values.

Rules: every dict gets an answer, also a wrong schema, which validation refuses elsewhere. Only references
into the schema itself (`#/...`) are followed, at most _MAX_HOPS. Nothing here judges an input.
This file must never know what an argument, a flag or a host is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from cortexfs.core.jsontext import type_name

Schema = Mapping[str, Any]

ANY = frozenset({"null", "boolean", "integer", "number", "array", "object", "string"})
_CHOICES = ("anyOf", "oneOf")
# References and combinations deeper than this mean "any type". This limit also ends every cycle.
_MAX_HOPS = 16
# The branches read for one answer. A limit, as two references of a schema to itself double it at every hop.
_MAX_BRANCHES = 1000


class ValueKind(msgspec.Struct, frozen=True):
    """The types that one property, or one element of an array, may have."""

    types: frozenset[str] = ANY
    choices: tuple[Any, ...] = ()
    items: Schema = msgspec.field(default_factory=dict)

    @property
    def flag(self) -> bool:
        """Returns True if its name alone is a value: a boolean and nothing else."""
        return "boolean" in self.types and self.types <= {"boolean", "null"}


class Shape(msgspec.Struct, frozen=True):
    """The properties of the input object, and the names of the required ones in schema order."""

    root: Schema
    properties: Mapping[str, Schema]
    required: tuple[str, ...]
    kinds: dict[str, ValueKind] = msgspec.field(default_factory=dict)  # a cache

    def kind(self, name: str) -> ValueKind:
        if name not in self.kinds:
            self.kinds[name] = kind_of(self.properties[name], self.root)
        return self.kinds[name]

    def items(self, kind: ValueKind) -> ValueKind:
        return kind_of(kind.items, self.root)


def shape_of(root: Schema) -> Shape:
    """Returns the shape of the input, from the schema and the schemas that it combines at the top."""
    properties: dict[str, Schema] = {}
    required: dict[str, None] = {}
    for part, certain in _parts(root, root, iter(range(_MAX_BRANCHES))):
        for name, schema in _mapping(part.get("properties")).items():
            properties.setdefault(name, _mapping(schema))
        if certain:
            required |= dict.fromkeys(name for name in _list(part.get("required")) if isinstance(name, str))
    return Shape(root, properties, tuple(name for name in required if name in properties))


def unknown_required(root: Schema) -> list[str]:
    """Returns the required names that are no properties, and so that no caller is told of. A schema that
    speaks of other properties may mean them."""
    parts = [*_parts(root, root, iter(range(_MAX_BRANCHES)))]
    known = {name for part, _ in parts for name in _mapping(part.get("properties"))}
    if any(part.get("additionalProperties") or part.get("patternProperties") for part, _ in parts):
        return []
    wanted = [name for part, _ in parts for name in _list(part.get("required")) if isinstance(name, str)]
    return [name for name in dict.fromkeys(wanted) if name not in known]


def resolve(schema: Schema, root: Schema) -> Schema:
    """Returns the schema with its local references followed. Broken ones, and circles, become {}."""
    for _ in range(_MAX_HOPS):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**_pointed(reference, root), **siblings}
    return {}


def kind_of(schema: Schema, root: Schema) -> ValueKind:
    """Returns the types that the schema allows. A schema that names no types allows all of them."""
    return _kind(schema, root, iter(range(_MAX_BRANCHES)))


def _kind(schema: Schema, root: Schema, fuel: Iterator[int], hops: int = _MAX_HOPS) -> ValueKind:
    schema = resolve(schema, root)
    branches = _branches(schema) if hops else []
    below = [_kind(branch, root, fuel, hops - 1) for branch, _ in zip(branches, fuel, strict=False)]
    choices = _values(schema)
    items = _mapping(schema.get("items"))
    if not choices and any(kind.choices for kind in below):
        choices = tuple(choice for kind in below for choice in kind.choices)
    if not items:
        items = next((kind.items for kind in below if kind.items), {})
    return ValueKind(_types(schema, choices if not below else (), below), choices, items)


def _types(schema: Schema, choices: tuple[Any, ...], below: list[ValueKind]) -> frozenset[str]:
    names = schema.get("type")
    if isinstance(names, str):
        names = [names]
    if isinstance(names, list):
        found = frozenset(name for name in names if isinstance(name, str) and name in ANY)
        return found or ANY
    if choices:
        return frozenset("integer" if type(each) is int else type_name(each) for each in choices)
    if not below:
        return ANY
    if any(key in schema for key in _CHOICES):
        return frozenset().union(*(kind.types for kind in below))
    common = ANY.intersection(*(kind.types for kind in below))
    return common or ANY


def _values(schema: Schema) -> tuple[Any, ...]:
    if "const" in schema:
        return (schema["const"],)
    return tuple(_list(schema.get("enum")))


def _branches(schema: Schema) -> list[Schema]:
    for key in (*_CHOICES, "allOf"):
        if branches := _list(schema.get(key)):
            return [_mapping(branch) for branch in branches]
    return []


def _parts(
    schema: Schema, root: Schema, fuel: Iterator[int], certain: bool = True, hops: int = _MAX_HOPS
) -> Iterator[tuple[Schema, bool]]:
    """Yields the schema and all schemas that it combines, each with True if it must always hold."""
    schema = resolve(schema, root)
    yield schema, certain
    for key in ("allOf", *_CHOICES) if hops else ():
        for branch, _ in zip(_list(schema.get(key)), fuel, strict=False):
            yield from _parts(_mapping(branch), root, fuel, certain and key == "allOf", hops - 1)


def _pointed(reference: str, root: Schema) -> Schema:
    if not reference.startswith("#"):
        return {}
    node: Any = root
    for step in reference[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, Mapping) else None
    return _mapping(node)


def _mapping(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
