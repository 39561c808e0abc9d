"""The errors that each failure of a provider becomes (issue: "Failure is honest and mapped")."""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import Any

import pytest
import trio

from cortexfs.core import frames
from cortexfs.core.models import sse
from cortexfs.models.exchange.answering import RetryTerms
from tests.shell.asking import QUICK, Turn, World, model, world
from tests.shell.provider_server import (
    KEY,
    SSE,
    USED,
    WHOLE,
    Cut,
    Move,
    Wait,
    chat,
    chunks,
    ended,
    messages,
    responses,
    said,
    status,
)  # fmt: skip
from tests.waiting import PATIENCE

OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 8192 tokens. However, your messages resulted in"
        " 9001 tokens.",
        "code": "context_length_exceeded",
    }
}
ECHOED = {"error": {"message": f"Incorrect API key provided: {KEY}"}}

STATUSES: list[tuple[list[Move], str, str, int]] = [
    # the answer, the code, words of the message, requests
    (status(401, ECHOED), "EACCES", "ctx provider secret set p", 1),
    (status(403, ECHOED), "EACCES", "Incorrect", 1),
    (status(402), "EDQUOT", "payment", 1),
    (status(404), "ENOENT", "ctx provider models", 1),
    (status(400, {"error": {"message": "temperature is over 2"}}), "EINVAL", "temperature is over 2", 1),
    (status(400, OVERFLOW), "EMSGSIZE", "9001 tokens and p takes 8192", 1),
    (status(413), "EMSGSIZE", "too long", 1),
    (status(429, ECHOED), "EAGAIN", "limits the rate", 3),
    (status(429, ECHOED, retry_after="3600"), "EAGAIN", "wait 3600 s", 1),
    (status(429, {"error": {"message": "x", "code": "insufficient_quota"}}), "EDQUOT", "used up", 1),
    (status(500, b"<html>oops"), "EREMOTEIO", "failed (500)", 3),
    (status(503, ECHOED), "EREMOTEIO", "failed (503)", 3),
    (status(307, location="http://127.0.0.1:1/"), "EREMOTEIO", "redirection", 1),
    (status(200, b"<html>hi", content_type="text/html"), "EREMOTEIO", "text/html", 1),
    (status(200, {"error": {"message": f"overloaded {KEY}", "code": 529}}), "EREMOTEIO", "(529): overl", 3),
    # docs/models.md: a request whose failure cannot change is not repeated
    ([b"\x00\xff garbage\r\n\r\n", Cut()], "EHOSTDOWN", "does not speak HTTP", 1),
    ([Cut(reset=True)], "EHOSTDOWN", "cannot be reached", 3),
    ([Cut()], "EHOSTDOWN", "cannot be reached", 3),
    ([SSE, Cut()], "EREMOTEIO", "broke off", 3),
    ([SSE, b"data: {not json}\n\n", Cut()], "EREMOTEIO", "cannot be read", 1),
    ([SSE, b"data: \xff\xfe\n\n"], "EREMOTEIO", "cannot be read", 1),
    ([SSE, b"data: " + b"x" * sse.MAX_EVENT, Cut()], "EREMOTEIO", "over 4 MiB", 1),
    ([SSE, b'data: {"choices": [{"del', Cut()], "EREMOTEIO", "broke off", 3),
    ([SSE, *chunks({"error": {"message": f"overloaded, says {KEY}"}})], "EREMOTEIO", "overloaded", 3),
    ([SSE, *chunks({"error": {"message": "rate_limit_exceeded"}})], "EAGAIN", "limits the rate: r", 3),
    ([SSE, *chunks({"error": {"code": 503, "message": "overloaded"}})], "EREMOTEIO", "failed (503): o", 3),
    ([SSE, *chunks({"error": {"code": 400, "message": "overloaded"}})], "EINVAL", "request (400): o", 1),
    ([SSE, *chunks({"error": {"type": "overloaded_error", "message": "x"}})], "EREMOTEIO", "p failed: x", 3),
]  # fmt: skip


