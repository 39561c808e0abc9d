"""Forms that a server asks a person to fill in: the flat schemas of MCP's elicitation, and answers to them.

Rules: a schema is untrusted input: a field of any other kind than these is EINVAL. An empty answer means the
default. An empty answer without a default is left out, unless the field is required.
This file must never know how a person is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.core.safe_text import one_line

MAX_FIELDS = 100
MAX_LABEL = 300
_TRUE, _FALSE = ("y", "yes", "true", "1"), ("n", "no", "false", "0")


class FormField(NamedTuple):
    name: str
    label: str
    kind: str  # string, integer, number, boolean, choice or choices
    required: bool
    default: Any = None
    choices: tuple[tuple[str, str], ...] = ()  # values and their titles

    @property
    def listing(self) -> list[str]:
        """Returns a line for each choice."""
        choices = enumerate(self.choices, 1)
        rows = (
            (number, title, f" ({one_line(value)})" * (title != value)) for number, (value, title) in choices
        )
        return [f"  {number} {title}{value}" for number, title, value in rows]

    @property
    def prompt(self) -> str:
        empty = "" if self.required else " (may be empty)"
        hint = empty if self.default is None else f" [{one_line(str(self.default))[:MAX_LABEL]}]"
        return f"{self.label}{hint}: "

    def read(self, text: str) -> Any:
        """Returns the value of a person's answer, and None for no answer. Raises EINVAL for a wrong one."""
        text = text.strip()
        if not text:
            if self.default is None and self.required:
                raise Fault("EINVAL", f"{self.name} needs an answer")
            return self.default
        return _READERS[self.kind](self, text)


def fields(schema: Mapping[str, Any]) -> list[FormField]:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or len(properties) > MAX_FIELDS:
        raise Fault("EINVAL", f"the server's question has no form, or one with over {MAX_FIELDS} fields")
    required = schema.get("required")
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return [_field(str(name), property_, name in needed) for name, property_ in properties.items()]


def defaults(form: list[FormField]) -> dict[str, Any]:
    """Returns the answer of a person who takes all defaults. Raises EINVAL if a field needs an answer."""
    return filled(form, lambda field: field.read(""))


def filled(form: list[FormField], ask: Callable[[FormField], Any]) -> dict[str, Any]:
    found = {field.name: ask(field) for field in form}
    return {name: value for name, value in found.items() if value is not None}


def _field(name: str, schema: Any, required: bool) -> FormField:
    if not isinstance(schema, dict):
        raise Fault("EINVAL", f"the field {name!r} of the server's form is not an object")
    label = one_line(str(schema.get("title") or schema.get("description") or name))[:MAX_LABEL]
    kind, choices = str(schema.get("type")), _choices(schema)
    if kind == "array":
        items = schema.get("items")
        kind, choices = "choices", _choices(items if isinstance(items, dict) else {})
    elif choices:
        kind = "choice"
    if kind not in _READERS or (kind == "choices" and not choices):
        raise Fault("EINVAL", f"the field {name!r} of the server's form has the unknown type {kind}")
    return FormField(name, label, kind, required, schema.get("default"), choices)


def _choices(schema: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    options = schema.get("oneOf") or schema.get("anyOf")
    if isinstance(options, list):
        pairs = [(option.get("const"), option.get("title")) for option in options if isinstance(option, dict)]
    else:
        values = schema.get("enum")
        titles = schema.get("enumNames")
        values = values if isinstance(values, list) else []
        has_titles = isinstance(titles, list) and len(titles) == len(values)
        pairs = [*zip(values, titles if has_titles else values, strict=True)]  # type: ignore[arg-type]
    return tuple((str(value), one_line(str(title or value))[:MAX_LABEL]) for value, title in pairs)


def _number(field: FormField, text: str) -> float:
    make, expected = (int, "a whole number") if field.kind == "integer" else (float, "a number")
    try:
        return make(text)
    except ValueError:
        raise Fault("EINVAL", f"{field.name} must be {expected}, not {text!r}") from None


def _boolean(field: FormField, text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise Fault("EINVAL", f"{field.name} must be yes or no")
    return text.lower() in _TRUE


def _choice(field: FormField, text: str) -> str:
    """Returns the choice whose value, title or number in the list is `text`."""
    for number, (value, title) in enumerate(field.choices, 1):
        if text in (value, title, str(number)):
            return value
    known = ", ".join(value for value, _ in field.choices)
    raise Fault("EINVAL", f"{field.name} must be one of {known}")


_READERS: Mapping[str, Callable[[FormField, str], Any]] = {
    "string": lambda _, text: text,
    "integer": _number,
    "number": _number,
    "boolean": _boolean,
    "choice": _choice,
    "choices": lambda field, text: [_choice(field, each.strip()) for each in text.split(",")],
}
