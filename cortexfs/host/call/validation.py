"""A tool's input against its schema, before any code of the tool runs (abi.md 4.15).

Rules: a wrong input raises EINVAL with one sentence, `path: what is wrong`. A wrong schema raises EPROTO, as
it is the plugin's fault. Formats are checked, not only noted. References outside the schema are never
fetched. Patterns without lookaround and backreferences take linear time. If another pattern gives up after
BACKTRACKS steps, the input is refused.
This file must never know which tool it is, or where the input came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, TypeAlias

import jsonschema_rs
import msgspec

from cortexfs.core.arguments.schema import Shape, shape_of
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import ROOT, check_depth, clipped, nearest, path_text, shown, type_name

BACKTRACKS = 100_000
# jsonschema-rs stops at 255 levels with a plain ValueError.
MAX_SCHEMA_DEPTH = 200
# For a failing anyOf jsonschema-rs keeps every error of every branch, 15 µs each: a large input is refused
# without the place of its error.
LARGE = 20_000
_TOP = "the top"

Error: TypeAlias = jsonschema_rs.ValidationError
Step: TypeAlias = str | int


class Validator:
    """One schema, compiled at the first check. Its shape is computed at the first call that needs it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self._compiled: jsonschema_rs.Validator | None = None
        self._shape: Shape | None = None

    def shape(self) -> Shape:
        self._shape = self._shape or shape_of(self.schema)
        return self._shape

    def check(self, input: object) -> None:
        """Raises EINVAL for a wrong input, EPROTO for a wrong schema."""
        validator = self._compiled or self.compile()
        check_depth(input)
        try:
            if validator.is_valid(input):
                return
            schema = msgspec.json.encode(self.schema)
            if (b'"anyOf"' in schema or b'"oneOf"' in schema) and _is_large(input):
                raise Fault("EINVAL", "input: does not fit the schema, and is too large to say where")
            validator.validate(input)
        except jsonschema_rs.ValidationError as error:
            raise Fault("EINVAL", clipped(_Complaint(self.schema).of(error))) from None
        except ValueError as error:  # not JSON: bytes, lone surrogates, keys that are no strings
            raise Fault("EINVAL", f"input: is not JSON: {error}") from None

    def compile(self) -> jsonschema_rs.Validator:
        """Raises EPROTO for a wrong schema."""
        try:
            check_depth(self.schema, _TOP, MAX_SCHEMA_DEPTH)
            self._compiled = _validator(msgspec.json.encode(self.schema))
        except Fault as fault:
            raise Fault("EPROTO", f"the tool's schema is wrong at {fault.message}") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise Fault("EPROTO", f"the tool's schema is not JSON: {error}") from None
        return self._compiled


def _validator(schema: bytes) -> jsonschema_rs.Validator:
    document = msgspec.json.decode(schema)
    try:
        return jsonschema_rs.validator_for(
            document,
            validate_formats=True,
            offline=True,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS),
        )
    except jsonschema_rs.ValidationError as error:
        raise Fault("EINVAL", clipped(_Complaint(document, _TOP).of(error))) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise Fault("EINVAL", f"{_TOP}: {error}") from None


def _is_large(value: object) -> bool:
    level, count = [value], 0
    while level and count <= LARGE:
        nested = (n.values() if isinstance(n, dict) else n for n in level if isinstance(n, dict | list))
        level = list(chain.from_iterable(nested))
        count += len(level)
    return count > LARGE


class _Complaint:
    """Makes a sentence of an error. It needs the schema only to suggest known names."""

    def __init__(self, schema: Mapping[str, Any], root: str = ROOT) -> None:
        self._schema = schema
        self._root = root

    def of(self, error: Error) -> str:
        kind: Any = error.kind
        path = error.instance_path
        if kind.name in ("anyOf", "oneOf"):
            return self._alternatives(error, kind.context)
        if kind.name == "required":
            beside = "" if error.schema_path[-1] == "required" else " beside a property that is given"
            return f"{self._at([*path, kind.property])}: is required{beside}"
        if kind.name in ("additionalProperties", "unevaluatedProperties"):
            known = _inside(self._schema, error.schema_path[:-1]).get("properties")
            names = known if isinstance(known, Mapping) else ()
            name = kind.unexpected[0]
            return f"{self._at([*path, name])}: is an unknown property{nearest(str(name), names)}"
        if kind.name == "falseSchema" and error.schema_path[-1:] == ["additionalProperties"]:
            return f"{self._at(path)}: takes no properties"
        if kind.name == "propertyNames":
            reason = self.of(kind.error).partition(": ")[2]
            return f"{self._at(path)}: the property name {shown(kind.error.instance)} {reason}"
        say = _SAY.get(kind.name)
        return f"{self._at(path)}: {say(error, kind) if say else error.message}"

    def _at(self, path: list[Step]) -> str:
        return path_text(path) if path else self._root

    def _alternatives(self, error: Error, branches: list[list[Error]]) -> str:
        """Returns the error of the branch that fits best, or the expectations of all branches together."""
        path = self._at(error.instance_path)
        if fitting := sum(not branch for branch in branches):
            return f"{path}: fits {fitting} alternatives of the schema, and must fit exactly one"
        near = [branch for branch in branches if not any(_elsewhere(e, error) for e in branch)]
        if not near:
            wrong = [e for branch in branches for e in branch if _elsewhere(e, error)]
            return f"{path}: {_together(wrong)}"
        tags = [next((e for e in branch if _values_of(e)), None) for branch in near]
        same = [tag for tag in tags if tag and tag.instance_path == (tags[0] or tag).instance_path]
        if len(same) == len(near) > 1:  # a tag tells the branches apart, and the input's is none of theirs
            return f"{self._at(same[0].instance_path)}: {_together(same)}"
        return self.of(min(near, key=_distance)[0])


