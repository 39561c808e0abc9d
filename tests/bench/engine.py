"""The local model through /ctx, next to llama.cpp's own server with the fastest settings found here.

That server is tried with each number of threads, and with threads that spin or sleep while they wait. The
two are asked by turns, so that other load of the machine affects both. Figures are medians.
"""

from __future__ import annotations

import http.client
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from cortexfs.host.engine_process import BATCH
from cortexfs.host.engine_threads import PERIOD
from cortexfs.host.starter import ENVIRON
from cortexfs.models.local.engine import EngineTerms
from cortexfs.models.local.weights import carried
from tests.bench import measure
from tests.mounted.ctx_mount import Ctx, wait_gone
from tests.mounted.engines import NAME, prompt
from tests.mounted.engines import engine as engine_of

ROUNDS = 7
TOKENS = 128
# Rounds for the first delta alone, all with one prompt that both engines have read by then. Reading a new
# prompt takes 100 ms, and varies by more than the delay that is measured.
FIRSTS = 41
READ = 100  # the number of the story in that prompt
ECHO = "debug/echo"
IDLE_SECONDS = 5  # of the measured mount
# With no policy set, threads of libgomp spin for milliseconds. That is as good as threads that never sleep
# (active), which would take all cores for minutes after an answer.
WAITING: tuple[Mapping[str, str], ...] = ({}, {"OMP_WAIT_POLICY": "passive"})
TRIES = 3
REST = 4 * PERIOD
CALLS, EVERY = 120, 0.1  # of fs.read during answers, and the seconds between two calls


class Took(NamedTuple):
    first: float  # milliseconds to the first delta
    rate: float  # tokens a second after it


class Figures(NamedTuple):
    ours: Took
    direct: Took
    later: (
        float  # milliseconds that the first delta comes later than from the engine, of a prompt it has read
    )
    echo: float  # milliseconds to the first delta of a model that computes nothing, likewise
    load: float  # seconds until the engine, alone, answers
    first_call: float  # seconds to the first delta of the first call of a mount
    loaded: float  # MiB of the engine with its model
    grown: float  # MiB that the daemon has grown by
    best: str  # settings of the engine driven directly
    beside: float  # tokens a second during ten calls of fs.read a second
    slower: float  # p99 of these calls, over that of as many calls without an answer


def figures(ctx: Ctx) -> Figures:
    before = measure.rss_mib(ctx.pid)
    first_call = _through(ctx, 0).first / 1e3
    direct = max(_directs(), key=_Direct.speed)
    direct.begin()
    try:
        rounds = [(_rested(_through, ctx, n), _rested(direct.ask, n)) for n in range(1, ROUNDS + 1)]
        firsts = [_firsts(ctx, direct, n) for n in range(FIRSTS + 1)][1:]
        beside, slower = _beside(ctx)
        echo = statistics.median(_through(ctx, n, 2, ECHO).first for n in range(FIRSTS))
        loaded = measure.rss_mib(engine_of(ctx))
    finally:
        direct.end()
    assert wait_gone(engine_of(ctx), IDLE_SECONDS * 4)
    ours, theirs = (_median(side) for side in zip(*rounds, strict=True))
    later = statistics.median(mine - its for mine, its in firsts)
    grown = measure.rss_mib(ctx.pid) - before
    return Figures(
        ours, theirs, later, echo, direct.load, first_call, loaded, grown, direct.name, beside, slower
    )


def _rested(ask: Callable[..., Took], *words: object) -> Took:
    """Ask on an idle machine, some time after the answer before."""
    time.sleep(REST)  # so that an engine with nothing running beside it is measured
    return ask(*words)


