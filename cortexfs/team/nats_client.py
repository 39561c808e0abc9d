"""A client of NATS over Trio: one connection that comes back, subscriptions that stay, requests.

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        client.subscribe("ctx.live.*", heard)       a function, called with each Delivery
        client.publish(subject, data)
        answers = await client.request(subject, data)

Rules: messages published while the connection is away are lost; code that must notice numbers its messages.
The bytes that wait to be sent are bounded. A function that is called with a message never waits.
This file must never know the meaning of a message.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import trio

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.team import certificates, keys, nats_wire
from cortexfs.team.nats_wire import Delivery, Heard, Word
from cortexfs.team.tls import TlsStream

CONNECT_SECONDS = 5.0
RETRY_SECONDS = 0.25  # between two tries; twice as long after each failure, up to:
MAX_RETRY_SECONDS = 4.0
SILENCE_SECONDS = 10.0  # after which the server is asked for a sign of life; after twice as long it is lost
LOOKS = 2  # in that time
ANSWER_SECONDS = 5.0
_BATCH_ENDS = ("204", "404", "408", "413")  # statuses
_FEW = 256 << 10  # bytes that may still wait when more is sent
MAX_UNSENT = 32 << 20

log = logging.getLogger("cortexfs")


class Account(NamedTuple):
    """The proof of a client, and how it knows the server: by an authority, or by the pin of a token."""

    key: keys.Key
    token: str
    authority: str = ""  # PEM
    pin: bytes = b""


class _Info(msgspec.Struct):
    nonce: str = ""


class _StreamError(msgspec.Struct):
    description: str = ""
    err_code: int = 0


class _StreamState(msgspec.Struct):
    last_seq: int = 0


class StreamAnswer(msgspec.Struct):
    """A server's answer about one of its streams; each answer has some of these fields."""

    error: _StreamError | None = None
    seq: int = 0  # of the stored message
    created: str = ""
    state: _StreamState = msgspec.field(default_factory=_StreamState)