@pytest.mark.parametrize(("moves", "code", "words", "requests"), STATUSES)
async def test_a_failure_before_the_first_word(
    moves: list[Move], code: str, words: str, requests: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with world(moves) as (made, provider):
            turn, fault = await made.ask("hi")
    assert fault is not None
    assert fault.code == code, fault
    assert words in fault.message
    assert len(provider.requests) == requests
    assert len(turn.progress) == requests - 1  # every wait is reported
    assert not [frame for frame in turn.frames if not isinstance(frame, frames.Progress)]
    # issue: "No secret in any frame, log ..."
    assert KEY not in fault.message + repr(fault) + repr(turn.frames) + caplog.text
    assert "has a bug" not in caplog.text


CUT: list[tuple[list[Move], str]] = [
    ([SSE, *chunks(said("so far")), Cut()], "broke off"),
    ([SSE, *chunks(said("so far")), Cut(reset=True)], "broke off"),
    ([SSE, *chunks(said("so far")), b'data: {"choices"', Cut()], "broke off"),
    ([SSE, *chunks(said("so far")), b"data: garbage\n\n"], "cannot be read"),
    ([SSE, *chunks(said("so far")), b"data: \xff\xfe\n\n"], "cannot be read"),
    ([SSE, *chunks(said("so far"), {"error": {"message": "overloaded"}})], "overloaded"),
]


@pytest.mark.parametrize(("moves", "words"), CUT)
async def test_a_stream_that_is_cut_is_an_error_and_is_not_asked_again(moves: list[Move], words: str) -> None:
    # issue: "a stream cut in the middle is an error frame, never a silent done"
    async with world(moves) as (made, provider):
        turn, fault = await made.ask("hi")
    assert fault is not None
    assert fault.code == "EREMOTEIO"
    assert words in fault.message
    assert turn.types == ["delta"]
    assert turn.output == "so far"
    assert len(provider.requests) == 1


@pytest.mark.parametrize("format_", list(WHOLE))
async def test_every_prefix_of_a_stream_is_an_error_and_never_a_whole_answer(format_: str) -> None:
    whole = WHOLE[format_]("Hel", "lo")
    last = {"openai.responses": 1, "anthropic.messages": 1}.get(format_, 3)  # events that may be missing
    for count in range(1, len(whole) - last + 1):
        async with world([*whole[:count], Cut()], format_=format_, terms=RetryTerms(tries=1)) as (made, _):
            turn, fault = await made.ask("hi")
        assert fault is not None, count
        assert fault.code == "EREMOTEIO"
        assert "message" not in turn.types


@pytest.mark.parametrize("format_", list(WHOLE))
async def test_a_stream_in_pieces_of_a_byte_is_whole(format_: str) -> None:
    # issue: "half UTF-8/half SSE lines"
    head, *rest = WHOLE[format_]("Hä", "l\u20aco 🙂")
    joined = b"".join(each for each in rest if isinstance(each, bytes))
    async with world([head, *(bytes([each]) for each in joined)], format_=format_) as (
        made,
        _,
    ):
        turn, fault = await made.ask("hi")
    assert fault is None
    assert turn.output == "Häl\u20aco 🙂"
    assert turn.types[-2:] == ["message", "usage"]


async def test_rate_limits_are_waited_for_as_long_as_the_server_says() -> None:
    moves = [status(429, retry_after="0.01"), status(429, retry_after_ms="10"), chat("ok")]
    async with world(*moves, terms=RetryTerms(backoff=3600)) as (made, provider):
        turn, fault = await made.ask("hi")
    assert fault is None
    assert turn.output == "ok"
    assert len(provider.requests) == 3
    assert "trying again in 0.0 s" in turn.progress[0]


async def test_events_that_come_twice_or_in_another_order_are_noticed_where_the_format_numbers_them() -> None:
    head, *events = responses("a", "b", "c")
    doubled = [each for event in events for each in (event, event)]
    async with world([head, *doubled], format_="openai.responses") as (made, _):
        turn, fault = await made.ask("hi")
        assert fault is None
        assert turn.output == "abc"
    swapped = [head, events[0], events[2], events[1], *events[3:]]
    async with world(swapped, format_="openai.responses") as (made, _):
        _, fault = await made.ask("hi")
        assert fault is not None
        assert fault.code == "EREMOTEIO"
    head, *events = messages("a")
    async with world([head, events[0], events[2], events[1]], format_="anthropic.messages") as (made, _):
        _, fault = await made.ask("hi")
        assert fault is not None
        assert fault.code == "EREMOTEIO"


# -- deadlines and cancelling


async def test_nothing_within_the_time_for_the_first_token() -> None:
    # issue: "deadlines for connect, first token and silence"
    both: list[list[Move]] = [[Wait(trio.Event())], [SSE, b": still here\n\n", Wait(trio.Event())]]
    for moves in both:
        async with world(moves, first=0.5) as (made, provider):
            _, fault = await made.ask("hi")
            assert fault is not None
            assert fault.code == "ETIMEDOUT"
            assert "did not begin to answer within 0.5 s" in fault.message
            if provider.requests:  # the time may have been over before the request reached the provider
                await provider.left.wait()


async def test_silence_in_the_midst_of_an_answer() -> None:
    async with world([SSE, *chunks(said("a")), Wait(trio.Event())], silence=1) as (made, provider):
        turn, fault = await made.ask("hi")
        assert fault is not None
        assert fault.code == "ETIMEDOUT"
        assert "nothing more within 1 s" in fault.message
        assert turn.output == "a"
        await provider.left.wait()


async def test_the_time_of_a_slow_client_is_not_the_provider_s() -> None:
    async with world(chat("a", "b"), silence=1) as (made, _):

        class Slow(Turn):
            async def say(self, *said_: frames.Frame) -> None:
                with trio.move_on_after(1.1):
                    await trio.sleep_forever()
                await super().say(*said_)

        turn = Slow("hi")
        await made.drivers.chosen(made.objects["p/m"], "exec")(turn)
        assert turn.output == "ab"


async def test_cancelling_ends_the_request_at_the_provider() -> None:
    # issue: "cancel closes the request at the provider within 1 s"
    both: list[list[Move]] = [[Wait(trio.Event())], [SSE, *chunks(said("a")), Wait(trio.Event())]]
    for moves in both:
        async with world(moves) as (made, provider), trio.open_nursery() as nursery:
            turn = Turn("hi")
            nursery.start_soon(made.drivers.chosen(made.objects["p/m"], "exec"), turn)
            await provider.asked.wait()
            if len(moves) > 1:
                await turn.spoken.wait()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True), trio.fail_after(PATIENCE):
                await provider.left.wait()


