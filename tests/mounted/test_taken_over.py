"""What somebody who has taken the daemon of root over cannot do: docs/security.md, "A daemon that was taken
over"."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from cortexfs.daemon.selfconfinement import KEPT
from cortexfs.linux import capabilities, seccomp
from tests.mounted.ctx_mount import NOBODY, Ctx, wait_gone
from tests.shell.forks import public_directory
from tests.waiting import PATIENCE, until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="is root's daemon"),
    pytest.mark.skipif(os.uname().machine not in seccomp.MACHINES, reason="no filter for this machine"),
]
SCRIPT = Path(__file__).with_name("taken_over.py")
# What is refused otherwise than by EPERM.
OTHERS = {"connect": "EAFNOSUPPORT"}


class Attempts(NamedTuple):
    before: dict[str, str]
    after: dict[str, str]


@pytest.fixture(scope="module")
def attempts() -> Iterator[Attempts]:
    with ExitStack() as stack:
        base = stack.enter_context(public_directory())
        for name in ("ctx", "folder", "folder/mount", "config"):
            (base / name).mkdir()
        service = stack.enter_context(socket.socket(socket.AF_UNIX))
        service.bind(str(base / "folder" / "root's"))
        service.listen()
        victim = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(victim.kill)
        places = [str(base / name) for name in ("ctx", "state", "config", "folder")]
        words = [sys.executable, str(SCRIPT), *places, str(victim.pid)]
        root = SCRIPT.parents[2]
        # As systemd gives services theirs: connected to what root listens at.
        stream = stack.enter_context(socket.socket(socket.AF_UNIX))
        stream.connect(service.getsockname())
        environ = {**os.environ, "PYTHONPATH": str(root)}
        options = {"stdin": stream, "stdout": subprocess.PIPE, "env": environ}
        daemon = stack.enter_context(subprocess.Popen(words, **options))  # type: ignore[call-overload]
        stack.callback(daemon.terminate)
        assert daemon.stdout
        said = Attempts(*json.loads(daemon.stdout.readline()))
        assert daemon.stdout.readline() == b"ready\n"
        words = [str(base / "ctx/tool/fs.read"), "/etc/hostname"]
        assert subprocess.run(words, capture_output=True, timeout=PATIENCE).returncode == 0  # it serves still
        yield said
        daemon.terminate()
        assert daemon.wait(PATIENCE) == 0
        assert not os.path.ismount(base / "ctx")


def test_it_can_do_nothing_that_it_does_not_need(attempts: Attempts) -> None:
    assert set(attempts.before.values()) == {"done"}  # so that each attempt is one
    own = {name: said for name, said in attempts.after.items() if not name.startswith("host ")}
    assert own == {name: OTHERS.get(name, "EPERM") for name in (*attempts.before, "channel")}


def test_it_gets_no_host_of_anybody_who_has_not_connected(attempts: Attempts) -> None:
    # "so that a taken-over daemon cannot ask for uid 0"
    hosts = {name: said for name, said in attempts.after.items() if name.startswith("host ")}
    assert len(hosts) == 5
    assert set(hosts.values()) == {"EACCES"}


def test_what_it_keeps_is_what_the_documentation_names(ctx: Ctx) -> None:
    status = Path(f"/proc/{ctx.pid}/status").read_text()
    kept = f"{capabilities.mask(*KEPT):016x}"
    for name in ("CapPrm", "CapEff", "CapBnd"):
        assert re.search(rf"^{name}:\t(\w+)$", status, re.MULTILINE).group(1) == kept  # type: ignore[union-attr]
    assert "Seccomp:\t2\n" in status
    names = {number: f"CAP_{name}" for name, number in vars(capabilities).items() if name.isupper()}
    text = (Path(__file__).parents[2] / "docs/security.md").read_text()
    section = text.partition("## A daemon that was taken over")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| (CAP_\w+)", section, re.MULTILINE)) == {names[number] for number in KEPT}


def test_users_are_served_when_the_process_that_starts_others_is_killed(fresh: Ctx) -> None:
    # It ends with a sentence, and nothing of it is left but the mount, which the next one takes away.
    pid = fresh.pid
    assert fresh.call("fs.read", "/etc/hostname", uid=NOBODY).status == 0
    (starter,) = _children(pid)
    os.kill(starter, signal.SIGKILL)
    assert wait_gone(pid)
    log = fresh.state / "daemon.log"
    assert "the process that starts others has ended; the daemon ends, too" in log.read_text()
    log.write_text("")
    until(lambda: [one for one in _everybody() if str(fresh.state) in one], lambda left: not left)
    fresh.ctx("umount", str(fresh.root), check=False)
    fresh.mount()
    assert fresh.call("fs.read", "/etc/hostname").status == 0


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _everybody() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return found
