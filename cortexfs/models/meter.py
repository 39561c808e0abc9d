"""The meter: counts the tokens of models' answers for each user, and refuses calls over a user's limit.

    driver = meter.around(object_, driver)

Rules: an answer is counted when it has ended, in whichever way, and before its end is reported. An answer
without usage, such as a cancelled one, counts one token for BYTES of answer and question, so to leave early
saves nothing. An answer that has begun is not cut. A model in a home uses its user's key, and has no limit.
This file must never know how a driver works, or where lines are kept.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Delta, Frame, Message, Usage
from cortexfs.core.models.prices import Prices
from cortexfs.core.models.usage import UsageLimit, UsageLine, admit, bounded
from cortexfs.core.registry import Object
from cortexfs.models.ask.driver import Driver, Turn
from cortexfs.models.ask.model import NoAnswer
from cortexfs.state.usage_ledger import UsageLedger

BYTES = 4  # about as many bytes of a text as a token has


class Meter:
    def __init__(self, ledger: UsageLedger, limits: Sequence[UsageLimit], prices: Prices) -> None:
        self._ledger = ledger
        self._limits = limits
        self._prices = prices

    def around(self, object_: Object, driver: Driver) -> Driver:
        return partial(self._answer, object_, driver)

    async def _answer(self, object_: Object, driver: Driver, turn: Turn) -> None:
        if self._limits and object_.home is None:
            await self._admit(turn.uid, object_.name)
        metered, is_cut = _MeteredTurn(turn, object_.name), True
        try:
            await driver(cast(Turn, metered))
            is_cut = False
        except Exception:
            is_cut = False
            raise
        finally:
            usage = metered.usage(is_cut)
            if usage.input_tokens or usage.output_tokens:
                with trio.CancelScope(shield=True):
                    await self._count(turn, object_.name, usage)

    async def _admit(self, uid: int, model: str) -> None:
        try:
            admit(self._limits, uid, model, await self._ledger.of(uid), _today(), self._prices)
        except Fault as fault:  # a fallback that costs nothing may answer
            raise NoAnswer(fault.code, fault.message) from None

    async def _count(self, turn: Turn, model: str, usage: Usage) -> None:
        label = turn.who.identity.label.rpartition(" ")[2]
        agent = label.rpartition("/")[2] if "agent/" in label else ""
        tokens = usage.input_tokens, usage.output_tokens
        money = self._prices.cost(model, *tokens) or 0
        await self._ledger.add(turn.uid, UsageLine(_today(), model, agent, 1, *tokens, money))


class _MeteredTurn:
    """A turn that counts its answer, and puts the name of the model into its usage."""

    def __init__(self, turn: Turn, model: str) -> None:
        self._turn = turn
        self._model = model
        self._usage: Usage | None = None
        self._history_size = 0  # bytes of history
        self._answer_size = 0  # characters of the answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)

    async def history(self, room: int) -> list[Message]:
        messages = await self._turn.history(room)
        self._history_size = sum(len(part.text) for each in messages for part in each.content)
        return messages

    async def say(self, *frames: Frame) -> None:
        await self._turn.say(*map(self._metered_frame, frames))

    def _metered_frame(self, frame: Frame) -> Frame:
        if isinstance(frame, Delta):
            self._answer_size += len(frame.text)
        elif isinstance(frame, Usage):
            before = self._usage or Usage(input_tokens=0, output_tokens=0)
            self._usage = Usage(
                input_tokens=before.input_tokens + bounded(frame.input_tokens),
                output_tokens=before.output_tokens + bounded(frame.output_tokens),
            )
            return msgspec.structs.replace(frame, model=self._model)
        return frame

    def usage(self, is_cut: bool) -> Usage:
        """Returns the tokens of the answer as the driver reported them, or else a guess."""
        if self._usage or not (self._answer_size or is_cut):
            return self._usage or Usage(input_tokens=0, output_tokens=0)
        size = self._history_size + len(msgspec.json.encode(self._turn.input))
        return Usage(input_tokens=-(-size // BYTES), output_tokens=-(-self._answer_size // BYTES))


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
