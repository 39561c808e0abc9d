"""Three servers of a team, each beside a daemon with a state of its own: any one of them may be away."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import wait_gone
from tests.team.machines import COUNT, Machine, cluster, free_ports, machine
from tests.team.networks import network
from tests.waiting import until

NAMES = ("laptop", "desk", "box")  # the box began the team
SLOW = "shell.exec"


@pytest.fixture(scope="module")
def three(python: Path) -> Iterator[dict[str, Machine]]:
    with cluster(python, *NAMES) as found:
        for each in found.values():
            to = [word for name in NAMES for word in ("--to", f"root@{name}")]
            each.team("export", f"tool/{SLOW}", *to, "--as", "daemon")
        for here, there in permutations(NAMES, 2):
            found[here].sees(f"tool/{SLOW}+{there}")
        yield found


def all_work(machines: dict[str, Machine], *names: str) -> None:
    for here, there in permutations(names, 2):
        machines[here].works(there)


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        assert wait_gone(pid)


def test_three_machines_are_a_cluster(three: dict[str, Machine], python: Path) -> None:
    # abi.md 14.12
    for each in three.values():
        seen = each.status
        assert (sorted(seen["servers"]), seen["is_cluster"]) == (sorted(NAMES), True)
        assert each.server()
    all_work(three, *NAMES)
    box = three["box"]
    plain, token = (box.team("init", *words).stdout.strip() for words in ((), ("--server",)))
    with machine(python, "fourth") as fourth:
        where = ("--listen", "127.0.0.1:4222", "--address", "127.0.0.1", "--name", "fourth")
        for good in (token, plain):
            refused = fourth.team("join", "--server", *where, good, check=False)
            assert (refused.returncode, "has 3 servers" in refused.stderr) == (1, True), refused.stderr
        fourth.team("join", "--name", "fourth", token)  # a server's token also serves to join as a machine
        fourth.sees(f"tool/{COUNT}+box")
        fourth.team("leave")


@pytest.mark.parametrize("names", [("laptop",), ("desk",), ("box",), ("laptop", "desk"), ("desk", "box")])
def test_a_server_that_is_killed_is_not_missed(three: dict[str, Machine], names: tuple[str, ...]) -> None:
    kill(*(three[name].server() for name in names))
    all_work(three, *(name for name in NAMES if name not in names))
    all_work(three, *NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_daemon_that_is_killed_ends_its_calls_alone(three: dict[str, Machine], name: str) -> None:
    here, there = (one for one in NAMES if one != name)
    three[here].sees(f"tool/{SLOW}+{name}")
    with started(three[here], f"{SLOW}+{name}") as process:
        kill(three[name].ctx.pid)  # its link and its server end with it
        until(process.poll, lambda status: status is not None)
        assert process.stdout
        assert b"EHOSTDOWN" in process.stdout.read()
    all_work(three, here, there)
    three[here].sees_away(f"tool/{COUNT}+{name}")
    assert three[here].count(name).code == "EHOSTDOWN"
    three[name].ctx.umount()
    three[name].ctx.mount()
    all_work(three, *NAMES)


def started(machine: Machine, name: str) -> subprocess.Popen[bytes]:
    """Begin a call that goes on, and wait for its first output; returns its process."""
    words = [machine.ctx.tool(name), "echo begun; sleep 1000"]
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        cwd=machine.ctx.work,
        env=machine.ctx.environ,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout
    while b"begun" not in process.stdout.readline():
        pass
    return process


def test_a_machine_that_comes_back_late_finds_its_calls_ended(three: dict[str, Machine]) -> None:
    link = three["desk"].link()
    with started(three["laptop"], f"{SLOW}+desk") as process:
        three["desk"].ctx.at_rest(1)
        os.kill(link, signal.SIGSTOP)
        try:
            until(process.poll, lambda status: status is not None)
            assert process.stdout
            assert b"has not reported" in process.stdout.read()
        finally:
            os.kill(link, signal.SIGCONT)
    three["desk"].ctx.at_rest()  # no call waits for it there either
    all_work(three, *NAMES)


def test_a_machine_that_is_cut_off_works_alone(python: Path) -> None:
    # abi.md 14.7, 14.12
    with network(*NAMES) as places, cluster(python, *NAMES, places=places) as three:
        for cut in ("box", "laptop"):
            left = [name for name in NAMES if name != cut]
            places[cut].cut()
            all_work(three, *left)
            for name in left:
                three[cut].sees_away(f"tool/{COUNT}+{name}")
                assert three[cut].count(name).code == "EHOSTDOWN"
                assert three[name].count(cut).code == "EHOSTDOWN"
            assert three[cut].ctx.call(COUNT, '{"text":"a"}').status == 0
            new = "fs.read" if cut == "box" else "fs.search"  # its entry meanwhile is heard by none there
            to = [word for name in ("box", "laptop") for word in ("--to", f"root@{name}")]
            three["desk"].team("export", f"tool/{new}", *to, "--as", "daemon")
            three["laptop" if cut == "box" else "box"].sees(f"tool/{new}+desk")
            places[cut].join()
            three[cut].sees(f"tool/{new}+desk")
            all_work(three, *NAMES)


def test_a_server_that_is_removed_is_replaced(python: Path) -> None:
    # abi.md 14.11, 14.12
    with cluster(python, *NAMES) as three, machine(python, "fourth") as fourth:
        box, desk = three["box"], three["desk"]
        refused = desk.team("leave", check=False)
        assert (refused.returncode, "is a server of the team" in refused.stderr) == (13, True)
        box.team("leave", "--machine", "desk")
        until(lambda: box.status["servers"], lambda seen: sorted(seen) == ["box", "laptop"])
        three["laptop"].sees_no(f"tool/{COUNT}+desk")
        all_work(three, "box", "laptop")
        until(lambda: desk.count("box").status, lambda status: status != 0)
        desk.team("leave", "--end")
        token = box.team("init", "--server").stdout.strip()
        where = ("--listen", f"127.0.0.1:{free_ports()}", "--address", "127.0.0.1")
        fourth.team("join", "--server", "--name", "fourth", *where, token)
        fourth.sees(f"tool/{COUNT}+box")
        kill(three["laptop"].server())
        all_work({**three, "fourth": fourth}, "box", "laptop")
        fourth.sees(f"tool/{COUNT}+box")
        until(lambda: fourth.status["servers"], lambda seen: sorted(seen) == ["box", "fourth", "laptop"])
        assert fourth.server()
