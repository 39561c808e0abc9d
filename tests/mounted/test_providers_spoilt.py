"""Answers of real servers, spoilt on their way (issue: "a fault proxy of our own that cuts, delays, reorders,
duplicates, sends 429/500/garbage/half UTF-8/half SSE lines: every mapping above has a test").

The servers are not ours: llm-katan in the formats of OpenAI and Anthropic, and llama.cpp's with real weights.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mounted import outside, proxy
from tests.mounted.acting import acting
from tests.mounted.ctx_mount import Answer, Ctx, mounted
from tests.mounted.outside import KEY
from tests.mounted.proxy import Proxy
from tests.waiting import PATIENCE, until

LATE, NEAR = "katan-late", "llama-near"
LLAMA = ("llama-chat", "llama-responses", "llama-messages")
ALL = ("katan-chat", "katan-messages", *LLAMA)
GIVEN = {
    "messages": [{"role": "user", "content": "Say hä and €."}],
    "max_tokens": 24,
    "temperature": 0,
    "seed": 1,
}


class Front(NamedTuple):
    """A model whose server is behind a proxy, and its answer when the proxy spoils nothing."""

    ctx: Ctx
    spoiler: Proxy
    model: str
    text: str

    def ask(self, *faults: proxy.Fault) -> Answer:
        self.spoiler.faults = list(faults)
        self.spoiler.requests.clear()
        return Answer(
            self.ctx.run([str(self.ctx.root / "model" / self.model), json.dumps(GIVEN)], text=False)
        )


@pytest.fixture(scope="module")
def llama() -> Iterator[str | None]:
    """Yields the address of llama.cpp's server, or None where it is not installed."""
    if (weights := outside.weights()) is None:
        yield None
        return
    with outside.llama(weights) as url:
        yield url


@pytest.fixture(scope="module")
def fronts(python: Path, llama: str | None) -> Iterator[dict[str, Front]]:
    with contextlib.ExitStack() as stack:
        ctx = stack.enter_context(mounted(python))
        katan = stack.enter_context(outside.katan())
        rows = [
            ("katan-chat", "openai.chat", katan, "echo-1"),
            ("katan-messages", "anthropic.messages", katan, "echo-1"),
            (LATE, "openai.chat", katan, "echo-1"),
        ]
        if llama:
            declare(ctx, NEAR, "openai.chat", llama, "smollm2", PATIENCE, PATIENCE)
            formats = ("openai.chat", "openai.responses", "anthropic.messages")
            rows += [(name, format_, llama, "smollm2") for name, format_ in zip(LLAMA, formats, strict=True)]
        made = {}
        for name, format_, url, model in rows:
            front = stack.enter_context(acting(Proxy(url)))
            # LATE has a second for its first word; the others have as long as a busy machine may take.
            base = f"http://127.0.0.1:{front.port}"
            declare(ctx, name, format_, base, model, 1 if name == LATE else PATIENCE)
            made[name] = Front(ctx, front, f"{name}/{model}", "")
        ctx.ctx("provider", "list")
        ctx.umount()
        ctx.mount()
        for name, each in made.items():
            if name == LATE:
                continue
            answer = each.ask(proxy.whole)
            assert answer.status == 0, answer
            made[name] = each._replace(text=answer.output)
        yield made


def declare(
    ctx: Ctx, name: str, format_: str, server: str, model: str, first: float, silence: float = 1
) -> None:
    terms = f"first_secs = {first:g}\nsilence_secs = {silence:g}\nlisted = false\n"
    base = server + ("" if format_.startswith("anthropic") else "/v1")
    file = ctx.config / "providers" / f"{name}.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(f'base_url = "{base}"\nformat = "{format_}"\nmodels = ["{model}"]\n{terms}')
    secret = ctx.state / "secrets" / name
    secret.parent.mkdir(mode=0o700, exist_ok=True)
    secret.write_text(KEY)
    secret.chmod(0o600)


# `make test` runs two of the five: each server once, in two formats.
@pytest.fixture(params=ALL if "CTX_SOAK" in os.environ else ("katan-messages", "llama-chat"))
def front(request: pytest.FixtureRequest, fronts: dict[str, Front]) -> Front:
    if request.param not in fronts:
        pytest.skip("neither weights nor engine are installed: ctx provider add-local")
    return fronts[request.param]


@pytest.mark.parametrize("fault", [proxy.bytewise, proxy.torn_lines, proxy.carriage_returns])
def test_what_is_only_in_pieces_is_whole(front: Front, fault: proxy.Fault) -> None:
    # issue: "half UTF-8/half SSE lines"
    answer = front.ask(fault)
    assert (answer.status, answer.output) == (0, front.text), answer
    assert answer.types[-3:] == ["message", "usage", "done"]


def test_a_byte_that_is_no_text_costs_that_byte(front: Front) -> None:
    answer = front.ask(proxy.bad_byte)
    assert answer.status == 0, answer
    assert answer.output.count("\ufffd") == 1
    place = answer.output.index("\ufffd")
    assert answer.output == front.text[:place] + "\ufffd" + front.text[place + 1 :]


def test_what_came_before_a_cut_is_kept_with_the_session(front: Front) -> None:
    front.spoiler.faults = [proxy.cut]
    sent = front.ctx.ctx("send", f"model/{front.model}", "Say it.", "--session", "cut", check=False)
    assert sent.returncode == 1
    frames = [json.loads(line) for line in sent.stdout.splitlines()]
    text = "".join(frame["text"] for frame in frames if frame["type"] == "delta")
    assert text
    (folder,) = (front.ctx.root / "home").glob(f"*/model/{front.model}.d/session/cut")
    assert (folder / "latest.md").read_text() == text.removesuffix("\n") + "\n"
    roles = [json.loads(line)["role"] for line in (folder / "messages.jsonl").read_text().splitlines()]
    assert roles == ["user", "assistant"]
    assert (folder / "state").read_text() == "error\n"
    front.ctx.ctx("session", "rm", f"model/{front.model}", "cut", "--yes")


