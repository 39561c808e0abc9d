"""The texts about an object, from its schema alone: `--help`, usage after a call without input, completion.

Rules: plain text, 80 columns, no colour. Descriptions come from plugins, so control characters are removed
before a terminal gets them. The texts promise no more than parse.py accepts; a test runs the examples.
This file must never know how or where its text is shown.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec

from cortexfs.core.arguments.schema import Schema, Shape, ValueKind, resolve, shape_of
from cortexfs.core.hostcalls import Effect
from cortexfs.core.safe_text import UNSEEN

WIDTH = 80
_COLUMN = 26  # the column in which descriptions begin
_ANY_TEXT = "text"
_INLINE_CHOICES = 24  # characters of choices in the usage line; longer ones are only in the table
_SAFE_WORD = re.compile(r"[A-Za-z0-9_./:=@%+,-]+", re.ASCII)
_FILE_NAME = re.compile(r"(^|[_.-])(path|file|filename|dir|directory|folder|paths|files)$", re.IGNORECASE)

_METAVARS = {"integer": "N", "number": "NUMBER", "array": "ITEM", "object": "JSON", "null": "null"}
_SAMPLES: dict[str, Any] = {"integer": 1, "number": 1.5, "boolean": True, "object": {}, "null": None}
_TALKS = ("model", "agent")
_OUTPUT = "output: text on a terminal, else frames, a line of JSON each; CTX_OUTPUT=text or jsonl chooses"
_EXIT = (
    "exit status: 0 done, 1 the call failed, 2 bad arguments or input, 13 not permitted, "
    "69 what it needs is not running, 70 internal error, 130 interrupted"
)
# Stands for names of files, which the shell completes itself.
FILES = "\0files"


def usage(name: str, schema: Schema) -> str:
    """Returns two to six lines for a user who called a tool without input."""
    synopsis = _synopsis(name, shape_of(schema)).splitlines()
    if len(synopsis) > 4:
        synopsis = [f"usage: {name} [--name VALUE]... {' '.join(_places(shape_of(schema)))}".rstrip()[:WIDTH]]
    return _lines(*synopsis, f"Or give one JSON object on standard input. {name} --help says more.")


def help_text(
    name: str,
    description: str,
    schema: Schema,
    effects: Sequence[Effect] = (),
    class_: str = "tool",
    dry_run: bool = False,
) -> str:
    """Returns the text of --help, for every class."""
    head = _wrapped(f"{name} - {_plain(description)}".removesuffix(" - "))
    body = _talk(name) if class_ in _TALKS else _tool(name, shape_of(schema), effects, dry_run)
    return _lines(head, "", *body, "", _wrapped(_OUTPUT), _wrapped(_EXIT))


def complete(schema: Schema, words: Sequence[str]) -> list[str]:
    """Returns the words that may complete the last of `words`. FILES among them stands for names of files."""
    *before, partial = words or [""]
    shape = shape_of(schema)
    if "--" not in before:
        label, equals, _ = partial.partition("=")
        bare_label = label.removeprefix("--")
        if equals and bare_label in shape.properties:
            return _matching(partial, [f"{label}={value}" for value in _offers(shape, bare_label)])
        if (name := _awaits(shape, before)) is not None:
            return _matching(partial, _offers(shape, name))
    used, bare = _used(shape, before)
    open_ = [name for name in shape.required if name not in used][bare : bare + 1]
    offers = [value for name in open_ for value in _offers(shape, name)]
    if "--" not in before:
        offers += _names(shape, used)
    return _matching(partial, offers)


def _tool(name: str, shape: Shape, effects: Sequence[Effect], dry_run: bool) -> list[str]:
    required = [(place, word) for place, word in zip(shape.required, _places(shape), strict=True)]
    optional = [p for p in shape.properties if p not in shape.required]
    lines = [_synopsis(name, shape)]
    if required:
        lines += ["", "arguments, in this order or by name (--name VALUE, name=VALUE):"]
        lines += [_row(shape, place, word) for place, word in required]
    if optional or dry_run:
        lines += ["", "options:"] + [_row(shape, place, _option(shape, place)) for place in optional]
        lines += [f"  {'--dry-run':<{_COLUMN - 2}}say what would happen, and do nothing"] * dry_run
    if effects:
        lines += ["", "effects:"] + [f"  {_effect(effect)}" for effect in effects]
    return [*lines, "", "examples:", *(f"  {example}" for example in examples(name, shape.root))]


def examples(name: str, schema: Schema) -> list[str]:
    """Returns two example calls with values from the schema where it has any: by arguments, and by JSON."""
    shape = shape_of(schema)
    values = {place: _sample(shape, place) for place in shape.required}
    words = [_quoted(_word(value)) for value in values.values()]
    as_json = msgspec.json.encode(values).decode()
    if any(word.startswith(("-", "'{", "{")) or "=" in word for word in words):
        words.insert(0, "--")
    return [" ".join([name, *(words or _first_option(shape))]), f"echo {_quoted(as_json)} | {name}"]


def _talk(name: str) -> list[str]:
    return [
        f"usage: {name} PROMPT...",
        f"       {name} < PROMPT",
        f"       {name}            opens a chat, on a terminal",
        "",
        "The words are joined by spaces. - stands for the text of standard input, which",
        "is appended after a blank line. A JSON object with messages, input or task, as",
        "the one argument or on standard input, is taken as it is.",
        "",
        "examples:",
        f"  {name} 'Say hello in one word.'",
        f"  {name} 'Summarise this:' - < README.md",
    ]


def _synopsis(name: str, shape: Shape) -> str:
    options = [f"[{_option(shape, p)}]" for p in shape.properties if p not in shape.required]
    words = [word.replace(" ", "\0") for word in [*options, *_places(shape)]]
    filled = _wrapped(" ".join([f"usage: {name}", *words]), " " * len(f"usage: {name} "))
    return filled.replace("\0", " ")


def _places(shape: Shape) -> list[str]:
    """Returns the bare words of the synopsis, in the order in which they are taken."""
    words = [re.sub(r"[^A-Za-z0-9]+", "-", name).upper() for name in shape.required]
    if words and shape.kind(shape.required[-1]).types == {"array"}:
        words[-1] += "..."
    return words


def _option(shape: Shape, name: str) -> str:
    kind = shape.kind(name)
    if kind.flag:
        return f"--[no-]{name}" if _default(shape, name) is True else f"--{name}"
    return f"--{name} {_metavar(name, kind)}"


def _metavar(name: str, kind: ValueKind) -> str:
    choices = "|".join(map(_word, kind.choices))
    if choices and len(choices) <= _INLINE_CHOICES:
        return choices
    if "string" in kind.types:
        return "PATH" if _FILE_NAME.search(name) else "TEXT"
    return next((word for type_, word in _METAVARS.items() if type_ in kind.types), "VALUE")


def _row(shape: Shape, name: str, label: str) -> str:
    kind, schema = shape.kind(name), resolve(shape.properties[name], shape.root)
    types = "any JSON" if len(kind.types) > 6 else " or ".join(sorted(kind.types))
    facts = ["one of " + ", ".join(map(_word, kind.choices)) if kind.choices else types]
    if "array" in kind.types:
        facts.append("may be repeated")
    if "default" in schema:
        facts.append(f"default {_word(schema['default']) or _quoted('')}")
    description = schema.get("description")
    text = ", ".join(facts) + (f": {description}" if isinstance(description, str) and description else "")
    filled = _wrapped("\0" * _COLUMN + _plain(text), " " * _COLUMN).replace("\0", " ")
    first = f"  {label} "
    if len(first) > _COLUMN:  # beside its text the label's end would not be seen
        return f"{first.rstrip()}\n{filled}"
    return first + filled[len(first) :]


def _effect(effect: Effect) -> str:
    words = (effect.kind, effect.target or "-", effect.reversibility, effect.confirmation, effect.dry_run)
    return _plain(" ".join(words))


def _default(shape: Shape, name: str) -> Any:
    return resolve(shape.properties[name], shape.root).get("default")


def _sample(shape: Shape, name: str) -> Any:
    """Returns a value that the schema is likely to accept: one from the schema, if it has any."""
    kind, schema = shape.kind(name), resolve(shape.properties[name], shape.root)
    samples = schema.get("examples")
    if isinstance(samples, list) and samples:
        return samples[0]
    for key in ("default", "minimum"):
        if key in schema:
            return schema[key]
    if kind.choices:
        return kind.choices[0]
    return _typical(name, kind, shape)


def _typical(name: str, kind: ValueKind, shape: Shape, nested: bool = False) -> Any:
    if "string" in kind.types:
        return "README.md" if _FILE_NAME.search(name) else _ANY_TEXT
    if "array" in kind.types:
        inner = shape.items(kind)
        return [] if nested else [inner.choices[0] if inner.choices else _typical(name, inner, shape, True)]
    return next((value for type_, value in _SAMPLES.items() if type_ in kind.types), None)


def _first_option(shape: Shape) -> list[str]:
    for name in shape.properties:
        value = _sample(shape, name)
        if value is not None:
            return [f"--{name}"] if shape.kind(name).flag else [_quoted(f"--{name}={_word(value)}")]
    return ["'{}'"]


def _awaits(shape: Shape, before: Sequence[str]) -> str | None:
    """Returns the property of which the next word is the value, or None."""
    if not before or not before[-1].startswith("--"):
        return None
    name = before[-1][2:]
    return name if name in shape.properties and not shape.kind(name).flag else None


def _used(shape: Shape, before: Sequence[str]) -> tuple[set[str], int]:
    """Returns the properties that the words set already, and the number of bare words."""
    used: set[str] = set()
    bare, flags, skip = 0, True, False
    for word in before:
        label, equals, _ = word.partition("=")
        name = label.removeprefix("--")
        if skip:
            skip = False
        elif flags and word == "--":
            flags = False
        elif flags and (word.startswith("--") or (equals and name in shape.properties)):
            used.add(name if name in shape.properties else name.removeprefix("no-"))
            skip = not equals and _awaits(shape, [word]) is not None
        else:
            bare += 1
    return used, bare


def _names(shape: Shape, used: set[str]) -> list[str]:
    names = [n for n in shape.properties if n not in used or "array" in shape.kind(n).types]
    negated = [f"--no-{name}" for name in names if shape.kind(name).flag]
    return [f"--{name}" for name in names] + negated + [f"{name}=" for name in names]


def _offers(shape: Shape, name: str) -> list[str]:
    kind = shape.kind(name)
    if "array" in kind.types and not kind.choices:
        kind = shape.items(kind)
    if kind.choices:
        return [_word(choice) for choice in kind.choices]
    if kind.flag:
        return ["true", "false"]
    return [FILES] if "string" in kind.types and _FILE_NAME.search(name) else []


def _matching(partial: str, offers: list[str]) -> list[str]:
    files = not partial.startswith("-")
    offers = [offer for offer in offers if offer.removesuffix(FILES).isprintable()]
    return [o for o in offers if (files or "=" in partial if o.endswith(FILES) else o.startswith(partial))]


def _word(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _quoted(word: str) -> str:
    return word if _SAFE_WORD.fullmatch(word) else "'" + word.replace("'", "'\\''") + "'"


def _plain(text: str) -> str:
    return re.sub(UNSEEN, " ", text).replace("\n", " ").replace("\t", " ").strip()


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent[: WIDTH // 2], break_long_words=False, break_on_hyphens=False
    )


def _lines(*lines: str) -> str:
    return re.sub(UNSEEN, " ", "\n".join(lines).replace("\t", " ")) + "\n"
