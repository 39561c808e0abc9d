"""A driver: the code that answers for a model, whoever carries the answer.

    async def answer(turn):
        await turn.say(Delta(text="hel"), Delta(text="lo"))      as often as there is something
        await turn.say(Message(role="assistant", content=[Text("hello")]))

Rules: a driver says what happens in between; `start` and `done` are written by whoever runs it. It returns
when the answer is whole, raises a Fault when there is none, and is cancelled by Trio's cancellation,
after which what it has said is kept. It never reads files for a caller and never runs a tool.
This file must never know sockets, sessions or runners.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeAlias

from cortexfs.core.frames import Approval, Frame, Message, Question
from cortexfs.core.hostcalls import Identity
from cortexfs.core.talk.requests import Input, Verdict


class Who(NamedTuple):
    """For whom a turn is, for drivers that act as that person."""

    identity: Identity
    cwd: str = ""  # where they work, or want it done
    session: str = ""  # its name; none of a single call
    folder: tuple[str, ...] = ()  # of the session, from the root of the tree, where it is kept
    owner: int = 0  # of that folder
    run: str = ""  # the run's id


class Turn(Protocol):
    """One message that is to be answered."""

    @property
    def input(self) -> Input:
        """The prompt, or the object that was given in its place."""

    @property
    def uid(self) -> int:
        """Returns the user who asked."""

    @property
    def who(self) -> Who:
        """The same, and everything else that decides what they may."""

    @property
    def session_memory(self) -> dict[str, object]:
        """Returns the memory of drivers for this user in this session, such as the tools that he always
        allows. It ends with the session's stay in memory; a single call has an empty one."""

    async def history(self, room: int) -> list[Message]:
        """Returns the session's former messages: the newest that fit into `room` bytes as they are logged,
        oldest first. A single call has none."""

    async def say(self, *said: Frame) -> None:
        """Pass frames on, in order. Waits while whoever carries them does not keep up."""

    async def settled(self) -> None:
        """Wait until what was said so far is on disk, where it is kept there."""

    async def ask(self, approval: Approval) -> Verdict:
        """Say the approval frame, wait for what is decided, and say that. Denied where nobody can be asked.
        Its `call` is one that this run has not asked about before (EPROTO)."""

    async def question(self, asked: Question) -> Verdict:
        """The same of a tool's question: the verdict's input is the person's answer, and None a refusal."""


Driver: TypeAlias = Callable[[Turn], Awaitable[None]]
