"""A driver: the code that answers for a model, for every kind of client.

    async def answer(turn):
        await turn.say(Delta(text="hel"), Delta(text="lo"))      as often as the model sends text
        await turn.say(Message(role="assistant", content=[Text("hello")]))

Rules: a driver sends the frames between `start` and `done`, and its caller sends these two. It returns when
the answer is whole, and raises a Fault when there is no answer. Trio's cancellation cancels it, and frames
that it has sent are kept. It never reads files for a caller and never runs a tool.
This file must never know sockets, sessions or runners.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeAlias

from cortexfs.core.frames import Approval, Frame, Message, Question
from cortexfs.core.hostcalls import Identity
from cortexfs.core.talk.requests import Input, Verdict


class Who(NamedTuple):
    """The user of a turn, for drivers that act as this user."""

    identity: Identity
    cwd: str = ""  # the folder where the user works, or wants the work done
    session: str = ""  # its name; empty for a single call
    folder: tuple[str, ...] = ()  # the session's folder, from the root of the tree, if it is kept
    owner: int = 0  # the uid of that folder's owner
    run: str = ""  # the run's id


class Turn(Protocol):
    """One message to answer."""

    @property
    def input(self) -> Input:
        """The prompt, or the JSON object that was sent in its place."""

    @property
    def uid(self) -> int:
        """The uid of the user who sent the message."""

    @property
    def who(self) -> Who:
        """The same user, with everything else that decides about permissions."""

    @property
    def session_memory(self) -> dict[str, object]:
        """The memory of drivers for this user in this session, such as the tools that the user always
        allows. It is lost when the session leaves memory. A single call has an empty one."""

    async def history(self, room: int) -> list[Message]:
        """Returns the newest former messages of the session that fit into `room` bytes of the log, oldest
        first. A single call has none."""

    async def say(self, *frames: Frame) -> None:
        """Pass frames on, in order. Waits while the receiver does not keep up."""

    async def settled(self) -> None:
        """Wait until all frames so far are on disk, if the session is kept there."""

    async def ask(self, approval: Approval) -> Verdict:
        """Send the approval frame, wait for the decision, and send that. With no user to ask it is a denial.
        Raises EPROTO if this run has asked about the same `call` before."""

    async def question(self, question: Question) -> Verdict:
        """Send a tool's question likewise. The verdict's input is the answer, or None for a refusal."""


Driver: TypeAlias = Callable[[Turn], Awaitable[None]]