class Client:
    """A connection, under this machine's name and key. Its other attributes are the subscriptions, and the
    bytes that wait to be sent."""

    def __init__(self, name: str, servers: list[str], account: Account, inbox: str) -> None:
        self.name = name
        self.key = account.key
        self.servers = servers  # HOST:PORT, in the order in which they are tried
        self._account = account
        self._inbox = inbox  # the prefix of subjects for answers, which only this client may receive
        self._handlers: dict[str, tuple[str, Callable[[Delivery], None]]] = {}
        self._answers: dict[str, trio.MemorySendChannel[Delivery]] = {}
        self._stream: TlsStream | None = None
        self._unsent = bytearray()
        self._news = trio.Event()
        self._sent = trio.Event()
        self._count = 0
        self._is_silent = True  # since the last look
        self.problem = "it is not connected yet"
        self.server = ""
        self.connected = trio.Event()
        self.on_connect: Callable[[], None] = lambda: None
        self.on_read: Callable[[], None] = lambda: None  # all messages that came together have been handled
        if inbox:
            self.subscribe(f"{inbox}.*", self._answered)

    # -- sending

    @property
    def is_connected(self) -> bool:
        return not self.problem

    def publish(
        self, subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send a message. Raises EHOSTDOWN without a connection, EAGAIN while the server reads too slowly."""
        if self.problem:
            raise Fault("EHOSTDOWN", f"the team's server is away: {self.problem}")
        if len(self._unsent) > MAX_UNSENT:
            raise Fault("EAGAIN", "the team's server does not read fast enough; try again")
        self._send(nats_wire.publish(subject, data, reply, headers))

    async def room(self, size: int = _FEW) -> None:
        """Wait until at most so many bytes are unsent."""
        while len(self._unsent) > size and not self.problem:
            await self._sent.wait()

    def _send(self, data: bytes) -> None:
        is_first = not self._unsent  # otherwise a task already waits to send the rest
        self._unsent += data
        if is_first:
            with contextlib.suppress(OSError):  # the task meets the error as well
                self._flush()
            if self._unsent:
                self._news.set()

    def _flush(self) -> None:
        assert self._stream
        del self._unsent[: self._stream.send(self._unsent)]
        if not self._unsent:
            self._sent.set()
            self._sent = trio.Event()

    def subscribe(self, subject: str, handler: Callable[[Delivery], None]) -> None:
        self._count += 1
        number = str(self._count)
        self._handlers[number] = (subject, handler)
        if not self.problem:
            self._send(nats_wire.subscribe(subject, number))

    async def request(
        self, subject: str, data: bytes, *, is_batch: bool = False, headers: dict[str, str] | None = None
    ) -> list[Delivery]:
        """Returns the answer, or all answers of a batch. May raise ETIMEDOUT."""
        word = secrets.token_hex(12)
        send, answers = trio.open_memory_channel[Delivery](16 << 10)
        self._answers[word] = send
        deliveries: list[Delivery] = []
        try:
            self.publish(subject, data, f"{self._inbox}.{word}", headers)
            with trio.move_on_after(ANSWER_SECONDS):
                while True:
                    deliveries.append(await answers.receive())
                    if deliveries[-1].status == "503":
                        raise Fault("EHOSTDOWN", "no machine in the team answers this request now")
                    if not is_batch or deliveries[-1].status in _BATCH_ENDS:
                        return deliveries
        finally:
            del self._answers[word]
        raise Fault("ETIMEDOUT", f"the team's server has not answered within {ANSWER_SECONDS:g} s")

    async def stored(self, subject: str, data: bytes, tolerated: int = 0) -> None:
        """Publish data, and wait until a stream stores it. Raises a Fault for any error but `tolerated`."""
        stored(await self.request(subject, data), tolerated)

    def _answered(self, delivery: Delivery) -> None:
        waiting = self._answers.get(delivery.subject.rpartition(".")[2])
        if waiting is not None:
            try:
                waiting.send_nowait(delivery)
            except trio.WouldBlock:  # more answers than were asked for
                return

    # -- the connection

    async def run(self) -> None:
        """Stay connected, for ever."""
        pause = RETRY_SECONDS
        while True:
            for address in list(self.servers):
                try:
                    await self._once(address)
                except* OSError as problems:
                    self._lost(f"{address}: {_reason(problems)}")
                except* Fault as faults:
                    self._lost(f"{address}: {_reason(faults)}")
                if self.connected.is_set():  # all that wait for the next connection share its event
                    pause, self.connected = RETRY_SECONDS, trio.Event()
            await trio.sleep(pause)
            pause = min(2 * pause, MAX_RETRY_SECONDS)

    def _lost(self, why: str) -> None:
        if not self.problem:
            log.warning("the connection to the team's server was lost: %s", why)
        self.problem = why
        self._sent.set()

    async def _once(self, address: str) -> None:
        try:
            with trio.fail_after(CONNECT_SECONDS):
                stream, parser = await self._opened(address), Heard()
                try:
                    first = await self._greet(stream, parser)
                except BaseException:
                    stream.close()
                    raise
        except trio.TooSlowError:
            why = f"it, or the service for its name, has not answered within {CONNECT_SECONDS:g} s"
            raise Fault("ETIMEDOUT", f"{why}; is a firewall between?") from None
        self._stream, self._unsent = stream, bytearray()
        for number, (subject, _) in self._handlers.items():
            self._unsent += nats_wire.subscribe(subject, number)
        self.problem, self.server = "", address
        self.connected.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, stream)
                nursery.start_soon(self._watch)
                self.on_connect()
                await self._read(stream, parser, first)
        finally:
            self.problem = self.problem or "it has ended"
            self._sent.set()
            stream.close()

    async def _opened(self, address: str) -> TlsStream:
        host, _, port = address.rpartition(":")
        account = self._account
        context = certificates.pinning() if account.pin else certificates.trusting(account.authority)
        try:
            stream = await TlsStream.open(host.strip("[]"), int(port), context)
        except ssl.SSLError as problem:
            raise Fault("EACCES", f"its TLS connection failed: {problem}") from None
        if account.pin and certificates.pin_of(stream.certificate) != account.pin:
            stream.close()
            raise Fault("EACCES", "the server is not the one that the token is for")
        return stream

    async def _greet(self, stream: TlsStream, parser: Heard) -> list[Any]:
        """Prove this client's identity. Returns the messages that came after the server's welcome."""
        items: list[Any] = []
        greeted = False
        while True:
            data = await stream.receive()
            if not data:
                raise Fault("EHOSTDOWN", "it has closed the connection")
            items += parser.feed(data)
            while items:
                word = items.pop(0)
                if not isinstance(word, Word):
                    continue
                if word.name == "INFO" and not greeted:
                    greeted = True
                    await stream.send_all(nats_wire.connect(self._options(word.text)))
                elif word.name == "-ERR":
                    why = f"it says {word.text.decode(errors='replace')[:100]}"
                    if "auth" in why.lower():
                        why += "; the key has expired or was removed, see: ctx team init"
                    raise Fault("EACCES", why)
                elif word.name == "PONG":
                    return items

    def _options(self, info: bytes) -> bytes:
        try:
            nonce = msgspec.json.decode(info, type=_Info).nonce
        except UNREADABLE:
            raise Fault("EPROTO", "it does not speak NATS") from None
        signature = keys.unpadded(self.key.sign(nonce.encode()))
        options = {
            "verbose": False, "pedantic": False, "tls_required": True, "lang": "python", "version": "1",
            "protocol": 1, "headers": True, "no_responders": True, "echo": True, "name": self.name,
            "jwt": self._account.token, "sig": signature,
        }  # fmt: skip
        return msgspec.json.encode(options)

    async def _write(self, stream: TlsStream) -> None:
        """Send the bytes that did not go at once."""
        while True:
            while not self._unsent:
                self._news = trio.Event()
                await self._news.wait()
            await stream.writable()
            self._flush()

    async def _read(self, stream: TlsStream, parser: Heard, first: list[Any]) -> None:
        items = first
        while True:
            for item in items:
                self._hear(item)
            self.on_read()
            data = await stream.receive()
            if not data:
                raise Fault("EHOSTDOWN", "it has closed the connection")
            self._is_silent, items = False, parser.feed(data)

    async def _watch(self) -> None:
        """Ping a silent server. Raises a Fault if it does not answer. Reading needs no timer in this way."""
        silent = 0  # looks
        while True:
            self._is_silent = True
            await trio.sleep(SILENCE_SECONDS / LOOKS)
            silent = silent + 1 if self._is_silent else 0
            if silent == LOOKS:
                self._send(b"PING\r\n")
            elif silent == 2 * LOOKS:
                raise Fault("EHOSTDOWN", "it does not answer any more")

    def _hear(self, item: Any) -> None:
        if isinstance(item, Delivery):
            entry = self._handlers.get(item.number)
            if entry:
                try:
                    entry[1](item)
                except Fault as fault:
                    log.info("a message of the team on %s is ignored: %s", item.subject, fault.message)
                except Exception as bug:  # a bug about one untrusted message must not end the link
                    log.error("a message of the team on %s has caused an error: %r", item.subject, bug)
        elif item.name == "PING":
            self._send(b"PONG\r\n")
        elif item.name == "-ERR":
            log.warning("the team's server says %s", item.text.decode(errors="replace")[:200])


def stored(deliveries: list[Delivery], tolerated: int) -> StreamAnswer:
    """Returns a stream's answer to a message to store. Raises a Fault for any error but `tolerated`."""
    answer = stream_answer(deliveries)
    if answer.error is not None and answer.error.err_code != tolerated:
        raise Fault("ENOSPC", f"the team's server cannot store the message: {answer.error.description[:100]}")
    return answer


def stream_answer(deliveries: list[Delivery]) -> StreamAnswer:
    try:
        return msgspec.json.decode(deliveries[0].data, type=StreamAnswer)
    except UNREADABLE:
        raise Fault("EPROTO", "the team's server has sent an answer that cannot be read") from None


async def batch(client: Client, subject: str, request: dict[str, Any]) -> list[Delivery]:
    """Returns some messages of a stream, each with its subject there; none if there are no more."""
    answers = await client.request(subject, msgspec.json.encode(request), is_batch=True)
    deliveries = [each for each in answers if not each.status]
    return [each._replace(subject=each.headers.get("Nats-Subject", "")) for each in deliveries]


def sequence_of(delivery: Delivery) -> int:
    """Returns the number of a message in its stream."""
    return int(delivery.headers.get("Nats-Sequence", "0"))


def _reason(problems: BaseException) -> str:
    """Returns the message of the first error."""
    while isinstance(problems, BaseExceptionGroup):
        problems = problems.exceptions[0]
    if isinstance(problems.__cause__, BaseExceptionGroup):  # one for each number that a name stands for
        return ", ".join(dict.fromkeys(map(_reason, problems.__cause__.exceptions)))
    if isinstance(problems, Fault):
        return problems.message
    if isinstance(problems, OSError) and problems.strerror:
        return problems.strerror
    return str(problems) or type(problems).__name__
