"""Models of providers, asked over real connections to a server that answers as the test says."""

from __future__ import annotations

import pytest

from cortexfs.core import frames
from tests.shell.asking import world
from tests.shell.provider_server import KEY, WHOLE


@pytest.mark.parametrize("format_", list(WHOLE))
async def test_an_answer_in_every_format(format_: str) -> None:
    # issue: "Drivers, one file per API format ... streaming is real (each provider delta is a frame at once)"
    async with world(WHOLE[format_]("Hel", "lo"), format_=format_) as (made, provider):
        turn, fault = await made.ask("hi")
        assert fault is None
        assert turn.frames == [
            frames.Delta(text="Hel"),
            frames.Delta(text="lo"),
            frames.Message(role="assistant", content=[frames.Text("Hello")]),
            frames.Usage(input_tokens=5, output_tokens=2),
        ]
        request = provider.requests[0]
        assert request.body["model"] == "native/m"
        assert request.body["stream"] is True
        assert KEY in request.headers.get("x-api-key", "") + request.headers.get("authorization", "")
