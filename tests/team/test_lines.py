"""The pieces of a call between two machines, some of which never arrive."""

from __future__ import annotations

import socket
from collections import deque

import pytest
import trio
import trio.testing

from cortexfs.core import wire
from cortexfs.core.errors import Fault
from cortexfs.peers.prompt import MOMENT, ShortConversations
from cortexfs.team import incoming, line, messages
from cortexfs.team.incoming import AskedCall, Incoming
from cortexfs.team.line import CallLine
from cortexfs.team.messages import CallBegin
from cortexfs.team.nats_client import Client
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.standins import ConnectionRequest, StandIn
from tests.waiting import PATIENCE


class Wire(Client):
    """Delivers the messages of one side to the other, unless a test drops them."""

    def __init__(self) -> None:
        self.said: deque[bytes] = deque()

    def publish(
        self, subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self.said.append(data)

    def deliver(self, to: CallLine) -> None:
        while self.said:
            to.hear(Delivery("ctx.run.laptop.box.1", "1", "", "", {}, self.said.popleft()))


class Pair:
    def __init__(self) -> None:
        self.wires = Wire(), Wire()
        self.here = CallLine(self.wires[0], "to the box", "box")
        self.there = CallLine(self.wires[1], "to the laptop", "laptop")

    def deliver(self) -> None:
        while self.wires[0].said or self.wires[1].said:
            self.wires[0].deliver(self.there)
            self.wires[1].deliver(self.here)


def code(of: CallLine) -> str:
    with pytest.raises(Fault) as fault:
        trio.run(of.next)
    return fault.value.code


def test_the_loss_of_the_last_piece_is_noticed() -> None:
    # abi.md 14.25
    pair = Pair()
    pair.there.say((wire.EXIT, b"\0"))
    pair.wires[1].said.clear()  # a killed server would have lost it
    pair.here.look()
    assert not pair.wires[0].said  # the first look asks nothing
    pair.here.look()
    pair.deliver()
    assert code(pair.here) == "EHOSTDOWN"


def test_a_quiet_call_goes_on_while_the_other_side_answers() -> None:
    # abi.md 14.25
    pair = Pair()
    for _ in range(3 * line.QUIET_LOOKS):
        pair.here.look()
        pair.there.look()
        pair.deliver()
    pair.there.say((wire.STDOUT, b"late"))
    pair.deliver()
    assert trio.run(pair.here.next) == [(wire.STDOUT, b"late")]


def test_who_never_answers_is_given_up() -> None:
    # abi.md 14.25
    pair = Pair()
    for _ in range(line.QUIET_LOOKS + 2):
        pair.here.look()
    assert code(pair.here) == "EHOSTDOWN"


def test_a_call_that_is_not_known_any_more_ends() -> None:
    # abi.md 14.25
    pair = Pair()
    pair.wires[1].publish("to the laptop", messages.UNKNOWN)
    pair.deliver()
    assert code(pair.here) == "EHOSTDOWN"


def held(of: CallLine) -> int:
    return sum(len(payload) for _, payload in of._queue)


def test_who_says_more_than_it_has_credit_for_piles_nothing_up() -> None:
    pair = Pair()  # the test takes nothing, like a caller who does not read the output
    for _ in range(4 * messages.WINDOW // messages.PIECE):
        pair.there.say((wire.STDOUT, bytes(messages.PIECE)))
        pair.deliver()
    assert held(pair.here) <= line.MAX_QUEUED + messages.PIECE
    trio.run(pair.here.next)
    assert code(pair.here) == "EPROTO"


def test_all_that_there_is_credit_for_is_taken() -> None:
    pair, size = Pair(), 0
    while pair.there.has_room(bytes(messages.PIECE - 1)):
        size += messages.PIECE - 1
        pair.there.say((wire.STDOUT, bytes(messages.PIECE - 1)))
    pair.deliver()
    assert sum(len(payload) for _, payload in trio.run(pair.here.next)) == size > messages.WINDOW


def test_standard_input_that_was_not_asked_for_ends_the_call() -> None:
    pair, much = Pair(), 4 * messages.WINDOW
    pair.there.say((wire.WANT, wire.U32.pack(much)))
    pair.here.say((wire.STDIN, bytes(much)), (wire.STDIN, b""))
    pair.deliver()
    assert len(trio.run(pair.there.next)) == 2
    pair.here.say((wire.STDIN, b"."))
    pair.deliver()
    trio.run(pair.there.next)
    assert code(pair.there) == "EPROTO"


def test_a_piece_that_asks_often_is_answered_once() -> None:
    pair = Pair()
    pair.here.say(*[(messages.ASK, b"")] * 1000)
    pair.wires[0].deliver(pair.there)
    assert len(pair.wires[1].said) == 1


def test_messages_without_end_in_a_piece_end_the_call() -> None:
    pair = Pair()
    pair.here.say(*[(messages.ASK, b"")] * (line.MAX_MESSAGES + 1))
    pair.wires[0].deliver(pair.there)
    assert code(pair.there) == "EPROTO"


SHORT = b'{"type":"delta","text":"short"}\n'


def answered(pair: Pair, *writes: bytes) -> list[list[tuple[int, bytes]]]:
    """Send these writes of a daemon to a runner; returns the parts of each message to the other machine."""

    async def main() -> None:
        daemon, runner = socket.socketpair()
        runner.setblocking(False)
        with daemon, runner:
            words = incoming.MountWords(runner, pair.there)
            async with trio.open_nursery() as nursery:
                conversations = ShortConversations(nursery)
                nursery.start_soon(conversations.run)
                conversations.begin(words.pass_first())
                for each in writes:
                    await trio.testing.wait_all_tasks_blocked()
                    daemon.send(each)
                await trio.sleep(2 * MOMENT)  # the mock clock jumps
                nursery.cancel_scope.cancel()
            if not words.ended:
                daemon.send(wire.message(wire.EXIT, b"\0"))
                await words.pass_on()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))
    return [wire.Splitter().feed(said[messages.NUMBER.size :]) for said in pair.wires[1].said]


