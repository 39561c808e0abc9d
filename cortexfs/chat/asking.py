"""The questions about calls, and those of tools, to a person at a terminal that is read line by line.

Rules: a prompt is a line that can be read aloud, and goes to stderr. Who closes the terminal denies, and so
does Ctrl-C.
This file must never know escape sequences.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable
from typing import TypeAlias

from cortexfs.chat.calls import Show
from cortexfs.chat.forms import AskedForm, Filled
from cortexfs.chat.state import EDIT, Talk, answer
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Approval
from cortexfs.core.talk.requests import Decision

ASKING = "y (yes), n (no) or a (always): "

# What is decided about a call; None where nobody can be asked. The descriptor can be read after Ctrl-C.
Decide: TypeAlias = Callable[[Approval, int], Decision | None]
# The next step of the form of a tool's that stands first, likewise; None where nobody can be asked.
Fill: TypeAlias = Callable[[AskedForm, int], Filled | None]


def decider(approved: frozenset[str], is_asked: bool, talk: Talk, show: Callable[[Show], None]) -> Decide:
    def decide(asked: Approval, pipe: int) -> Decision | None:
        if asked.name in approved:
            return "allow_once"
        if not is_asked:
            return None
        while (decision := _decided(pipe)) != "deny" and (unseen := talk.unseen(asked.call)):
            for each in unseen:
                show(each)
        return decision

    return decide


def filler(is_asked: bool, talk: Talk) -> Fill:
    """Forms of tools, on the terminal; whoever closes it declines, and so does Ctrl-C."""

    def fill(form: AskedForm, pipe: int) -> Filled | None:
        if not is_asked:
            return None
        if (line := _typed(form.prompt, pipe)) is None:
            return talk.forms.decline()
        try:
            return talk.forms.take(line)
        except Fault as fault:
            return [Show("error", fault.message)]

    return fill


def _typed(prompt: str, pipe: int) -> str | None:
    print(prompt, end="", file=sys.stderr, flush=True)
    ready, _, _ = select.select([sys.stdin, pipe], [], [])
    if pipe not in ready and (line := sys.stdin.readline()):
        return line
    print(file=sys.stderr)  # nobody has ended the line
    return None


def _decided(pipe: int) -> Decision:
    """Returns the answer of the person at the terminal; whoever closes it denies, and so does Ctrl-C."""
    while True:
        if (line := _typed(ASKING, pipe)) is None:
            return "deny"
        try:
            reply = answer(line)
            if reply != EDIT:
                return reply
            print("calls are edited in ctx chat, unless TERM is dumb; answer y, n or a", file=sys.stderr)
        except Fault as fault:
            print(fault.message, file=sys.stderr)
