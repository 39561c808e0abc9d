"""Machines of a team that are held up: by a stopped daemon or link, or by a disk without room."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest
import trio

from cortexfs.core.errors import Fault
from cortexfs.team import exporting, keys, link, subjects
from cortexfs.team.directory import INCARNATION, TOKEN, Directory
from cortexfs.team.incoming import MAX_OF_ONE, SHARE, Incoming, has_room
from cortexfs.team.joining import machine_token
from cortexfs.team.line import CallLine, CallLines
from cortexfs.team.mapping import Mapping
from cortexfs.team.messages import CallBegin, CallOpening, RemoteObject
from cortexfs.team.nats_client import Account, Client
from cortexfs.team.nats_wire import Delivery, Heard
from cortexfs.team.places import Member, TeamPlaces
from tests.team.machines import COUNT, Machine
from tests.waiting import until


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def exported(machines: dict[str, Machine]) -> Machine:
    """Returns the laptop, for which the box exports a tool."""
    box, laptop = machines["box"], machines["laptop"]
    box.team("export", f"tool/{COUNT}", "--to", "root@laptop", "--as", "daemon")
    laptop.works("box")
    return laptop


def test_a_call_that_is_not_answered_may_have_begun(exported: Machine, box: Machine) -> None:
    # abi.md 14.26
    with stopped(box.link()):
        told = exported.count("box")
        assert (told.code, "may have begun the call" in told.message) == ("EHOSTDOWN", True)
    exported.works("box")
    box.ctx.at_rest()


async def test_a_call_begins_once_all_was_heard_that_came_with_it() -> None:
    # abi.md 14.26
    key, laptop = keys.Key.new(keys.USER), keys.Key.new(keys.USER)
    begun: list[Any] = []
    client = Client("box", [], Account(key, ""), "")
    prompt = Mock(begin=begun.append)
    incoming = Incoming(client, Mock(), Mock(), prompt, lambda _: laptop.public_raw, b"now")
    subject = subjects.call("box", "laptop", "tool", COUNT)
    asked = CallBegin("0" * 32, "root", "", 0, [], {}, b"now")
    proven = keys.prove(laptop, key.public_raw, subject, msgspec.msgpack.encode(asked))
    incoming.hear(Delivery(subject, "", "", "", {}, proven))
    assert not begun
    incoming.begin()
    incoming.begin()
    assert len(begun) == 1
    begun[0].close()


def test_a_call_of_another_clock_is_told_so() -> None:
    # abi.md 14.29
    key, laptop = keys.Key.new(keys.USER), keys.Key.new(keys.USER)
    client = Mock(key=key, publish=Mock())
    client.name = "box"
    incoming = Incoming(client, Mock(), Mock(), Mock(), lambda _: laptop.public_raw, b"now")
    subject = subjects.call("box", "laptop", "tool", COUNT)
    asked = msgspec.msgpack.encode(CallBegin("0" * 32, "root", "", 0, [], {}, b"now"))
    late = keys.prove(laptop, key.public_raw, subject, asked, time.time() - 600)
    incoming.hear(Delivery(subject, "", "", "", {}, late))
    assert b"clock differs from the clock here by 600 s" in client.publish.call_args.args[1]
    assert not incoming._runs
    assert not incoming._conversations


def test_a_copy_of_this_machine_is_noticed(tmp_path: Path) -> None:
    # abi.md 14.30
    key, subject = keys.Key.new(keys.USER), subjects.entry("box", *INCARNATION)
    member = Member("team", "box", [], "", key.seed, "", "")
    directory = Directory(TeamPlaces(tmp_path, tmp_path), member, Mock(), Mock())
    directory.own[subject] = keys.seal(key, subject, b"own", time.time())
    for off, problem in ((-60, ""), (60, "two machines are box, as one's state was copied")):
        said = keys.seal(key, subject, b"other", time.time() + off)
        directory.hear(Delivery(subject, "", "", "", {}, said))
        assert directory.problem.startswith(problem)
        assert bool(directory.problem) == bool(problem)


async def test_an_entry_that_was_not_heard_is_read_later(tmp_path: Path) -> None:
    # abi.md 14.3: a message between two servers may be lost, and no connection is
    account, key, asked = keys.Key.new(keys.ACCOUNT), keys.Key.new(keys.USER), list[int]()
    member = Member("team", "box", [], account.public, keys.Key.new(keys.USER).seed, "", "")
    directory = Directory(TeamPlaces(tmp_path, tmp_path), member, Mock(), Mock())
    subject = subjects.entry("desk", *INCARNATION)
    token = machine_token(account, "desk", key.public).encode()
    stream = [(subjects.entry("desk", *TOKEN), token)]

    async def request(to: str, data: bytes, is_batch: bool) -> list[Delivery]:
        asked.append(first := msgspec.json.decode(data)["seq"])
        return [
            Delivery("", "", "", "", {"Nats-Subject": on, "Nats-Sequence": str(number)}, said)
            for number, (on, said) in enumerate(stream, 1)
            if number >= first
        ]

    client = Mock(request=request)
    await directory.load(client)
    stream.append((subject, keys.seal(key, subject, b"life", time.time())))
    assert directory.incarnation_of("desk") == b""
    await directory.renew(client)
    assert directory.incarnation_of("desk") == b"life"
    assert asked == [1, 2, 2, 3]


@pytest.mark.parametrize("is_copied", [True, False])
async def test_what_a_copy_exports_is_left_to_it(
    is_copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each of the two machines would withdraw what the other enters, again and again
    monkeypatch.setattr(exporting, "LOOK_SECONDS", 0)
    key, places = keys.Key.new(keys.USER), TeamPlaces(tmp_path, tmp_path)
    directory = Directory(places, Member("team", "box", [], "", key.seed, "", ""), Mock(), Mock())
    client = Mock(key=key, stored=AsyncMock())
    client.name = "box"
    theirs, incarnation = subjects.entry("box", "tool", "theirs"), subjects.entry("box", *INCARNATION)
    heard = [theirs, incarnation] if is_copied else [theirs]

    class Looking(exporting.Exporting):
        def _look(self) -> dict[str, RemoteObject]:
            if not heard:
                trio.from_thread.run_sync(scope.cancel)
                return {}
            said = keys.seal(key, subject := heard.pop(), b"x", time.time() + 1)
            directory.hear(Delivery(subject, "", "", "", {}, said))
            return {}

    with trio.CancelScope() as scope:
        await Looking("/nowhere", Mapping(places), client).run(directory, "token")
    withdrawn = [each.args[0] for each in client.stored.call_args_list].count(theirs)
    assert withdrawn == (not is_copied)


async def test_a_connection_tells_when_all_was_heard_that_came_at_a_time() -> None:
    order: list[bytes] = []
    chunks = [b"MSG a 1 1\r\nx\r\nMSG a 1 1\r\ny\r\n", b"MSG a 1 1\r\nz\r\n", b""]
    client = Client("laptop", [], Account(keys.Key.new(keys.USER), ""), "")
    client.subscribe("a", lambda delivery: order.append(delivery.data))
    client.on_read = lambda: order.append(b"all")
    stream = Mock(receive=AsyncMock(side_effect=chunks))
    with pytest.raises(Fault, match="has closed the connection"):
        await client._read(stream, Heard(), [])
    assert order == [b"all", b"x", b"y", b"all", b"z", b"all"]


def test_a_daemon_that_is_stopped_ends_the_calls_to_it(exported: Machine, box: Machine) -> None:
    # abi.md 14.26
    pid = box.ctx.pid
    with stopped(pid):
        told = exported.count("box")
        assert told.code == "EHOSTDOWN"
        exported.sees_away(f"tool/{COUNT}+box")
        assert exported.count("box").code == "EHOSTDOWN"
        assert box.status["problem"].startswith(f"the daemon (pid {pid}) is stopped; let it go on:")
    exported.works("box")
    box.ctx.at_rest()


def test_a_link_that_is_stopped_is_told(exported: Machine) -> None:
    pid = exported.link()
    with stopped(pid):
        assert exported.status["problem"] == (
            f"the link (pid {pid}) is stopped; let it go on: kill -CONT {pid}"
        )
        os.utime(exported.folder / "status.json", (0, time.time() - 100))  # as time passes
        assert exported.status["problems"][0].startswith("this report is 100 s old")
    assert not exported.status["problem"]
    until(lambda: not exported.status["problems"])  # also where nothing has changed


def test_a_link_outlives_a_disk_on_which_it_cannot_write(exported: Machine, box: Machine) -> None:
    pid, status = box.link(), box.folder / "status.json"

    def is_in_the_way() -> bool:
        """Put a folder in the place of the file, as no writer can replace a folder with a file."""
        status.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):  # the link has just written the file
            status.mkdir()
        return status.is_dir()

    until(is_in_the_way)
    exported.ctx.umount()  # the link wants to write this change
    until(
        (box.ctx.state / "daemon.log").read_text, lambda said: "the state of the team cannot be saved" in said
    )
    status.rmdir()
    until(lambda: box.status["machines"])
    exported.ctx.mount()
    exported.works("box")
    assert box.link() == pid


async def test_a_call_whose_descriptor_found_no_room_is_lost_alone() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        channel = link.DaemonChannel(theirs)
        opening = CallOpening("box", "tool", COUNT, 0, "", 0)
        ours.send(link._pack(opening))
        socket.send_fds(ours, [link._pack(opening)], [ours.fileno()])
        found = await channel.receive()
        assert found is not None
        assert found[0] == opening
        found[1].close()
        ours.close()
        assert await channel.receive() is None


def test_no_user_of_a_machine_takes_the_places_of_all() -> None:
    # abi.md 14.27
    lines = CallLines()

    def filled(user: str) -> int:
        count = 0
        while has_room(lines, "laptop", user):
            line = CallLine(cast(Client, None), "", "laptop", user)
            lines.begin("laptop", f"{user}{count}", line)
            count += 1
        return count

    taken = [filled(user) for user in ("ann", "joe", "eve")]
    assert taken[0] == MAX_OF_ONE * SHARE // (SHARE + 1)
    assert all(taken)
    assert sum(taken) < MAX_OF_ONE
    assert has_room(lines, "desk", "ann")
