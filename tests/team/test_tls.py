"""The connection to a team's server: data that cannot go at once goes later, whole and in order. A silent
server gets a ping, and the connection ends when it does not answer."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trio

from cortexfs.team import certificates, keys, nats_client, tls
from cortexfs.team.nats_client import Account, Client
from cortexfs.team.tls import TlsStream
from tests.waiting import awaited

CA = certificates.authority("team")
DATA = os.urandom(1 << 20) * 12  # more than the buffers of both kernels take


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """Returns a function that serves one connection in a thread and returns its port."""
    with ExitStack() as stack:

        def serve(answer: Callable[[socket.socket], None]) -> int:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def once() -> None:
                connection, _ = listener.accept()
                with connection:
                    answer(connection)

            thread = threading.Thread(target=once)
            thread.start()
            stack.callback(thread.join)
            port: int = listener.getsockname()[1]
            return port

        yield serve


def proved(tmp_path: Path) -> ssl.SSLContext:
    """Returns a server's context, with a certificate of the authority."""
    key = certificates.new_key()
    pem = certificates.of_server(CA, "box", ["127.0.0.1"], certificates.public_of(key))
    (tmp_path / "key").write_bytes(key)
    (tmp_path / "certificate").write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    return context


async def opened(port: int, pem: bytes = CA.certificate) -> TlsStream:
    return await TlsStream.open("127.0.0.1", port, certificates.trusting(pem.decode()))


def test_what_a_slow_reader_does_not_take_is_sent_later(serving: Callable[..., int], tmp_path: Path) -> None:
    heard, is_full = bytearray(), threading.Event()

    def answer(connection: socket.socket) -> None:
        with proved(tmp_path).wrap_socket(connection, server_side=True) as secure:
            is_full.wait()
            while len(heard) < len(DATA):
                heard.extend(secure.recv(1 << 16))
            secure.send(b"all")

    async def main() -> bytes:
        stream = await opened(serving(answer))
        rest = bytearray(DATA)
        while sent := stream.send(rest):
            del rest[:sent]
        assert rest  # the server does not read, and `send` has not waited
        is_full.set()
        while rest:
            await stream.writable()
            del rest[: stream.send(rest)]
        said = await stream.receive()
        stream.close()
        return said

    assert trio.run(main) == b"all"
    assert heard == DATA


def test_a_flood_is_read_in_pieces_and_holds_up_nobody(serving: Callable[..., int], tmp_path: Path) -> None:
    def answer(connection: socket.socket) -> None:
        with proved(tmp_path).wrap_socket(connection, server_side=True) as secure:
            secure.sendall(DATA)

    async def main() -> bytes:
        stream, found, turns = await opened(serving(answer)), bytearray(), 0

        async def other() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            while data := await stream.receive():
                assert len(data) <= tls.RECEIVE + (16 << 10)
                found += data
            nursery.cancel_scope.cancel()
        stream.close()
        assert turns >= len(DATA) // (tls.RECEIVE + (16 << 10))
        return bytes(found)

    assert trio.run(main) == DATA


def test_a_server_that_another_authority_has_proved_is_none(
    serving: Callable[..., int], tmp_path: Path
) -> None:
    def answer(connection: socket.socket) -> None:
        with suppress(OSError), proved(tmp_path).wrap_socket(connection, server_side=True) as secure:
            secure.recv(1)  # the client's refusal

    with pytest.raises(ssl.SSLError, match="certificate"):
        trio.run(opened, serving(answer), certificates.authority("team").certificate)


def test_a_server_that_speaks_no_tls_is_none(serving: Callable[..., int]) -> None:
    with pytest.raises(ssl.SSLError):
        trio.run(opened, serving(lambda connection: connection.sendall(b"INFO {}\r\n" * 100)))


def test_a_connection_that_breaks_off_has_an_end(serving: Callable[..., int], tmp_path: Path) -> None:
    def answer(connection: socket.socket) -> None:
        secure = proved(tmp_path).wrap_socket(connection, server_side=True)
        secure.sendall(b"half")
        secure.close()  # without the message of TLS that announces the end

    async def main() -> bytes:
        stream = await opened(serving(answer))
        found = bytearray()
        while data := await stream.receive():
            found += data
        stream.close()
        return bytes(found)

    assert trio.run(main) == b"half"


@pytest.mark.parametrize("answers", [True, False])
def test_a_silent_server_is_asked_and_left_when_it_does_not_answer(
    serving: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(nats_client, "SILENCE_SECONDS", 0.02)
    asked = 0

    def answer(connection: socket.socket) -> None:
        nonlocal asked
        with suppress(OSError), proved(tmp_path).wrap_socket(connection, server_side=True) as secure:
            secure.sendall(b'INFO {"nonce":"n"}\r\n')
            while data := secure.recv(1 << 16):
                if data.startswith(b"CONNECT"):
                    secure.sendall(b"PONG\r\n")
                elif data == b"PING\r\n":
                    asked += 1
                    if answers:
                        secure.sendall(b"PONG\r\n")

    async def main() -> str:
        account = Account(keys.Key.new(keys.USER), "", CA.certificate.decode())
        client = Client("laptop", [f"127.0.0.1:{serving(answer)}"], account, "")
        problems = list[str]()
        monkeypatch.setattr(client, "_lost", problems.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await awaited(lambda: asked > 2 or problems)
            nursery.cancel_scope.cancel()
        return "".join(problems)

    problem = trio.run(main)
    assert (asked > 2) == answers
    assert ("does not answer any more" in problem) == (not answers)