BROKEN = [
    proxy.cut, proxy.reset, proxy.cut_in_an_event, proxy.cut_in_a_character, proxy.cut_before_its_end,
    proxy.no_text, proxy.no_json,
]  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_what_breaks_off_is_an_error_and_not_asked_again(front: Front, fault: proxy.Fault) -> None:
    # issue: "a stream cut in the middle is an error frame, never a silent done"
    answer = front.ask(fault)
    assert (answer.status, answer.code) == (1, "EREMOTEIO"), answer
    assert answer.output
    assert front.text.startswith(answer.output)
    assert answer.types[-2:] == ["error", "done"]
    assert "message" not in answer.types
    assert len(front.spoiler.requests) == 1


AGAIN: list[tuple[proxy.Fault, str, int]] = [
    (proxy.nothing, "EHOSTDOWN", 69),
    (proxy.empty, "EREMOTEIO", 1),
    (proxy.broken, "EREMOTEIO", 1),
    (proxy.busy, "EAGAIN", 1),
]


@pytest.mark.parametrize(("fault", "code", "status"), AGAIN)
def test_what_fails_before_the_first_word_is_asked_three_times(
    front: Front, fault: proxy.Fault, code: str, status: int
) -> None:
    # issue: "unreachable and 5xx retried with jitter while nothing was sent"
    answer = front.ask(fault)
    assert (answer.status, answer.code) == (status, code), answer
    assert answer.types.count("progress") == 2
    assert len(front.spoiler.requests) == 3
    assert not answer.output


@pytest.mark.parametrize("fault", [fault for fault, _, _ in AGAIN])
def test_a_server_that_recovers_answers_once(front: Front, fault: proxy.Fault) -> None:
    answer = front.ask(fault, proxy.whole)
    assert (answer.status, answer.output) == (0, front.text), answer
    assert answer.types.count("progress") == 1
    assert len(front.spoiler.requests) == 2


ONCE: list[tuple[proxy.Fault, str, int]] = [
    (proxy.silent, "ETIMEDOUT", 1),
    (proxy.closed, "EAGAIN", 1),
    (proxy.noise, "EHOSTDOWN", 69),
]


@pytest.mark.parametrize(("fault", "code", "status"), ONCE)
def test_what_is_not_worth_another_try(front: Front, fault: proxy.Fault, code: str, status: int) -> None:
    # issue: "deadlines for connect, first token and silence"; "with the server's own delay"
    answer = front.ask(fault)
    assert (answer.status, answer.code) == (status, code), answer
    assert bool(answer.output) == (fault is proxy.silent)
    assert len(front.spoiler.requests) == 1


def test_an_answer_that_begins_too_late(fronts: dict[str, Front]) -> None:
    answer = fronts[LATE].ask(proxy.late)
    assert (answer.status, answer.code) == (1, "ETIMEDOUT"), answer
    assert not answer.output


def test_an_end_before_everything_else_says_nothing_that_was_not_said(front: Front) -> None:
    # "reorders": what comes after the end belongs to nobody
    answer = front.ask(proxy.ended_first)
    assert answer.status == 1 or answer.output == "", answer


@pytest.mark.parametrize("fault", [proxy.doubled, proxy.swapped])
def test_events_that_are_not_numbered(front: Front, fault: proxy.Fault) -> None:
    """Neither server numbers its events (the one of test_providers_failures does), so an event sent twice may
    be delivered twice. The run still ends once, with usage at most once."""
    answer = front.ask(fault)
    assert answer.types.count("done") == 1
    assert answer.code in (None, "EREMOTEIO"), answer
    assert answer.types.count("usage") + answer.types.count("error") == 1
    assert set(answer.output) <= set(front.text)


def test_the_fallback_of_a_spoilt_server(fronts: dict[str, Front]) -> None:
    # issue: "then the fallback chain when set, each hop told in a progress frame"
    first, second = fronts["katan-chat"], fronts["katan-messages"]
    control = first.ctx.root / "model" / f"{first.model}.d" / "fallback"
    control.write_text(second.model + "\n")
    second.spoiler.faults = [proxy.whole]
    try:
        answer = first.ask(proxy.broken)
        assert (answer.status, answer.output) == (0, second.text), answer
        cut = first.ask(proxy.cut)
        assert (cut.status, cut.code) == (1, "EREMOTEIO")
    finally:
        control.unlink()


def test_cancelling_closes_the_request_at_the_server(fronts: dict[str, Front], llama: str | None) -> None:
    # issue: "cancel closes the request at the provider within 1 s"
    if not llama:
        pytest.skip("neither weights nor engine are installed: ctx provider add-local")
    ctx = fronts[LATE].ctx
    given = {"input": "Tell a story.", "max_tokens": 1900, "ignore_eos": True}
    runner = subprocess.Popen(
        [str(ctx.root / "model" / NEAR / "smollm2"), json.dumps(given)],
        stdout=subprocess.PIPE,
        env=ctx.environ,
    )
    with runner:
        assert runner.stdout
        while b'"delta"' not in runner.stdout.readline():
            pass
        assert working(llama)
        runner.send_signal(signal.SIGINT)
        assert runner.wait(PATIENCE) == 130
        runner.stdout.read()
        until(lambda: not working(llama))


def working(url: str) -> bool:
    request = urllib.request.Request(f"{url}/slots", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        slots: list[dict[str, Any]] = json.load(response)
    return any(slot["is_processing"] for slot in slots)
