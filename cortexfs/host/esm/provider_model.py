"""The default model of a provider that a module of JavaScript exports, as a model of the SDK.

Rules: the provider's factory returns an object with `complete(options)` or `stream(options)`; js/bootstrap.js
reads their answers. A model never runs a tool, and is offered none.
This file must never know how the module runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.host.esm import child

if TYPE_CHECKING:
    from cortexfs.host.esm.tools import EsmPlugin

MODEL_SECONDS = 600


class _Answer(msgspec.Struct, frozen=True):
    text: str = ""
    usage: tuple[int, int] | None = None


class EsmModel(sdk.Model):
    timeout_secs = MODEL_SECONDS

    def __init__(self, plugin: EsmPlugin, kind: str, model: str) -> None:
        self._plugin = plugin
        self._kind = kind
        self._model = model
        self.name = f"{kind}/{model}"
        label = plugin.declared.labels.get(kind, kind)
        self.description = f"{label}: the model {model} of the provider {kind}"

    def answer(self, request: sdk.ModelRequest, runtime: sdk.ToolRuntime) -> Iterator[object]:
        messages = [{"role": each.role, "content": each.text} for each in request.messages]
        if request.system:
            messages.insert(0, {"role": "system", "content": request.system})
        options = {**request.parameters, "model": self._model, "messages": messages}
        question = {"do": "provider", "provider": self._kind, "options": options}
        try:
            answer = msgspec.convert(self._plugin.ask(os.getcwd(), question, MODEL_SECONDS, runtime), _Answer)
        except child.EsmError as failed:
            raise sdk.ExecutionFailed(str(failed)) from None
        except msgspec.ValidationError as error:
            raise Fault("EPROTO", f"the provider {self._kind} returned a wrong answer: {error}") from None
        if answer.text:
            yield answer.text
        if answer.usage:
            yield sdk.Usage(*answer.usage)
