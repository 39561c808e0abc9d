"""Providers of an ESM plugin as models: `providers` of the module, each with its default model.

A factory gets the plugin's settings and gives an object with `complete(options)` or `stream(options)`; what
these are given is `_options`, and what they may answer is read in js/bootstrap.js.

Rules: a model answers as a tool does, in the same process; it never runs a tool, and is offered none.
This file must never know how a process is started.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import msgspec

from cortexfs import sdk
from cortexfs.core.errors import Fault
from cortexfs.host.esm.calls import EsmError

SECONDS = 600

Ask: TypeAlias = Callable[[str, dict[str, Any], float, sdk.ToolRuntime | None], Any]


class _Answer(msgspec.Struct, frozen=True):
    text: str = ""
    usage: tuple[int, int] | None = None


class EsmModel(sdk.Model):
    def __init__(self, ask: Ask, kind: str, model: str, label: str) -> None:
        self._ask = ask
        self._kind = kind
        self._model = model
        self.name = f"{kind}/{model}"
        self.description = f"{label}: the model {model} of the provider {kind}"
        self.timeout_secs = SECONDS

    def answer(self, request: sdk.ModelRequest, runtime: sdk.ToolRuntime) -> Iterator[object]:
        asked = {"do": "provider", "provider": self._kind, "options": _options(self._model, request)}
        try:
            said = self._ask(os.getcwd(), asked, SECONDS, runtime)
        except EsmError as failed:
            raise sdk.ExecutionFailed(str(failed)) from None
        try:
            answer = msgspec.convert(said, _Answer)
        except msgspec.ValidationError as error:
            raise Fault("EPROTO", f"the provider {self._kind} gave no answer: {error}") from None
        if answer.text:
            yield answer.text
        if answer.usage:
            yield sdk.Usage(*answer.usage)


def _options(model: str, request: sdk.ModelRequest) -> dict[str, Any]:
    messages = [{"role": each.role, "content": each.text} for each in request.messages]
    if request.system:
        messages.insert(0, {"role": "system", "content": request.system})
    return {**request.parameters, "model": model, "messages": messages}
