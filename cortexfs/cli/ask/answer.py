"""The answer to a question on the standard streams: as it comes, or whole as a code block or as JSON.

Rules: standard output has the answer alone. What else happens goes to standard error, beside the line that
says that somebody waits; that line goes with the first piece of the answer, and before a person is asked.
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
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from cortexfs.core.frames import AnyFrame

_BLOCK = re.compile(
    r"^ {0,3}(`{3,}(?=[^`\n]*$)|~{3,})[^\n]*\n(.*?)(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)


class Answer:
    """One answer, as far as it was heard and shown. `is_held` is for those that are printed whole."""

    def __init__(self, is_held: bool, waiting: contextlib.ExitStack) -> None:
        self._held = io.StringIO() if is_held else None
        self._printer = Printer(self._held or sys.stdout, sys.stderr)
        self._waiting = waiting
        self.run: str | None = None
        self.tokens: dict[str, int] = {}

    @property
    def text(self) -> str:
        """Returns the text of one that is held."""
        return self._held.getvalue() if self._held else ""

    def hear(self, frame: AnyFrame) -> None:
        self.run = frame.run or self.run
        if isinstance(frame, frames.Usage):
            for name in ("input_tokens", "output_tokens"):
                self.tokens[name] = self.tokens.get(name, 0) + getattr(frame, name)

    def show(self, show: Show) -> None:
        if show.kind == "question" or (show.kind == "answer" and self._held is None):
            self._waiting.close()
        with progress.apart():
            self._printer.show(show)


def code_block(text: str) -> str:
    """The first code block; EBADMSG where there is none."""
    if found := _BLOCK.search(text):
        return found[2]
    raise Fault("EBADMSG", "the answer has no code block, and nothing was printed; ask without -x to see it")


def usage(tokens: dict[str, int], model: str) -> tuple[dict[str, Any], str]:
    """The tokens and the cost, for programs and in words. Without a price of the user's there is no cost."""
    from cortexfs.cli import prices  # only those who want to know pay for it

    if not tokens:
        return {}, "this model does not tell how many tokens it took"
    there = prices.load()
    cost = there.cost(model, tokens["input_tokens"], tokens["output_tokens"])
    money = there.told(cost) or f"no price of {model} in {prices.FILE}"
    fields = {**tokens, "cost": cost, "currency": None if cost is None else there.currency}
    return fields, f"{tokens['input_tokens']:,} tokens in, {tokens['output_tokens']:,} out; {money}"
