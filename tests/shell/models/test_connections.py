"""models/exchange/clients.py and http1.py: the bytes sent to a provider, and the route they take."""

from __future__ import annotations

import contextlib
import functools
import gc
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
import trio

from cortexfs.models.exchange import clients, http1
from cortexfs.models.exchange.endpoint import Lost
from tests.shell.asking import Turn, World, model, world
from tests.shell.fetched import certificates  # noqa: F401  # a fixture
from tests.shell.moduleserver import Certificates
from tests.shell.provider_server import SSE, USED, WHOLE, Move, Provider, chat, chunks, ended, said
from tests.waiting import PATIENCE

WORD = "Basic YW5uOmEgd29yZA=="


def chunked(*words: str, rest: bytes = b"") -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    events = [*chunks(*map(said, words), ended(), USED, "[DONE]")]
    return [head + b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events) + b"0\r\n\r\n" + rest]


async def refusal(made: World) -> str:
    _, fault = await made.ask("hi")
    assert fault is not None
    return fault.message


# -- requests


@pytest.mark.parametrize(
    ("format_", "base", "path"),
    [
        ("openai.chat", "/v1", "/v1/chat/completions"),
        ("openai.chat", "/v1/?api-version=2", "/v1/chat/completions?api-version=2"),
        ("openai.responses", "/v1", "/v1/responses"),
        ("google", "/v1beta/openai/", "/v1beta/openai/chat/completions"),
        ("anthropic.messages", "/v1", "/v1/messages"),
        ("anthropic.messages", "", "/v1/messages"),
    ],
)
async def test_where_a_format_is_asked(format_: str, base: str, path: str) -> None:
    async with world(WHOLE[format_]("x"), format_=format_) as (made, provider):
        await made.add(model(format_=format_), f"http://127.0.0.1:{provider.port}{base}")
        _, fault = await made.ask("hi")
        assert fault is None
        assert provider.requests[0].path == path
        assert provider.requests[0].body["stream"] is True
        assert provider.requests[0].headers["host"] == f"127.0.0.1:{provider.port}"


async def test_a_providers_file_has_the_last_word_on_headers() -> None:
    # docs/models.md: "headers" of a provider
    headers = {"Authorization": "Token mine", "accept": "x/y", "Anthropic-Version": "2030-01-01"}
    for format_ in ("openai.chat", "anthropic.messages"):
        async with world(WHOLE[format_]("x"), format_=format_, headers=headers) as (made, provider):
            _, fault = await made.ask("hi")
            assert fault is None
            sent = provider.requests[0].headers
            assert (sent["authorization"], sent["accept"]) == ("Token mine", "x/y")
            assert sent["anthropic-version"] == "2030-01-01"


async def test_a_header_that_http_cannot_hold() -> None:
    async with world(chat("x"), headers={"X-Mine": "a\nb: c"}) as (made, provider):
        assert "the request cannot be written as HTTP" in await refusal(made)
        assert not provider.requests


@pytest.mark.parametrize("base_url", ["ftp://127.0.0.1/v1", "http://127.0.0.1:99999/v1"])
async def test_an_address_that_is_none(base_url: str) -> None:
    async with world(chat("x")) as (made, _):
        await made.add(model(), base_url)
        assert "its base_url is not one of http or https" in await refusal(made)


# -- answers


async def test_a_compressed_answer_is_refused() -> None:
    head = SSE.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    async with world([head, b"\x1f\x8b"]) as (made, provider):
        assert "its answer is compressed, although the request forbids that" in await refusal(made)
        assert provider.requests[0].headers["accept-encoding"] == "identity"


async def test_who_answers_before_it_has_heard_all_is_heard() -> None:
    # RFC 9112 9.3: a server may answer and close before it has read a request
    refused = b"HTTP/1.1 413 X\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
    large = 8 << 20

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(1)
            await stream.send_all(refused)
            left = large  # read all of it, or the kernel resets the bytes that the client has not read
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_eof()
                while left > 0 and (some := await stream.receive_some(1 << 20)):
                    left -= len(some)

    async with _serving(serve) as port:
        made = World()
        await made.add(model(), f"http://127.0.0.1:{port}/v1")
        _, fault = await made.ask("x" * large)
    assert fault is not None
    assert fault.code == "EMSGSIZE"


# -- connections


