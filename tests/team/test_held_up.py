"""Machines of a team that are held up: a daemon or a link that is stopped, a disk that takes nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from cortexfs.team import link
from cortexfs.team.incoming import MAX_OF_ONE, SHARE, has_room
from cortexfs.team.line import CallLine, CallLines
from cortexfs.team.messages import CallOpening
from cortexfs.team.nats_client import Client
from tests.team.machines import COUNT, Machine
from tests.waiting import until

SHELL = "shell.exec"


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def exported(machines: dict[str, Machine]) -> Machine:
    """The laptop, which sees tools of the box."""
    box, laptop = machines["box"], machines["laptop"]
    for name in (COUNT, SHELL):
        box.team("export", f"tool/{name}", "--to", "root@laptop", "--as", "daemon")
        laptop.sees(f"tool/{name}+box")
    laptop.works("box")
    return laptop


@pytest.mark.parametrize("process", [Machine.link, Machine.server])
def test_what_was_told_as_not_answered_does_not_run_later(
    exported: Machine, box: Machine, process: Any
) -> None:
    # abi.md 14.26
    ran = box.ctx.work / "ran"
    ran.write_text("")
    ran.chmod(0o666)
    command = f"echo x >>{ran}"
    assert exported.ctx.call(f"{SHELL}+box", command).status == 0  # and so the next one's connection is there
    with stopped(process(box)):
        told = exported.ctx.call(f"{SHELL}+box", command)
        assert (told.code, "may have begun the call" in told.message) == ("EHOSTDOWN", True)
    exported.works("box")
    box.ctx.at_rest()
    assert ran.read_text() == "x\n"


def test_a_daemon_that_is_stopped_ends_the_calls_to_it(exported: Machine, box: Machine) -> None:
    # abi.md 14.26
    with stopped(box.ctx.pid):
        told = exported.count("box")
        assert told.code == "EHOSTDOWN"
        exported.sees_away(f"tool/{COUNT}+box")
        assert exported.count("box").code == "EHOSTDOWN"
    exported.works("box")
    box.ctx.at_rest()


def test_a_link_that_is_stopped_is_told(exported: Machine) -> None:
    pid = exported.link()
    with stopped(pid):
        assert exported.status["problem"] == (
            f"the link (pid {pid}) is stopped; let it go on: kill -CONT {pid}"
        )
    assert not exported.status["problem"]


def test_a_link_outlives_a_disk_on_which_it_cannot_write(exported: Machine, box: Machine) -> None:
    pid, status = box.link(), box.folder / "status.json"
    status.unlink()
    status.mkdir()  # no file takes its place, whoever writes it
    exported.ctx.umount()  # which would be written
    until(
        (box.ctx.state / "daemon.log").read_text, lambda said: "the state of the team is not written" in said
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