async def test_a_server_that_is_not_there() -> None:
    # issue: "unreachable EHOSTDOWN (69)"
    async with world(chat("x")) as (made, provider):
        port = provider.port
    assert port
    made.sources.clear()
    await made.add(model(), f"http://127.0.0.1:{port}/v1")
    turn, fault = await made.ask("hi")
    assert fault is not None
    assert fault.code == "EHOSTDOWN"
    assert "connection refused" in fault.message.lower()
    assert len(turn.progress) == QUICK.tries - 1


# -- fallback


async def test_the_fallback_chain_and_every_hop_told() -> None:
    # issue: "then the fallback chain when set, each hop told in a progress frame"
    async with (
        world(status(503), fallback="q/m\nnot/there\nr/m\n") as (made, _),
        world(status(429, retry_after="999")) as (_, second),
        world(chat("third")) as (_, third),
    ):
        await made.add(model("q/m"), second.base_url)
        await made.add(model("r/m"), third.base_url)
        turn, fault = await made.ask("hi")
    assert fault is None
    assert turn.output == "third"
    hops = [text for text in turn.progress if "instead of" in text]
    assert [hop.rpartition("; ")[2] for hop in hops] == [
        "asking q/m instead of p/m",
        "asking not/there instead of q/m",
        "asking r/m instead of not/there",
    ]


