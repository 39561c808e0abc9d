"""The driver `local`: asks the embedded engine in the format openai.chat, over a connection of our own.

A vendor's SDK would send the same after a third of a second of imports, and the embedded model would need the
extra of the providers. Everything else is as with a provider: models/exchange/answering.py.

Rules: a request that the engine cannot fulfil is refused at once. A small model does not always end its
answer. So the limit is MAX_TOKENS, unless the controls or the request have another. An answer that repeats
itself is ended.
This file must never know the process of an engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Frame
from cortexfs.core.registry import Object
from cortexfs.models.ask.driver import Driver, Turn
from cortexfs.models.ask.model import ModelEntry, model_of
from cortexfs.models.ask.question import ModelInput, PromptMedia
from cortexfs.models.exchange.answering import Attempts, RetryTerms
from cortexfs.models.exchange.clients import Clients
from cortexfs.models.exchange.sources import ModelSource
from cortexfs.models.formats import openai_chat
from cortexfs.models.formats.format import REPEATS, Format
from cortexfs.models.local.engine import Engines
from cortexfs.models.local.weights import DRIVER, Local, Weights

MAX_TOKENS = 512
MOST = ("max_tokens", "max_completion_tokens", "n_predict")  # the engine's names of that limit
UNIT = 400  # most characters of the repeated text: small models repeat paragraphs, too
TIMES = 4  # the repeated text stands there so often
SPAN = 240  # least characters of all repetitions: a line of dashes is shorter
TAIL = UNIT * TIMES
# Seconds between two reads of an answer. To read each token at once would take a twentieth of the cores' time
# from the computation of the next. So the tokens are read together, 40 times a second.
REST = 0.025
LOOK = 32  # characters between two searches for repetitions, of 80 µs each


def request(model: ModelEntry, question: ModelInput) -> dict[str, Any]:
    if question.tools:
        raise Fault("EINVAL", f"{model.name} cannot call tools; its cap lists its abilities")
    if any(isinstance(part, PromptMedia) for prompt in question.said for part in prompt.parts):
        raise Fault("EINVAL", f"{model.name} reads text only; its cap lists its abilities")
    body = openai_chat.request(model, question)
    if not {**model.default, **question.parameters}.keys() & MOST:
        body["max_tokens"] = MAX_TOKENS
    return body


class LocalReader(openai_chat.ChatReader):
    """Reads one answer, until it goes in circles."""

    def __init__(self, question: ModelInput) -> None:
        super().__init__(question)
        self._tail = ""
        self._unchecked = 0
        self._endless = bool(question.parameters.get("ignore_eos"))  # the request wants no end

    def _say(self, text: str | None) -> list[Frame]:
        frames = super()._say(text)
        self._tail = (self._tail + (text or ""))[-TAIL:]
        self._unchecked += len(text or "")
        if self._unchecked >= LOOK:
            self._unchecked = 0
            if not self._endless and repeats(self._tail):
                self._reason, self.ended, self.enough = REPEATS, True, True
        return frames


def repeats(tail: str) -> bool:
    """Returns True if a text ends with the same words again and again."""
    for size in range(1, UNIT + 1):
        span = max(SPAN, TIMES * size)
        if span <= len(tail) and tail[-span:-size] == tail[size - span :]:
            return True
    return False


FORMAT = Format(request, LocalReader)


class Locals:
    """The models of this machine, and their drivers."""

    def __init__(self, engines: Engines, control: Callable[[Object, str], str]) -> None:
        self._engines = engines
        self._control = control
        self._weights: dict[str, Weights] = {}

    def apply(self, found: Iterable[Local]) -> None:
        self._weights = {each.object.name: each.weights for each in found}

    def driver(self, object_: Object) -> Driver | None:
        """Returns the driver of a model that has weights here, or None for another model."""
        weights = self._weights.get(object_.name)
        return partial(self._answer, object_, weights) if weights else None

    async def _answer(self, object_: Object, weights: Weights, turn: Turn) -> None:
        if object_.status != "ready":
            raise Fault("EHOSTDOWN", f"{object_.name} is {object_.status}")
        # No deadlines: a prompt may wait for its turn, and models/local/engine.py watches the engine.
        serving = partial(self._engines.serving, weights)
        source = ModelSource(object_.name, serving, DRIVER, first=math.inf, silence=math.inf, rest=REST)
        model = model_of(object_, self._control)
        await Attempts(model, FORMAT, source, Clients(), turn, RetryTerms()).answer()
