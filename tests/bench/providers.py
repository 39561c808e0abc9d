"""A stream of 10,000 deltas through /ctx, next to the vendor's SDK that reads the same stream.

The server is a process of its own that sends each delta by itself. Both readers are asked by turns, so
that other load of the machine affects both. Figures are medians.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import trio

from tests.bench import measure
from tests.mounted.ctx_mount import Ctx
from tests.shell.provider_server import SSE, USED, chunks, ended, playing, said

DELTAS = 10_000
ROUNDS = 5


class Figures(NamedTuple):
    ours: float  # milliseconds, by exec, to the last frame
    alone: float  # the SDK's own reader, in a process that has imported it

    @property
    def over(self) -> float:
        """Returns the time that ours takes beyond that of the SDK, in per cent."""
        return (self.ours / self.alone - 1) * 100


def figures(ctx: Ctx) -> Figures:
    with measure.serving("tests.bench.providers") as port:
        address = f"http://127.0.0.1:{port}/v1"
        words = ("--base-url", address, "--format", "openai.chat", "--model", "m")
        ctx.ctx("provider", "add", "bench", *words)
        try:
            _through(ctx)  # this run imports the SDK
            rounds = [(_through(ctx), trio.run(_alone, address)) for _ in range(ROUNDS)]
        finally:
            ctx.ctx("provider", "remove", "bench")
    return Figures(*map(statistics.median, zip(*rounds, strict=True)))


def _through(ctx: Ctx) -> float:
    began = time.perf_counter()
    done = ctx.run([str(ctx.root / "model" / "bench" / "m"), "x"], text=False, check=True)
    took = (time.perf_counter() - began) * 1000
    assert done.stdout.count(b'"delta"') == DELTAS
    return took


async def _alone(address: str) -> float:
    import openai

    async with openai.AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
        began, count = time.perf_counter(), 0
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        )
        async for chunk in stream:
            count += bool(chunk.choices and chunk.choices[0].delta.content)
        assert count == DELTAS
        return (time.perf_counter() - began) * 1000


async def _serve() -> None:
    one = chunks(said("word "))[0]
    async with playing([SSE, *[one] * DELTAS, *chunks(ended(), USED, "[DONE]")]) as provider:
        print(provider.port, flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(_serve)
