"""shell.exec: all the output of a command, its end, and no process left after it.

Processes are recognised by a variable of their environment, and their end is awaited on their pidfd.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cortexfs.sdk import MemoryRuntime
from cortexfs.tools.support import process_groups
from tests.shell.tools.test_tools import Ran, as_nobody, call, standing
from tests.waiting import PATIENCE


class Marked:
    """The commands of one test, and the processes that are left of them."""

    def __init__(self) -> None:
        self.name = f"MARK_{uuid.uuid4().hex}"
        self.environ = {"PATH": os.defpath, self.name: "1"}

    def processes(self) -> list[int]:
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                if self.name.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(int(pid))
        return found

    def left(self) -> list[int]:
        """Returns the processes that are still there after killed processes had time to end."""
        return [pid for pid in self.processes() if not ended(pid)]

    def runtime(self, on_output: Callable[[MemoryRuntime], object] = lambda _: None) -> MemoryRuntime:
        class Runtime(MemoryRuntime):
            def emit(self, text: str) -> None:
                super().emit(text)
                on_output(self)

        return Runtime("shell.exec", self.environ)


def ended(pid: int) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        return bool(poller.poll(PATIENCE * 1000))
    finally:
        os.close(fd)


@pytest.fixture
def marked() -> Iterator[Marked]:
    """Every test here also proves that no process and no descriptor is left."""
    descriptors = len(os.listdir("/proc/self/fd"))
    marked = Marked()
    yield marked
    assert marked.left() == []
    assert len(os.listdir("/proc/self/fd")) == descriptors


def shell(marked: Marked, cmd: str, **more: object) -> Ran:
    return call("shell.exec", marked.runtime(), cmd=cmd, **more)


def test_output_is_exact_and_in_order(marked: Marked) -> None:
    assert shell(marked, "printf 'a\\r\\n'; echo b >&2; printf c") == Ran("a\r\nb\nc")
    assert shell(marked, "true") == Ran("")
    assert shell(marked, "printf 'é\\377é'").text == "é\ufffdé"


@pytest.mark.parametrize(
    ("cmd", "said"),
    [
        ("echo x; exit 3", "exit status 3"),
        ("echo x; kill -9 $$", "killed by signal 9"),
        ("echo x; nonesuch", "127"),
    ],
)
def test_any_other_end_than_0_is_an_error_after_the_output(marked: Marked, cmd: str, said: str) -> None:
    # abi.md 4.29
    ran = shell(marked, cmd)
    assert ran.text.startswith("x\n")
    assert ran.code == "EIO"
    assert ran.message.endswith(said)


def test_output_comes_while_the_command_runs(marked: Marked) -> None:
    # the call ends only because its first line was seen
    runtime = marked.runtime(lambda runtime: runtime.cancel() if runtime.text == "first\n" else None)
    assert call("shell.exec", runtime, cmd="echo first; sleep 1000; echo never").code == "ECANCELED"
    assert runtime.text == "first\n"


def test_characters_cut_by_a_read_are_whole(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_groups, "CHUNK", 1)
    assert shell(marked, "printf 'é€😀\\342\\202'").text == "é€😀\ufffd"


def test_a_flood_is_read_to_its_end(marked: Marked) -> None:
    ran = shell(marked, "yes 0123456 | head -n 1000000")
    assert ran.text == "0123456\n" * 1_000_000


def test_a_flood_without_end_ends_with_the_caller(marked: Marked) -> None:
    # abi.md 4.22
    runtime = marked.runtime(lambda runtime: runtime.cancel() if len(runtime.emitted) == 50 else None)
    assert call("shell.exec", runtime, cmd="yes").code == "ECANCELED"
    assert runtime.text.startswith("y\n")


def test_a_flood_without_end_ends_in_time(marked: Marked) -> None:
    ran = shell(marked, "yes > /dev/stderr", timeout_secs=0.3)
    assert ran.code == "ETIMEDOUT"
    assert "0.3 s" in ran.message


def test_a_slow_reader_loses_nothing(marked: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_groups, "LINGER", 0)

    def wait_for_the_end(runtime: MemoryRuntime) -> None:
        if len(runtime.emitted) == 1:
            assert all(ended(pid) for pid in marked.processes())

    runtime = marked.runtime(wait_for_the_end)
    ran = call("shell.exec", runtime, cmd="echo; head -c 60000 /dev/zero | tr '\\0' x")
    assert ran.text == "\n" + "x" * 60_000


def test_input_is_empty_unless_given(marked: Marked) -> None:
    assert shell(marked, "cat; test -t 0 || echo no terminal").text == "no terminal\n"
    assert shell(marked, "cat", stdin="é\n" * 300_000).text == "é\n" * 300_000


def test_input_may_be_ignored(marked: Marked) -> None:
    assert shell(marked, "echo done", stdin="x" * 1_000_000).text == "done\n"


def test_a_child_that_keeps_the_pipe_does_not_keep_the_call(marked: Marked) -> None:
    assert shell(marked, "sleep 1000 & echo hi") == Ran("hi\n")
    assert shell(marked, "(trap '' TERM HUP; sleep 1000) & echo hi").text == "hi\n"
    assert shell(marked, "yes & exit 0").code == ""


def test_a_child_without_the_pipe_is_ended_too(marked: Marked) -> None:
    assert shell(marked, "sleep 1000 >/dev/null 2>&1 & echo hi") == Ran("hi\n")


def test_a_shell_that_closes_its_output_is_waited_for(marked: Marked, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    opener = threading.Thread(target=lambda: open(tmp_path / "go", "w").close())
    opener.start()
    assert shell(marked, f"exec >&- 2>&-; read x < {tmp_path}/go; exit 4").message == "exit status 4"
    opener.join()


def test_who_ignores_sigterm_is_killed(marked: Marked) -> None:
    runtime = marked.runtime(lambda runtime: runtime.cancel())
    cmd = "trap '' TERM; echo x; while :; do sleep 1000; done"
    assert call("shell.exec", runtime, cmd=cmd).code == "ECANCELED"
    assert shell(marked, "trap '' TERM; sleep 1000; sleep 1000", timeout_secs=0.1).code == "ETIMEDOUT"


def test_a_stopped_command_is_ended(marked: Marked) -> None:
    assert shell(marked, "kill -STOP $$", timeout_secs=0.1).code == "ETIMEDOUT"


def test_who_minds_sigterm_may_clean_up(
    marked: Marked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_groups, "GRACE", PATIENCE)
    runtime = marked.runtime(lambda runtime: runtime.cancel())
    cmd = f"trap 'echo cleaned > {tmp_path}/x; exit' TERM; echo ready; sleep 1000 >/dev/null 2>&1 & wait"
    assert call("shell.exec", runtime, cmd=cmd).code == "ECANCELED"
    assert (tmp_path / "x").read_text() == "cleaned\n"


def test_a_call_that_is_cancelled_before_it_begins_runs_nothing_on(marked: Marked) -> None:
    runtime = marked.runtime()
    runtime.cancel()
    assert call("shell.exec", runtime, cmd="sleep 1000").code == "ECANCELED"


def test_a_cancel_after_the_end_touches_nothing(marked: Marked) -> None:
    runtime = marked.runtime()
    assert call("shell.exec", runtime, cmd="echo x") == Ran("x\n")
    runtime.cancel()


class Cancelled(BaseException):
    """Raised as a host raises a cancellation, anywhere in a tool."""


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # dropped files close themselves
def test_a_cancellation_at_any_instruction_leaves_nothing(marked: Marked) -> None:
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    for turn in range(30):
        runtime, begun = marked.runtime(), threading.Event()

        def work(runtime: MemoryRuntime = runtime, begun: threading.Event = begun, turn: int = turn) -> None:
            try:
                begun.set()
                cmd = "echo x" if turn % 3 else "sleep 1000 & sleep 1000"
                call("shell.exec", runtime, cmd=cmd)
                while True:
                    os.sched_yield()
            except Cancelled:
                pass

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait()
        for _ in range(turn * 40):
            os.stat("/")
        runtime.cancel()
        raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Cancelled))
        thread.join()


def test_environment_and_directory(marked: Marked, tmp_path: Path) -> None:
    (tmp_path / "-sub").mkdir()
    os.environ["OF_THE_HOST"] = "secret"
    try:
        ran = shell(marked, 'echo "$NEW $OF_THE_HOST $HOME"; pwd', env={"NEW": "é ="}, cwd=str(tmp_path))
    finally:
        del os.environ["OF_THE_HOST"]
    assert ran.text == f"é =  \n{tmp_path}\n"
    assert (
        standing(tmp_path, lambda: shell(marked, "pwd", cwd="-sub", env={"CDPATH": "/"}).text)
        == f"{tmp_path}/-sub\n"
    )


@pytest.mark.parametrize(
    ("input", "code"),
    [
        ({"cmd": "a\0b"}, "EINVAL"),
        ({"cmd": "x" * 200_000}, "EINVAL"),
        ({"cmd": ":", "timeout_secs": 0}, "EINVAL"),
        ({"cmd": ":", "timeout_secs": float("nan")}, "EINVAL"),
        ({"cmd": ":", "env": {"": "x"}}, "EINVAL"),
        ({"cmd": ":", "env": {"a=b": "x"}}, "EINVAL"),
        ({"cmd": ":", "env": {"a": "x\0"}}, "EINVAL"),
        ({"cmd": ":", "cwd": ""}, "EINVAL"),
        ({"cmd": ":", "cwd": "/nonesuch"}, "ENOENT"),
        ({"cmd": ":", "cwd": "/etc/passwd"}, "ENOTDIR"),
    ],
)
def test_what_cannot_be_started_says_why(marked: Marked, input: dict[str, object], code: str) -> None:
    assert call("shell.exec", marked.runtime(), **input).code == code


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_a_closed_directory_is_eacces(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    assert as_nobody(tmp_path, lambda: call("shell.exec", cmd=":", cwd="closed").code) == "EACCES"


def test_signals_begin_as_in_a_login_shell(marked: Marked) -> None:
    # Python ignores SIGPIPE, and a thread may block signals; the command must see neither
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        text = shell(marked, "grep -E 'Sig(Blk|Ign)' /proc/self/status").text
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    libc_keeps = 3 << 31  # signals 32 and 33, which are hidden from programs
    assert [int(line.split()[1], 16) & ~libc_keeps for line in text.splitlines()] == [0, 0]


def test_it_has_a_session_of_its_own(marked: Marked) -> None:
    pid, group, session = shell(marked, "echo $$; cut -d' ' -f5,6 /proc/$$/stat").text.split()
    assert pid == group == session


def test_descriptors_of_the_host_stay_with_it(marked: Marked, tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w"):
        text = shell(marked, "ls -l /proc/$$/fd", stdin="x").text
    assert text.count("memfd:stdin") == 1
    assert text.count("pipe:") >= 2
    assert "secret" not in text
    assert "eventfd" not in text
    assert "pidfd" not in text


def test_a_limit_of_the_host_is_not_the_commands(marked: Marked) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = "unlimited" if hard == resource.RLIM_INFINITY else str(hard >> 10)
    resource.setrlimit(resource.RLIMIT_DATA, (64 << 30, hard))
    try:
        assert shell(marked, 'ulimit -S -d; echo "$0"', cwd="/").text == f"{wanted}\n/bin/sh\n"
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def test_calls_side_by_side_do_not_meet(marked: Marked) -> None:
    barrier = threading.Barrier(4)
    texts: list[str] = []

    def one(number: int) -> None:
        barrier.wait()
        texts.append(shell(marked, f"cat; exit {number}", stdin=str(number)).message)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts) == [f"exit status {number}" for number in range(1, 5)]