def _beside(ctx: Ctx) -> tuple[float, float]:
    """Tokens a second of answers during calls, and the factor by which answers slow the p99 of the calls."""
    alone, rates, over = _calls(ctx), list[float](), threading.Event()

    def answers() -> None:
        for number in itertools.count(READ + 1):
            if over.is_set():
                return
            rates.append(_through(ctx, number).rate)

    answering = threading.Thread(target=answers)
    answering.start()
    try:
        meanwhile = _calls(ctx)
    finally:
        over.set()
        answering.join()
    return statistics.median(rates[:-1]), meanwhile / alone  # the last answer outlasts the calls


def _calls(ctx: Ctx) -> float:
    """Returns the p99 of calls at a steady pace."""
    small = ctx.work / "small"
    small.write_text("x" * 1023 + "\n")
    words, took, began = [ctx.tool("fs.read"), str(small)], list[float](), time.perf_counter()
    for number in range(CALLS):
        time.sleep(max(0.0, began + number * EVERY - time.perf_counter()))  # keeps the pace steady
        took.append(measure.spawn(words, ctx.environ))
    return sorted(took)[int(len(took) * 0.99)]


def _firsts(ctx: Ctx, direct: _Direct, turn: int) -> tuple[float, float]:
    """Milliseconds to the first delta of both; the order changes, so that being second is no advantage."""
    if turn % 2:
        ours = _rested(_through, ctx, READ, 2).first
        return ours, _rested(direct.ask, READ, 2).first
    its = _rested(direct.ask, READ, 2).first
    return _rested(_through, ctx, READ, 2).first, its


def _median(took: Iterable[Took]) -> Took:
    first, rate = zip(*took, strict=True)
    return Took(statistics.median(first), statistics.median(rate))


def _story(number: int, tokens: int) -> str:
    sampling = {"top_p": 1, "repeat_penalty": 1}  # for both: the model of the mount has a .d/default
    return prompt(f"Tell the {number}th story about a ship.", tokens, ignore_eos=True, **sampling)


def _through(ctx: Ctx, number: int, tokens: int = TOKENS, name: str = NAME) -> Took:
    """Execute the model's file, and measure from the spawn on."""
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
    """llama.cpp's server with one choice of settings, without a daemon."""

    def __init__(self, threads: int, waiting: Mapping[str, str]) -> None:
        self._threads, self._waiting = threads, waiting
        self.name = " ".join([f"{threads} threads", *waiting.values()])

    def begin(self) -> None:
        began = time.perf_counter()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.engine", str(self._threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**ENVIRON, **self._waiting},
        )
        assert self._child.stdout
        self._port = int(self._child.stdout.readline())
        self.load = time.perf_counter() - began

    def speed(self) -> float:
        self.begin()
        try:
            return statistics.median(self.ask(number).rate for number in range(TRIES))
        finally:
            self.end()

    def ask(self, number: int, tokens: int = TOKENS) -> Took:
        said = json.loads(_story(number, tokens))
        body = said | {"messages": [{"role": "user", "content": said.pop("input")}], "stream": True}
        headers = {"Content-Type": "application/json"}
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        took = _took(began, (line for line in response if b'"content":"' in line))
        connection.close()
        return took

    def end(self) -> None:
        self._child.communicate(timeout=10)


def _directs() -> Iterator[_Direct]:
    for threads in range(1, len(os.sched_getaffinity(0)) + 1):
        yield from (_Direct(threads, waiting) for waiting in WAITING)


def _serve(threads: int) -> None:
    """Run the server of `_Direct` until its input ends. All but the settings of threads is as in a mount."""
    xllamacpp = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(carried())
    params.hostnames, params.port, params.ui = ["127.0.0.1"], 0, False
    params.n_parallel, params.n_batch = EngineTerms().streams, BATCH
    params.n_ctx = 8192 * params.n_parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.warmup = False
    server = xllamacpp.Server(params)
    print(server.listening_address.rpartition(":")[2], flush=True)
    sys.stdin.read()
    os._exit(0)  # skips the interpreter's exit, which can deadlock here


CONFIG = f"[engine]\nidle_secs = {IDLE_SECONDS}\n"

if __name__ == "__main__":
    _serve(int(sys.argv[1]))
