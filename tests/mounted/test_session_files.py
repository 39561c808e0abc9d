"""Files of sessions and common programs (abi.md 5.31)."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, TAIL, Ctx, mounted
from tests.mounted.talking import SCRIPT, Closed, history, one_run, said, talk
from tests.waiting import PATIENCE

ME = os.geteuid()
ECHOS = f"home/{ME}/model/debug/echo.d/session"
FILES = [
    "messages.jsonl",
    "events.jsonl",
    "latest.md",
    "state",
    "cwd",
    "created_at",
    "updated_at",
    "meta.json",
]
needs_root = pytest.mark.skipif(ME != 0, reason="acts as several users, which only root can")


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    """Shared by tests that name their sessions after themselves."""
    with mounted(python) as mount:
        yield mount


def does(mount: Ctx, script: str, uid: int | None = None) -> str:
    """Run a script, which must succeed and print no error; returns its output."""
    done = mount.run(["sh", "-c", script], cwd=mount.root, uid=uid)
    assert (done.returncode, done.stderr) == (0, ""), done
    return str(done.stdout)


def test_a_session_is_ordinary_files(mount: Ctx) -> None:
    # abi.md 5.32
    before = f"{ECHOS}/files"
    assert not (mount.root / before).exists()  # no cache may keep this answer
    heard = said(mount, "how do you do", session="files", cwd="/tmp")
    folder = mount.root / before
    assert sorted(os.listdir(folder)) == sorted(FILES)
    events, said_ = (lines(folder / name) for name in ("events.jsonl", "messages.jsonl"))
    assert [each["id"] for each in events] == [each["id"] for each in heard]
    assert [each["role"] for each in said_] == ["user", "assistant"]
    texts = {name: (folder / name).read_text() for name in FILES}
    assert (texts["latest.md"], texts["state"], texts["cwd"]) == ("how do you do\n", "done\n", "/tmp\n")
    assert json.loads(texts["meta.json"])["session"] == "files"
    # "`session/index/{list,current}` and `by-cwd/<hash>`"
    index = folder.parent / "index"
    assert "files" in (index / "list").read_text().split()
    assert (index / "current").read_text() == "files\n"
    assert "files\n" in [path.read_text() for path in (index / "by-cwd").iterdir()]


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_sizes_times_and_inodes_are_real(mount: Ctx) -> None:
    # abi.md 1.14
    said(mount, "once", session="real")
    seen = {}
    for folder, _, files in os.walk(mount.root / "home"):
        for name in files:
            path = Path(folder, name)
            found = seen[path] = path.stat()
            assert found.st_size == len(path.read_bytes()), path
            disk = mount.state / ("log" if name == "log" else "sessions") / path.relative_to(mount.root)
            assert found.st_mtime_ns == disk.stat().st_mtime_ns, path
    assert len(seen) >= len(FILES)
    assert len({found.st_ino for found in seen.values()}) == len(seen)
    assert {path: path.stat().st_ino for path in seen} == {path: seen[path].st_ino for path in seen}


WALKS = [
    "ls -lR home shared",
    "find home shared -type f -newer /etc/passwd",
    "du -a home",
    "grep -r message home",
    "find home -type f -exec cat {} +",
    "getfattr -hRd -m - home",
]


@pytest.mark.parametrize("command", [*WALKS, "tar cf - home | tar tf -"])
def test_programs_walk_over_sessions_without_an_error(mount: Ctx, command: str) -> None:
    said(mount, "to be walked over", session="walked")
    out = does(mount, command)
    assert "walked" in out or "getfattr" in command


def test_rsync_copies_sessions_and_finds_nothing_new_the_second_time(mount: Ctx, tmp_path: Path) -> None:
    said(mount, "to be copied", session="copied")
    does(mount, f"rsync -a home/ {tmp_path}/")
    assert (tmp_path / f"{ME}/model/debug/echo.d/session/copied/latest.md").read_text() == "to be copied\n"
    assert does(mount, f"rsync -ai home/ {tmp_path}/") == ""
    does(mount, f"diff -r home {tmp_path}")


@pytest.mark.parametrize("option", ["-f", "-F"])
def test_tail_follows_a_session(mount: Ctx, option: str) -> None:
    # abi.md 1.17
    session = f"tailed{option}".replace("-", ".")
    said(mount, "first", session=session)
    with following(mount, option, f"{ECHOS}/{session}/events.jsonl") as tail:
        first = until_done(tail)
        heard = said(mount, "second", session=session)
        assert first + until_done(tail) == history(mount, session)
        assert heard[-1]["id"] in (mount.root / ECHOS / session / "events.jsonl").read_text()


def test_tail_follows_a_session_that_comes_back(mount: Ctx) -> None:
    said(mount, "first", session="again")
    with following(mount, "-F", f"{ECHOS}/again/events.jsonl") as tail:
        until_done(tail)
        does(mount, f"rm -r {ECHOS}/again")
        said(mount, "second life", session="again")
        heard = until_done(tail)
        assert "second life" in json.dumps(heard)
        assert heard == history(mount, "again")


@contextlib.contextmanager
def following(mount: Ctx, option: str, path: str) -> Iterator[subprocess.Popen[str]]:
    words = [TAIL, option, "-s", "0.05", "-n", "+1", path]
    with subprocess.Popen(
        words, cwd=mount.root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as tail:
        deadline = threading.Timer(PATIENCE, tail.kill)
        deadline.start()
        try:
            yield tail
        finally:
            deadline.cancel()
            tail.kill()


def until_done(tail: subprocess.Popen[str]) -> list[dict[str, object]]:
    assert tail.stdout
    frames: list[dict[str, object]] = []
    while not frames or frames[-1]["type"] != "done":
        frames.append(json.loads(tail.stdout.readline()))
    return frames


# Access.


@needs_root
def test_nobody_gets_into_anothers_sessions(mount: Ctx) -> None:
    # abi.md 1.10
    said(mount, "my secret", session="private")
    done = mount.run(["ls", "-R", "home"], cwd=mount.root, uid=NOBODY)
    assert "private" not in done.stdout
    done = mount.run(["cat", f"{ECHOS}/private/latest.md"], cwd=mount.root, uid=NOBODY)
    assert "ermission denied" in done.stderr
    done = mount.run(["rm", "-r", f"{ECHOS}/private"], cwd=mount.root, uid=NOBODY)
    assert "ermission denied" in done.stderr
    assert history(mount, "private")


@needs_root
def test_a_user_reads_and_removes_his_own(mount: Ctx) -> None:
    with talk(mount, uid=NOBODY) as client:
        client.send("mine", session="own")
        client.until("done")
    path = f"home/{NOBODY}/model/debug/echo.d/session/own"
    assert does(mount, f"cat {path}/latest.md", NOBODY) == "mine\n"
    assert does(mount, f"stat -c '%U %A' {path} {path}/state", NOBODY).split("\n")[:2] == [
        "nobody drwx------",
        "nobody -rw-------",
    ]
    assert on_a_terminal(mount, ["rm", "-r", path], NOBODY) == (0, b"")  # rm asks no question
    assert not (mount.root / path).exists()
    assert history(mount, "own", uid=NOBODY) == []


def on_a_terminal(mount: Ctx, words: list[str], uid: int) -> tuple[int, bytes]:
    """Run a program on a terminal, where it could ask a question; returns its status and output."""
    outer, inner = pty.openpty()
    try:
        process = subprocess.Popen(
            words,
            cwd=mount.root,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            user=uid,
            group=uid,
            extra_groups=[],
        )
        os.close(inner)
        said_ = b""
        with contextlib.suppress(OSError):  # EIO: the program has closed the terminal
            while data := os.read(outer, 1000):
                said_ += data
                if b"?" in data:
                    process.kill()
        return process.wait(), said_
    finally:
        os.close(outer)


@needs_root
def test_shared_sessions_are_read_by_all_and_removed_by_root(mount: Ctx) -> None:
    # abi.md 5.17
    with talk(mount, uid=NOBODY) as client:
        client.send("for all", session="ours", scope="shared")
        client.until("done")
    path = "shared/main/model/debug/echo.d/session/ours"
    for uid in (NOBODY, 12345):
        assert does(mount, f"cat {path}/latest.md", uid) == "for all\n"
        done = mount.run(["rm", "-rf", path], cwd=mount.root, uid=uid)
        assert "ermission denied" in done.stderr
    does(mount, f"rm -r {path}")
    assert not (mount.root / path).exists()


@needs_root
def test_a_home_is_there_after_a_restart_for_who_has_sessions(fresh: Ctx) -> None:
    with talk(fresh, uid=4321) as client:
        client.send("mine", session="kept")
        client.until("done")
    assert "4321" in os.listdir(fresh.root / "home")
    fresh.umount()
    fresh.mount()
    path = fresh.root / "home/4321/model/debug/echo.d/session/kept/latest.md"
    assert path.read_text() == "mine\n"  # by its name, before any listing
    assert stat.filemode((fresh.root / "home/4321").stat().st_mode) == "drwx------"
    assert "4321" in os.listdir(fresh.root / "home")


# Removal.


def test_rm_removes_a_session_at_once(mount: Ctx) -> None:
    # abi.md 5.33
    for session in ("gone", "stays"):
        said(mount, "soon gone", session=session)
    does(mount, f"rm -r {ECHOS}/gone")
    assert not (mount.root / ECHOS / "gone").exists()
    assert "gone" not in os.listdir(mount.root / ECHOS)
    assert "gone" not in (mount.root / ECHOS / "index/list").read_text().split()
    assert history(mount, "gone") == []
    assert history(mount, "stays")
    assert not (mount.state / "sessions" / ECHOS / "gone").exists()


@pytest.mark.parametrize(
    "script",
    [
        "rm -r {}",
        "rm {0}/* && rmdir {0}",
        "find {} -delete",
        "find {0} -type f -exec rm {{}} \\; && rmdir {0}",
        "python3 -c 'import shutil; shutil.rmtree(\"{}\")'",
        "mv {} $(mktemp -d)/",
    ],
)
def test_whatever_removes_a_session_has_nothing_to_complain_about(mount: Ctx, script: str) -> None:
    said(mount, "soon gone", session="swept")
    does(mount, script.format(f"{ECHOS}/swept"))
    assert not (mount.root / ECHOS / "swept").exists()
    assert one_run(said(mount, "here again", session="swept"))
    assert (mount.root / ECHOS / "swept/latest.md").read_text() == "here again\n"


def test_a_session_that_runs_is_ended_by_its_removal(mount: Ctx) -> None:
    with talk(mount, SCRIPT) as client:
        client.play({"delta": "begun"}, {"sleep": 600}, session="runs")
        client.until("delta")
        folder = mount.root / f"home/{ME}/model/debug/script.d/session/runs"
        assert (folder / "state").read_text() == "active\n"
        does(mount, f"rm -r {folder}")
        with contextlib.suppress(Closed):
            assert client.until("error")[-1]["code"] == "ENOENT"
        assert not folder.exists()
    assert history(mount, "runs", SCRIPT) == []


def test_the_sessions_of_an_object_go_with_its_folder_and_aliases_stay(fresh: Ctx) -> None:
    for session in ("a", "b"):
        said(fresh, "hello", session=session)
    os.symlink("x", fresh.root / f"home/{ME}/model/mine")
    does(fresh, f"rm -r home/{ME}/model/debug/echo.d")
    assert sorted(os.listdir(fresh.root / f"home/{ME}/model")) == ["debug", "mine"]
    does(fresh, f"rm -r home/{ME}/model/debug")
    assert os.listdir(fresh.root / f"home/{ME}/model") == ["mine"]
    said(fresh, "hello", session="c")
    assert sorted(os.listdir(fresh.root / ECHOS)) == ["c", "index"]


def test_who_stands_in_a_session_that_went_does_not_spoil_the_next(mount: Ctx) -> None:
    said(mount, "first", session="stood")
    folder = mount.root / ECHOS / "stood"
    inside = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    log = os.open(folder / "events.jsonl", os.O_RDONLY)
    try:
        does(mount, f"rm -r {folder}")
        assert os.fstat(inside).st_nlink == os.fstat(log).st_nlink == 0
        said(mount, "second", session="stood")
        assert (folder / "latest.md").read_text() == "second\n"
        assert os.listdir(inside) == []
        assert b"first" in os.read(log, 10_000)  # as on other file systems, an open file stays
    finally:
        os.close(inside)
        os.close(log)


@pytest.mark.parametrize(
    "script",
    [
        "touch {}/x",
        "mkdir {}/x",
        "ln -s x {}/x",
        "mv {0}/state {0}/x",
        "echo x > {}/state",
        "echo x >> {}/events.jsonl",
        "truncate -s 0 {}/events.jsonl",
        "chmod 644 {}/state",
        "touch -d 2020-01-01 {}/state",
        "rm {}/.run.sock",
        "mkfifo {}/x",
    ],
)
def test_nothing_can_be_written(mount: Ctx, script: str) -> None:
    said(mount, "hello", session="fixed")
    done = mount.run(["sh", "-c", script.format(f"{ECHOS}/fixed")], cwd=mount.root)
    assert done.returncode
    assert "Read-only file system" in done.stderr
    assert (mount.root / ECHOS / "fixed/latest.md").read_text() == "hello\n"


def test_a_folder_of_sessions_hides_an_alias_of_its_name_while_it_is_there(fresh: Ctx) -> None:
    model = fresh.root / f"home/{ME}/model"
    os.symlink("/elsewhere", model / "debug")
    assert os.readlink(model / "debug") == "/elsewhere"
    said(fresh, "hello")
    assert os.listdir(model / "debug") == ["echo.d"]
    does(fresh, f"rm -r {model}/debug")
    assert os.readlink(model / "debug") == "/elsewhere"


def test_programs_walk_while_sessions_come_and_go(fresh: Ctx) -> None:
    said(fresh, "hello", session="stays")
    stop = threading.Event()

    def write() -> None:
        with talk(fresh) as client:
            while not stop.is_set():
                client.send("more " * 50, session="stays")
                client.until("done")

    def come_and_go() -> None:
        with talk(fresh) as client:
            while not stop.is_set():
                client.send("hello", session="goes")
                client.until("done")
                does(fresh, f"rm -r {ECHOS}/goes")

    def walk(allowed: str) -> None:
        for command in WALKS:
            done = fresh.run(["sh", "-c", command], cwd=fresh.root)
            assert done.stdout or "getfattr" in command
            wrong = [line for line in done.stderr.splitlines() if allowed not in line]
            assert not wrong, command

    for work, allowed in ((write, "\0"), (come_and_go, "No such file or directory")):
        threads = [threading.Thread(target=work)]
        threads[0].start()
        try:
            walk(allowed)
        finally:
            stop.set()
            threads[0].join()
            stop.clear()
    assert fresh.status["bugs met"] == "0"
