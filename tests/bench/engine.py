"""The model of this machine through /ctx, next to its engine driven directly: the same child, over HTTP.

Both are asked by turns, so that what else the machine does meets both. Figures are medians.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cortexfs.core.models import engine_protocol
from cortexfs.host.starter import ENGINE, ENGINE_ENVIRON
from cortexfs.models.local.engine import EngineTerms
from cortexfs.models.local.weights import carried
from tests.bench import measure
from tests.mounted.ctx_mount import Ctx, wait_gone
from tests.mounted.engines import NAME, prompt
from tests.mounted.engines import engine as engine_of

ROUNDS = 7
TOKENS = 128
# Rounds for the first delta alone, all of one prompt, which both engines have read by then: what they take to
# read a new one, 100 ms, varies by more than ours comes to.
FIRSTS = 101
READ = 100  # the number of its story
ECHO = "debug/echo"
IDLE_SECONDS = 5  # of the mount that is measured
KEY = "bench"


class Took(NamedTuple):
    first: float  # milliseconds to the first delta
    rate: float  # tokens a second after it


class Figures(NamedTuple):
    ours: Took
    direct: Took
    later: (
        float  # milliseconds that the first delta comes later than from the engine, of a prompt it has read
    )
    echo: float  # milliseconds to the first delta of a model that has nothing to compute, likewise
    load: float  # seconds until the engine answers, alone
    first_call: float  # seconds to the first delta of the first call of a mount
    loaded: float  # MiB
    grown: float  # MiB of the daemon


def figures(ctx: Ctx) -> Figures:
    before = measure.rss_mib(ctx.pid)
    first_call = _through(ctx, 0).first / 1e3
    direct = _Direct()
    try:
        rounds = [(_through(ctx, n), direct.ask(n)) for n in range(1, ROUNDS + 1)]
        firsts = [_firsts(ctx, direct, n) for n in range(FIRSTS + 1)][1:]
        echo = statistics.median(_through(ctx, n, 2, ECHO).first for n in range(FIRSTS))
        loaded = measure.rss_mib(engine_of(ctx))
    finally:
        direct.end()
    assert wait_gone(engine_of(ctx), IDLE_SECONDS * 4)
    ours, theirs = (_median(side) for side in zip(*rounds, strict=True))
    later = statistics.median(mine - its for mine, its in firsts)
    grown = measure.rss_mib(ctx.pid) - before
    return Figures(ours, theirs, later, echo, direct.load, first_call, loaded, grown)


def _firsts(ctx: Ctx, direct: _Direct, turn: int) -> tuple[float, float]:
    """Milliseconds to the first delta; who is asked second has no advantage over many rounds."""
    if turn % 2:
        ours = _through(ctx, READ, 2).first
        return ours, direct.ask(READ, 2).first
    its = direct.ask(READ, 2).first
    return _through(ctx, READ, 2).first, its


def _median(took: Iterable[Took]) -> Took:
    first, rate = zip(*took, strict=True)
    return Took(statistics.median(first), statistics.median(rate))


def _story(number: int, tokens: int) -> str:
    sampling = {"top_p": 1, "repeat_penalty": 1}  # for both: the model of the mount has a .d/default
    return prompt(f"Tell the {number}th story about a ship.", tokens, ignore_eos=True, **sampling)


def _through(ctx: Ctx, number: int, tokens: int = TOKENS, name: str = NAME) -> Took:
    """An exec of the model's file, from its spawn."""
    words = [str(ctx.root / "model" / name), _story(number, tokens)]
    ours, theirs = os.pipe()
    with open(ours, "rb") as said:
        began = time.perf_counter()
        pid = measure.spawned(words, ctx.environ, theirs)
        os.close(theirs)
        took = _took(began, (line for line in said if b'"delta"' in line))
    measure.waited(pid, words)
    return took


def _took(began: float, deltas: Iterator[bytes]) -> Took:
    next(deltas)
    first = time.perf_counter()
    count = sum(1 for _ in deltas)
    return Took((first - began) * 1e3, count / (time.perf_counter() - first))


class _Direct:
    """The engine's child, without a daemon."""

    def __init__(self) -> None:
        began = time.perf_counter()
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs:
            self._child = subprocess.Popen(
                ENGINE,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=ENGINE_ENVIRON,
            )
        weights = str(carried())
        threads = len(os.sched_getaffinity(0))
        ours.sendall(
            engine_protocol.encode(
                engine_protocol.LoadRequest(weights, NAME, 8192, EngineTerms().streams, threads, KEY)
            )
        )
        answer = engine_protocol.decode_answer(ours.makefile("rb").readline())
        assert isinstance(answer, engine_protocol.LoadReply), answer
        self._port = answer.port
        self.load = time.perf_counter() - began

    def ask(self, number: int, tokens: int = TOKENS) -> Took:
        said = json.loads(_story(number, tokens))
        body = said | {"messages": [{"role": "user", "content": said.pop("input")}], "stream": True}
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        took = _took(began, (line for line in response if b'"content":"' in line))
        connection.close()
        return took

    def end(self) -> None:
        self._socket.close()
        self._child.wait(10)


CONFIG = f"[engine]\nidle_secs = {IDLE_SECONDS}\n"
