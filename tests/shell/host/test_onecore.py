"""host/process/wake_affinity.py: a process is woken on the core of its waker, but does not stay there.

On a machine with a single core no process is bound, and there is nothing to see.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.host.esm import child as esmchild
from cortexfs.host.esm import tools
from cortexfs.host.process.wake_affinity import OneCore
from tests.shell import esmodules

EVERY = os.sched_getaffinity(0)
# Reports how many cores it may use, and starts a thread that does not end.
_ASKED = """
import os, sys, threading
for line in sys.stdin:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print(len(os.sched_getaffinity(0)), flush=True)
"""

pytestmark = pytest.mark.skipif(len(EVERY) == 1, reason="this machine has one core alone")


@pytest.fixture
def asked() -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", _ASKED]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        yield child
        assert child.stdin
        child.stdin.close()


def answer(child: subprocess.Popen[str]) -> str:
    assert child.stdin
    assert child.stdout
    print("?", file=child.stdin, flush=True)
    return child.stdout.readline()


def of_threads(pid: int) -> list[set[int]]:
    return [os.sched_getaffinity(int(each.name)) for each in Path(f"/proc/{pid}/task").iterdir()]


def test_it_is_on_one_core_while_it_is_woken_and_free_afterwards(asked: subprocess.Popen[str]) -> None:
    # "no process stays bound", nor does a thread that was started meanwhile
    core = OneCore()
    heard: list[str] = []
    for _ in range(3):
        core.wake(asked.pid, lambda: heard.append(answer(asked)))
        assert all(cores == EVERY for cores in of_threads(asked.pid))
    assert heard == ["1\n"] * 3
    assert len(of_threads(asked.pid)) == 4
    assert os.sched_getaffinity(0) == EVERY


def test_one_that_starts_programs_is_woken_where_the_kernel_likes(asked: subprocess.Popen[str]) -> None:
    heard: list[str] = []
    OneCore(is_used=False).wake(asked.pid, lambda: heard.append(answer(asked)))
    assert heard == [f"{len(EVERY)}\n"]


def test_it_is_free_where_waking_it_fails(asked: subprocess.Popen[str]) -> None:
    def fails() -> None:
        answer(asked)
        raise BlockingIOError

    with pytest.raises(BlockingIOError):
        OneCore().wake(asked.pid, fails)
    assert of_threads(asked.pid) == [EVERY] * 2


def test_a_process_that_has_gone_is_no_error(asked: subprocess.Popen[str]) -> None:
    # "If the kernel refuses to bind it, it is woken on the kernel's choice of core."
    asked.kill()
    asked.wait()
    done: list[bool] = []
    OneCore().wake(asked.pid, lambda: done.append(True))
    assert done == [True]


@pytest.mark.parametrize(("capability", "is_used"), [("fs:write", True), ("shell:run", False)])
def test_a_plugin_that_may_start_programs_is_left_to_the_kernel(
    capability: str, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "Programs that it starts could not be freed, so it must start none."
    made: list[bool] = []

    def one_core(is_used: bool) -> OneCore:
        made.append(is_used)
        raise Fault("EIO", "the test starts no Deno")

    monkeypatch.setattr(esmchild, "OneCore", one_core)
    plugin = esmodules.plugin(tmp_path / "p", esmodules.source({}), capabilities=("tools", capability))
    with pytest.raises(Fault, match="starts no Deno"):
        [*tools.tools(plugin)]
    assert made == [is_used]