async def test_a_model_that_is_its_own_fallback_is_asked_once() -> None:
    async with world(status(402), fallback="p/m") as (made, provider):
        turn, fault = await made.ask("hi")
    assert fault is not None
    assert fault.code == "EDQUOT"
    assert len(provider.requests) == 1
    assert turn.progress == []


async def test_the_end_of_the_chain_is_the_last_failure() -> None:
    async with (
        world(status(503), fallback="q/m") as (made, _),
        world(status(429, retry_after="999")) as (_, second),
    ):
        await made.add(model("q/m"), second.base_url)
        _, fault = await made.ask("hi")
    assert fault is not None
    assert fault.code == "EAGAIN"


@pytest.mark.parametrize(
    "moves", [status(401), status(400), [SSE, *chunks(said("a")), Cut()]], ids=["key", "request", "begun"]
)
async def test_what_no_fallback_is_for(moves: list[Move]) -> None:
    async with world(moves, fallback="q/m") as (made, _), world(chat("x")) as (_, second):
        await made.add(model("q/m"), second.base_url)
        _, fault = await made.ask("hi")
        assert fault is not None
        assert not second.requests


# -- keys and headers


async def test_a_key_that_no_header_could_hold_never_gets_there() -> None:
    from cortexfs.core.errors import Fault
    from cortexfs.models.providers.secrets import checked

    for key in (b"", b" \n", b"a b", b"a\nb", b"k\xc3\xa9y", b"x" * 10_000, b"a\x00b"):
        with pytest.raises(Fault) as caught:
            checked(key, "the key")
        assert caught.value.code == "EINVAL"
        assert key.decode("latin-1").strip() == "" or key.decode("latin-1") not in caught.value.message


async def test_the_traceback_of_a_bug_shows_no_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # issue: "No secret in any ... traceback"
    def bug(*_: object) -> list[frames.Frame]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("cortexfs.models.formats.openai_chat.ChatReader.read", bug)
    with caplog.at_level(logging.DEBUG):
        async with world(chat("x")) as (made, provider):
            _, fault = await made.ask("hi")
    assert fault is not None
    assert fault.code == "EPROTO"
    assert KEY in repr(provider.requests[0].headers)
    assert "ZeroDivisionError" in caplog.text
    assert "Traceback" in caplog.text
    assert KEY not in caplog.text + fault.message


async def test_no_variable_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "leaked-value")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    for format_ in WHOLE:
        async with world(WHOLE[format_]("x"), format_=format_, key="", headers={"X-Mine": "1"}) as (
            made,
            p,
        ):
            _, fault = await made.ask("hi")
            assert fault is None
            sent: dict[str, Any] = p.requests[0].headers
            assert "leaked-value" not in repr(sent)
            assert sent["x-mine"] == "1"
            assert "authorization" not in sent
            assert "x-api-key" not in sent


async def test_connections_are_pooled() -> None:
    kept = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(chunks(said("x"), ended(), USED, "[DONE]"))
    whole: list[Move] = [kept + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)]
    async with world(whole) as (made, provider):
        for _ in range(3):
            _, fault = await made.ask("hi")
            assert fault is None
        assert len(provider.requests) == 3
        assert provider.connections == 1


async def test_a_server_that_does_not_take_connections() -> None:
    # issue: "deadlines for connect ..."; listen(2): a full queue lets connections wait
    with contextlib.ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        made = World(RetryTerms(tries=1))
        await made.add(model(), f"http://127.0.0.1:{listener.getsockname()[1]}/v1", connect=0.05)
        _, fault = await made.ask("hi")
        await made.drivers.apply({})
    assert fault is not None
    assert fault.code == "EHOSTDOWN"
    assert "did not answer in time" in fault.message


async def test_a_server_that_speaks_no_tls() -> None:
    async with world(chat("x")) as (made, provider):
        await made.add(model(), f"https://127.0.0.1:{provider.port}/v1")
        _, fault = await made.ask("hi")
    assert fault is not None
    assert fault.code == "EHOSTDOWN"
    assert "https" in fault.message
    assert "certificate" not in fault.message
    assert KEY not in fault.message
    assert not provider.requests