def test_a_short_answer_is_one_message() -> None:
    # abi.md 14.5
    start = wire.message(wire.STDOUT, b'{"type":"start"}\n')
    rest = wire.message(wire.STDOUT, SHORT) + wire.message(wire.EXIT, b"\0")
    found = answered(Pair(), start, rest)
    assert [kind for kind, _ in found[0]] == [messages.BEGUN, wire.STDOUT, wire.STDOUT, wire.EXIT]
    assert len(found) == 1


def test_the_first_words_of_a_long_answer_wait_for_nothing() -> None:
    # abi.md 14.5
    start = wire.message(wire.STDOUT, b'{"type":"start"}\n')
    found = answered(Pair(), start, wire.message(wire.STDOUT, SHORT))
    assert [[kind for kind, _ in each] for each in found] == [
        [messages.BEGUN, wire.STDOUT, wire.STDOUT],
        [wire.EXIT],
    ]


def test_that_a_call_was_taken_is_told_soon_where_nothing_is_said() -> None:
    # abi.md 14.5
    found = answered(Pair())
    assert [[kind for kind, _ in each] for each in found] == [[messages.BEGUN], [wire.EXIT]]


class Mount(StandIn):
    """Gives a connection to a daemon that hangs up: at once, before it reads the greeting, or after that."""

    def __init__(self, hangs_up: str) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.hangs_up = hangs_up

    async def connected(self, wanted: ConnectionRequest) -> tuple[int, socket.socket]:
        if self.hangs_up == "at once":
            self.theirs.close()
        else:
            trio.lowlevel.spawn_system_task(self.heard)
        return 1, self.ours

    async def heard(self) -> None:
        await trio.lowlevel.wait_readable(self.theirs)
        if self.hangs_up == "with the greeting":
            self.theirs.recv(1 << 16)
        self.theirs.close()


@pytest.mark.parametrize(
    ("hangs_up", "said"),
    [
        ("at once", [messages.REFUSED]),
        ("unread", [messages.REFUSED]),
        # The call may have begun there, so no other machine is asked.
        ("with the greeting", [messages.BEGUN, messages.REFUSED]),
    ],
)
async def test_a_daemon_that_hangs_up_is_told_at_once(hangs_up: str, said: list[int]) -> None:
    # abi.md 14.8: a call runs once, and on one machine
    pair, ended = Pair(), trio.Event()
    begin = CallBegin("0" * 32, "alice", "", 0, [], {}, b"")
    call = AskedCall(Mount(hangs_up), ConnectionRequest("tool/x"), "")
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            prompt = ShortConversations(nursery)
            nursery.start_soon(prompt.run)
            prompt.begin(Incoming._serve(Incoming.__new__(Incoming), pair.there, begin, call, ended.set))
            await ended.wait()
            nursery.cancel_scope.cancel()
    pair.deliver()
    heard = await pair.here.next()
    assert [kind for kind, _ in heard] == said
    assert b"EHOSTDOWN" in heard[-1][1]