async def test_a_connection_serves_again_only_when_nothing_is_left_of_an_answer() -> None:
    async with world(chunked("a"), chunked("b", rest=b"stray"), chunked("c"), chat("d")) as (made, provider):
        for _ in range(4):
            _, fault = await made.ask("hi")
            assert fault is None
        assert provider.connections == 2  # the second answer's connection had data left


async def test_events_that_came_together_are_read_together() -> None:
    # A server sends a chunk for each event. Streams rest after each read, so a read of a single chunk fell
    # behind the server.
    words = [f"{number} " for number in range(100)]
    async with world(chunked(*words), chunked(*words)) as (made, provider):
        turn, fault = await made.ask("hi")
        assert fault is None
        assert turn.output == "".join(words)
        assert turn.said < 20
        _, fault = await made.ask("hi")
        assert fault is None
        assert provider.connections == 1


async def test_what_came_before_bytes_that_are_no_chunk_is_heard() -> None:
    [whole] = chunked("a", "b")
    async with world([whole.removesuffix(b"0\r\n\r\n") + b"no size\r\n"]) as (made, _):
        turn, fault = await made.ask("hi")
    assert turn.output == "ab"
    assert fault is None  # the answer had ended by its own last event


async def test_bytes_that_are_no_chunk_break_an_answer_off() -> None:
    event = chunks(said("a"))[0]
    [whole] = chunked()
    cut = whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n%x\r\n%s\r\nno size\r\n" % (len(event), event)
    async with world([cut]) as (made, _):
        turn, fault = await made.ask("hi")
    assert turn.output == "a"
    assert fault is not None
    assert "does not speak HTTP" in fault.message


async def test_a_reload_forgets_connections() -> None:
    async with world(chunked("a"), chunked("b")) as (made, provider):
        _, fault = await made.ask("hi")
        assert fault is None
        await made.drivers.apply(made.sources)  # as a reload does: keys and addresses may have changed
        _, fault = await made.ask("hi")
        assert fault is None
        assert provider.connections == 2


async def test_what_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(chunked("a")) as (made, provider):
        monkeypatch.setattr(clients, "KEPT_SECONDS", 0.0)
        for _ in range(2):
            _, fault = await made.ask("hi")
            assert fault is None
        assert provider.connections == 2


async def test_so_many_idle_ones_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "KEPT", 1)
    async with world(chunked("a")) as (made, provider):
        driver = made.drivers.chosen(made.objects["p/m"], "exec")
        first, second = Turn("hi"), Turn("hi")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver, first)
            nursery.start_soon(driver, second)
        assert provider.connections == 2
        for _ in range(2):
            _, fault = await made.ask("hi")
            assert fault is None
        assert provider.connections == 2
        assert [len(kept) for kept in made.drivers._clients._idle.values()] == [1]


# -- TLS and proxies


@contextlib.asynccontextmanager
async def _serving(
    serve: Callable[[Any], Awaitable[None]], context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        begin = (
            functools.partial(trio.serve_ssl_over_tcp, serve, 0, context, host="127.0.0.1")
            if context
            else functools.partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        )
        listener = (await nursery.start(begin))[0]
        plain = getattr(listener, "transport_listener", listener)
        yield plain.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def secure(chain: Certificates, *answers: Sequence[Move]) -> AsyncIterator[tuple[Provider, int]]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain.chain, chain.key)
    provider = Provider(answers)
    async with _serving(provider.serve, context) as port:
        yield provider, port


@pytest.fixture
def trusted(
    certificates: Certificates,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Certificates]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    http1._context.cache_clear()
    yield certificates
    http1._context.cache_clear()


@pytest.mark.parametrize("answer", [chat, chunked], ids=["closes", "keeps"])
async def test_over_tls(answer: Callable[..., list[Move]], trusted: Certificates) -> None:
    async with secure(trusted, answer("a", "b")) as (provider, port):
        made = World()
        await made.add(model(), f"https://localhost:{port}/v1")
        for _ in range(2):
            turn, fault = await made.ask("hi")
            assert fault is None
            assert turn.output == "ab"
        assert len(provider.requests) == 2
        assert provider.connections == (2 if answer is chat else 1)
        await made.drivers.apply({})


