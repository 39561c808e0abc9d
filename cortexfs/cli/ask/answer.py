"""The answer to a question: its schema, and its way to the standard streams, piece by piece, or whole as a
code block or as JSON.

Rules: standard output has the answer alone. All else goes to standard error, next to the waiting line. That
line disappears with the first piece of the answer, and before a person is asked.
This file must never know connections.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from typing import Any

from cortexfs.chat.calls import Show
from cortexfs.chat.printing import Printer
from cortexfs.cli import progress
from cortexfs.core import frames, jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame

_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_BLOCK = re.compile(
    r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})[^\n]*\n(.*?)(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)


class Answer:
    """One answer, as far as it was received and shown. With `is_held`, it is printed whole at its end."""

    def __init__(self, is_held: bool, waiting: contextlib.ExitStack) -> None:
        self._buffer = io.StringIO() if is_held else None
        self._printer = Printer(self._buffer or sys.stdout, sys.stderr)
        self._waiting = waiting
        self.run: str | None = None
        self.tokens: dict[str, int] = {}

    @property
    def text(self) -> str:
        """Returns the text of a held answer."""
        return self._buffer.getvalue() if self._buffer else ""

    def hear(self, frame: AnyFrame) -> None:
        self.run = frame.run or self.run
        if isinstance(frame, frames.Usage):
            for name in ("input_tokens", "output_tokens"):
                self.tokens[name] = self.tokens.get(name, 0) + getattr(frame, name)

    def show(self, show: Show) -> None:
        if show.kind == "question" or (show.kind == "answer" and self._buffer is None):
            self._waiting.close()
        with progress.apart():
            self._printer.show(show)


def code_block(text: str) -> str:
    """Returns the first code block. Raises EBADMSG if there is none."""
    if found := _BLOCK.search(text):
        return found[2]
    raise Fault("EBADMSG", "the answer has no code block, and nothing was printed; ask without -x to see it")


def usage(tokens: dict[str, int], model: str) -> tuple[dict[str, Any], str]:
    """Returns the tokens and the cost, as fields and as a sentence. Without a price there is no cost."""
    from cortexfs.cli import prices  # a slow import that only this needs

    if not tokens:
        return {}, "the model does not report how many tokens it used"
    table = prices.load()
    cost = table.cost(model, tokens["input_tokens"], tokens["output_tokens"])
    money = table.text(cost) or f"no price of {model} in {prices.FILE}"
    fields = {**tokens, "cost": cost, "currency": None if cost is None else table.currency}
    return fields, f"{tokens['input_tokens']:,} tokens in, {tokens['output_tokens']:,} out; {money}"


def schema(text: str) -> dict[str, Any]:
    """Returns the schema of an answer that the text means: JSON, or the concise form of the program llm, as
    "name, age int, bio: in one sentence"."""
    if any("\ud800" <= char <= "\udfff" for char in text):  # Python's form of other bytes
        raise Fault("EINVAL", "--schema: it is not UTF-8; write it in UTF-8")
    if not text.lstrip().startswith("{"):
        return _concise(text)
    decoded: dict[str, Any] = jsontext.decode(text, "--schema")
    return decoded


def _concise(text: str) -> dict[str, Any]:
    """Line ends separate fields if there are any, and else commas, so that a description may have commas.
    Every field is required and there are no others: providers can hold a model to such a schema."""
    fields = [each for part in text.split("\n" if "\n" in text.strip() else ",") if (each := part.strip())]
    properties = dict(map(_field, fields))
    if not properties:
        raise Fault("EINVAL", "--schema: names no field; write name, age int")
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _field(text: str) -> tuple[str, dict[str, str]]:
    head, _, description = text.partition(":")
    words = head.split()
    if not 1 <= len(words) <= 2 or (type_ := words[1] if words[1:] else "str") not in _TYPES:
        why = f"{jsontext.shown(text)} is not NAME TYPE: DESCRIPTION; types are {', '.join(_TYPES)}"
        raise Fault("EINVAL", f"--schema: {why}")
    field = {"type": _TYPES[type_]}
    return words[0], field | ({"description": description.strip()} if description.strip() else {})