def _inside(schema: Any, where: list[Step]) -> Mapping[str, Any]:
    """Returns the part of the schema at which an error's schema path ends."""
    for step in where:
        if isinstance(schema, list) and isinstance(step, int) and step < len(schema):
            schema = schema[step]
        else:
            schema = schema.get(str(step)) if isinstance(schema, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def _elsewhere(error: Error, group: Error) -> bool:
    """Returns True if the branch of this error expects another sort of value."""
    return error.instance_path == group.instance_path and error.kind.name in ("type", "const", "enum")


def _distance(branch: list[Error]) -> tuple[int, int]:
    """Returns how far a branch is from fitting: wrong tags (a `const` with another value) weigh most."""
    return sum(error.kind.name in ("const", "enum") for error in branch), len(branch)


def _values_of(error: Error) -> list[Any]:
    kind: Any = error.kind
    if kind.name == "const":
        return [kind.expected_value]
    return list(kind.options) if kind.name == "enum" else []


def _together(wrong: list[Error]) -> str:
    """Returns the expectations of several branches in one place."""
    kinds: list[Any] = [error.kind for error in wrong]
    types = dict.fromkeys(name for kind in kinds if kind.name == "type" for name in kind.types)
    values = [value for error in wrong for value in _values_of(error)]
    instance = wrong[0].instance
    if not types:
        return _expectation(values, instance)
    choices = " or ".join([*types, *map(shown, values)])
    return f"expected {choices}, got {shown(instance) if values else type_name(instance)}"


def _expectation(values: list[Any], instance: object) -> str:
    one_of = "" if len(values) == 1 else "one of "
    return f"expected {one_of}{', '.join(map(shown, values))}, got {shown(instance)}"


def _count(noun: str, word: str, nouns: str = "") -> Callable[[Error, Any], str]:
    """Returns a function that makes sentences about too many or too few of something."""

    def say(error: Error, kind: Any) -> str:
        counted = noun if kind.limit == 1 else nouns or f"{noun}s"
        # jsonschema-rs reports a wrong length only of values that have one.
        has = len(error.instance) if isinstance(error.instance, str | list | dict) else 0
        return f"must have at {word} {kind.limit} {counted}, has {has}"

    return say


def _bound(phrase: str) -> Callable[[Error, Any], str]:
    return lambda error, kind: f"must be {phrase} {shown(kind.limit)}, got {shown(error.instance)}"


def _pattern(error: Error, kind: Any) -> str:
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Pattern):
        return f"must match the pattern {clipped(kind.pattern, 200)}, got {shown(error.instance)}"
    return "takes too long to match with the schema's pattern"


_AMOUNTS = {"minContains": "too few", "maxContains": "too many"}
_ASKED_FOR = "elements of the kind that the schema asks for"
_BEYOND = "has more elements than the schema has places for"

_SAY: dict[str, Callable[[Error, Any], str]] = {
    "type": lambda e, k: (
        f"expected {' or '.join(sorted(k.types, key='null'.__eq__))}, got {type_name(e.instance)}"
    ),
    "enum": lambda e, k: _expectation(list(k.options), e.instance),
    "const": lambda e, k: _expectation([k.expected_value], e.instance),
    "minimum": _bound("at least"),
    "maximum": _bound("at most"),
    "exclusiveMinimum": _bound("more than"),
    "exclusiveMaximum": _bound("less than"),
    "multipleOf": lambda e, k: f"must be a multiple of {shown(k.multiple_of)}, got {shown(e.instance)}",
    "minLength": _count("character", "least"),
    "maxLength": _count("character", "most"),
    "minItems": _count("element", "least"),
    "maxItems": _count("element", "most"),
    "minProperties": _count("property", "least", "properties"),
    "maxProperties": _count("property", "most", "properties"),
    "pattern": _pattern,
    "format": lambda e, k: f"must be a valid {k.format}, got {shown(e.instance)}",
    "uniqueItems": lambda e, k: "must not have the same element twice",
    "contains": lambda e, k: f"has {_AMOUNTS.get(str(e.schema_path[-1]), 'no')} {_ASKED_FOR}",
    "additionalItems": lambda e, k: _BEYOND,
    "unevaluatedItems": lambda e, k: _BEYOND,
    "falseSchema": lambda e, k: "is not allowed here",
    "not": lambda e, k: f"must not fit {shown(k.schema)}",
    "contentEncoding": lambda e, k: f"must be encoded as {k.content_encoding}",
    "contentMediaType": lambda e, k: f"must hold {k.content_media_type}",
}