async def test_a_certificate_that_nobody_vouches_for(certificates: Certificates) -> None:  # noqa: F811
    async with secure(certificates, chat("x")) as (provider, port):
        made = World()
        await made.add(model(), f"https://localhost:{port}/v1")
        assert "its certificate cannot be trusted" in await refusal(made)
        await made.add(model(), f"https://127.0.0.2:{port}/v1")
        assert "connection refused" in await refusal(made)
        assert not provider.requests


async def test_https_to_a_port_that_speaks_none_is_told_as_that() -> None:
    # issue 13.9: "https to a plain port is not told as a certificate"
    provider = Provider([chat("x")])
    async with _serving(provider.serve) as port:
        made = World()
        await made.add(model(), f"https://127.0.0.1:{port}/v1")
        told = await refusal(made)
        assert "it does not speak https" in told
        assert "certificate" not in told
        assert not provider.requests


class ForwardProxy:
    """A proxy that connects every client to one port of this machine, whatever its target."""

    def __init__(self, port: int, refuses: bool = False) -> None:
        self._port = port
        self._refuses = refuses
        self.asked: list[str] = []

    async def serve(self, client: trio.SocketStream) -> None:
        async with client:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await client.receive_some(1 << 16)
            self.asked.append(head.decode().partition("\r\n\r\n")[0])
            if self._refuses:
                await client.send_all(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
                return
            async with await trio.open_tcp_stream("127.0.0.1", self._port) as server:
                if head.startswith(b"CONNECT"):
                    await client.send_all(b"HTTP/1.1 200 Go\r\n\r\n")
                else:
                    await server.send_all(head)
                with trio.move_on_after(PATIENCE):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._copy, client, server)
                        await self._copy(server, client)
                        nursery.cancel_scope.cancel()

    async def _copy(self, source: trio.SocketStream, to: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await source.receive_some(1 << 16):
                await to.send_all(data)


async def test_a_proxy_is_asked_for_what_is_not_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    # docs/models.md: "A server on this machine is never asked through a proxy; others are"
    async with world(chat("x")) as (made, provider):
        proxy = ForwardProxy(provider.port)
        async with _serving(proxy.serve) as port:
            for name in ("http_proxy", "https_proxy"):
                monkeypatch.setenv(name, f"http://ann:a%20word@127.0.0.1:{port}")
            _, fault = await made.ask("hi")
            assert fault is None
            assert not proxy.asked
            await made.add(model(), "http://far.invalid:8000/v1")
            turn, fault = await made.ask("hi")
            assert fault is None
            assert turn.output == "x"
            head = proxy.asked[0].split("\r\n")
            assert head[0] == "POST http://far.invalid:8000/v1/chat/completions HTTP/1.1"
            assert f"Proxy-Authorization: {WORD}" in head
            monkeypatch.setenv("no_proxy", "far.invalid")
            assert "its host name is unknown" in await refusal(made)
            assert len(proxy.asked) == 1


async def test_a_proxy_passes_tls_on_and_learns_no_key(
    trusted: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secure(trusted, chat("x")) as (provider, port):
        proxy = ForwardProxy(port)
        async with _serving(proxy.serve) as at:
            monkeypatch.setenv("https_proxy", f"http://ann:a%20word@127.0.0.1:{at}")
            made = World()
            await made.add(model(), "https://far.invalid/v1")
            turn, fault = await made.ask("hi")
            assert fault is None
            assert turn.output == "x"
            wanted = (
                f"CONNECT far.invalid:443 HTTP/1.1\r\nHost: far.invalid:443\r\nProxy-Authorization: {WORD}"
            )
            assert proxy.asked == [wanted]
            assert "proxy-authorization" not in provider.requests[0].headers


async def test_a_proxy_that_refuses_or_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made = World()
    await made.add(model(), "https://far.invalid/v1")
    async with _serving(ForwardProxy(0, refuses=True).serve) as at:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{at}")
        assert "its proxy refuses" in await refusal(made)
    monkeypatch.setenv("https_proxy", "socks5://127.0.0.1:1")
    assert "its proxy has the scheme socks5, and only http works" in await refusal(made)


async def test_a_connection_that_is_refused_leaves_no_garbage() -> None:
    # a waiter for a connection holds the whole request
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(Lost):
            await http1.connected(http1.ServerAddress("http", "127.0.0.1", 9, None), PATIENCE)
        assert not [each for each in gc.get_objects() if isinstance(each, ConnectionRefusedError)]
    finally:
        gc.enable()
