"""Logs of runs on a mount of root's that several users use.

abi.md 3.19
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, TAIL, Ctx, mounted
from tests.mounted.talking import talk
from tests.waiting import until

ME = os.geteuid()
OTHER = 65533
COUNT = "tool/text.word_count"
ECHO = "model/debug/echo"
needs_root = pytest.mark.skipif(ME != 0, reason="acts as several users, which only root can")


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    with mounted(python, ["faulty"]) as mount:
        yield mount


def ran(ctx: Ctx, path: str, uid: int | None = None) -> str:
    """Run the object as a user; returns the id of the run."""
    done = ctx.run([str(ctx.root / path), "some words"], uid=uid)
    assert done.returncode == 0, done
    return str(json.loads(done.stdout.splitlines()[0])["run"])


def sh(ctx: Ctx, script: str, uid: int | None = None) -> tuple[int, str]:
    done = ctx.run(["sh", "-c", script], cwd=ctx.root, uid=uid)
    return done.returncode, done.stdout + done.stderr


def runs(text: str) -> list[str]:
    return [json.loads(line)["run"] for line in text.splitlines()]


def looks(ctx: Ctx, path: str, uid: int) -> list[Any]:
    """Returns all that a user can learn about a log without reading it."""
    folder, _, name = path.rpartition("/")
    seen = ["stat -c '%s %b %Y %Z %X %i %a %u' " + path, f"ls -il --full-time {folder} | grep {name}"]
    seen += [f"getfattr -d {path}", f"find {folder} -newermt '10 seconds ago' -size +0 -name {name}"]
    return [sh(ctx, script, uid) for script in seen]


@needs_root
@pytest.mark.parametrize("path", [COUNT, ECHO])
def test_each_user_reads_his_own_lines_and_the_owner_reads_all(mount: Ctx, path: str) -> None:
    by_user = {uid: [ran(mount, path, uid) for _ in range(2)] for uid in (NOBODY, OTHER)}
    log = mount.root / f"{path}.d/log"
    assert stat.filemode(log.stat().st_mode) == "-rw-------"
    of_all = runs(log.read_text())
    for uid, own in by_user.items():
        assert set(own) <= set(of_all)
        mine = f"home/{uid}/{path}.d/log"
        status, text = sh(mount, f"cat {mine}", uid)
        assert (status, runs(text)[-2:]) == (0, own)
        assert {json.loads(line)["uid"] for line in text.splitlines()} == {uid}
        assert sh(mount, f"stat -c '%A %u %s' {mine}", uid) == (0, f"-rw------- {uid} {len(text)}\n")
        refused, said = sh(mount, f"cat {path}.d/log", uid)
        assert (refused, "Permission denied" in said) == (1, True)
        for flags in ("r+b", "ab"):
            with pytest.raises(OSError, match="Read-only"):
                (mount.root / mine).open(flags)
    status, said = sh(mount, f"cat home/{OTHER}/{path}.d/log", NOBODY)
    assert (status, "Permission denied" in said) == (1, True)


@needs_root
def test_a_home_shows_what_its_user_has_run_and_nothing_else(fresh: Ctx) -> None:
    ran(fresh, COUNT, NOBODY)
    ran(fresh, ECHO, NOBODY)
    ran(fresh, "tool/show.types", OTHER)
    home = f"home/{NOBODY}"
    assert sh(fresh, f"cd {home} && find . -type f", NOBODY) == (0, f"./{ECHO}.d/log\n./{COUNT}.d/log\n")
    assert sh(fresh, f"ls {home}/tool {home}/tool/*", NOBODY)[1].split() == [
        f"{home}/tool:",
        "text.word_count.d",
        f"{home}/tool/text.word_count.d:",
        "log",
    ]
    fresh.umount()
    fresh.mount()  # the log is kept, and the next run is added to it
    assert len(runs(sh(fresh, f"cat {home}/{COUNT}.d/log", NOBODY)[1])) == 1
    ran(fresh, COUNT, NOBODY)
    assert len(runs(sh(fresh, f"cat {home}/{COUNT}.d/log", NOBODY)[1])) == 2


def test_of_an_owner_who_is_alone_both_show_the_same(fresh: Ctx) -> None:
    for path in (COUNT, ECHO):
        id_ = ran(fresh, path)
        both = [(fresh.root / f"{above}{path}.d/log").read_text() for above in ("", f"home/{ME}/")]
        assert both[0] == both[1]
        assert runs(both[0]) == [id_]


@needs_root
@pytest.mark.parametrize("path", [COUNT, ECHO])
def test_nobody_sees_of_a_log_that_somebody_else_ran(mount: Ctx, path: str) -> None:
    # An inode of mode 0600 still shows its size and its times to stat(2).
    log = f"{path}.d/log"
    before, size = looks(mount, log, NOBODY), (mount.root / log).stat().st_size
    ran(mount, path, OTHER)
    assert looks(mount, log, NOBODY) == before
    assert (mount.root / log).stat().st_size > size
    assert looks(mount, log, NOBODY) == before  # root's stat does not change what others see
    assert len((mount.root / log).read_bytes()) == (mount.root / log).stat().st_size
    assert before[0][1].startswith("0 0 ")


@needs_root
def test_who_looks_at_a_log_disturbs_no_reader_of_it(mount: Ctx) -> None:
    ran(mount, COUNT, OTHER)
    with open(mount.root / f"{COUNT}.d/log", "rb") as log:
        whole = log.read()
        sh(mount, f"stat {COUNT}.d/log; ls -l {COUNT}.d", NOBODY)
        assert os.fstat(log.fileno()).st_size == log.seek(0, os.SEEK_END) == len(whole)
        log.seek(0)
        assert log.read() == whole


@needs_root
def test_status_names_nothing_that_somebody_ran(mount: Ctx) -> None:
    # abi.md 1.2 has the words of status, which everybody may read
    crashed = mount.call("bad.raise", uid=OTHER)
    assert crashed.code == "EPROTO"
    said = mount.status
    assert said["last error"] == "a run ended with EPROTO; the log of its object says which"
    assert not [word for word in ("bad.raise", str(OTHER), crashed.frames[0]["run"]) if word in str(said)]
    assert crashed.frames[0]["run"] in (mount.root / "tool/bad.raise.d/log").read_text()


@needs_root
def test_runs_of_one_user_do_not_rotate_away_anothers(python: Path) -> None:
    with mounted(python, config="[limits]\nlog_kib = 4\n") as ctx:
        mine = ran(ctx, COUNT, NOBODY)
        for _ in range(60):
            last = ran(ctx, COUNT, OTHER)
        assert mine not in (ctx.root / f"{COUNT}.d/log").read_text()
        assert runs(sh(ctx, f"cat home/{NOBODY}/{COUNT}.d/log", NOBODY)[1]) == [mine]
        others = ctx.root / f"home/{OTHER}/{COUNT}.d/log"
        assert runs(others.read_text())[-1] == last
        assert others.stat().st_size <= 4096


@needs_root
def test_tail_follows_a_log_and_begins_anew_with_it(python: Path) -> None:
    with mounted(python, config="[limits]\nlog_kib = 4\n") as ctx:
        first = ran(ctx, COUNT, NOBODY)
        words = [TAIL, "-n", "+1", "-s", "0.05", "-F", f"home/{NOBODY}/{COUNT}.d/log"]
        with subprocess.Popen(
            words, cwd=ctx.root, user=NOBODY, group=NOBODY, extra_groups=[],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        ) as tail:  # fmt: skip
            try:
                assert tail.stdout
                ids = [first]
                assert json.loads(tail.stdout.readline())["run"] == first
                for _ in range(50):  # more than two rotations
                    ids.append(ran(ctx, COUNT, NOBODY))
                    assert json.loads(tail.stdout.readline())["run"] == ids[-1]
                sh(ctx, f"rm home/{NOBODY}/{COUNT}.d/log", NOBODY)
                ids.append(ran(ctx, COUNT, NOBODY))
                assert json.loads(tail.stdout.readline())["run"] == ids[-1]
            finally:
                tail.kill()


@needs_root
def test_a_log_that_its_user_removes_begins_anew(mount: Ctx) -> None:
    # docs/ctx.md: "`rm` of one forgets what it said, and your next run begins it anew"
    log = f"home/{NOBODY}/tool/show.types.d/log"
    ran(mount, "tool/show.types", NOBODY)
    assert sh(mount, f"test -s {log}", NOBODY)[0] == 0
    kept = mount.state / "log" / log
    kept.with_name("log.1").write_text("older\n")
    assert sh(mount, f"rm {log}; ls {Path(log).parent}", NOBODY) == (0, "")
    assert not kept.with_name("log.1").exists()
    id_ = ran(mount, "tool/show.types", NOBODY)
    assert runs(sh(mount, f"cat {log}", NOBODY)[1]) == [id_]
    assert sh(mount, f"rm -r {Path(log).parent}; ls home/{NOBODY}/tool | grep show", NOBODY) == (1, "")
    assert not kept.parent.exists()
    assert id_ in (mount.root / "tool/show.types.d/log").read_text()  # the owner's stays
    assert sh(mount, f"rm -f {COUNT}.d/log", NOBODY)[0] == 1
    assert sh(mount, f"touch home/{NOBODY}/tool/x.d; mkdir home/{NOBODY}/tool/y.d", NOBODY)[0] == 1


@needs_root
def test_a_folder_goes_with_its_sessions_while_one_of_them_runs(mount: Ctx) -> None:
    # The run ends after `rm -r` has removed the log, and its end is one more line there.
    folder = f"home/{NOBODY}/model/debug/script.d"
    for number in range(5):
        with talk(mount, "model/debug/script.sock", NOBODY) as client:
            client.send('[{"delta":"x"},{"hang":true}]', session=f"s{number}")
            client.until("delta")
            assert sh(mount, f"test -d {folder}/session && rm -r {folder}", NOBODY) == (0, "")
    assert sh(mount, f"test -e {folder}/session", NOBODY)[0] == 1


@needs_root
def test_a_message_on_a_socket_is_told_beside_its_session(mount: Ctx) -> None:
    with talk(mount, f"{ECHO}.sock", OTHER) as client:
        client.send("a message", session="logged")
        client.until("done")
    log = f"home/{OTHER}/{ECHO}.d"
    assert json.loads(sh(mount, f"tail -n 1 {log}/log", OTHER)[1])["source"] == "socket"
    assert sh(mount, f"ls {log}", OTHER)[1].split() == ["log", "session"]


@needs_root
def test_links_among_the_logs_on_disk_are_not_followed(mount: Ctx) -> None:
    ran(mount, COUNT, NOBODY)
    secret = mount.work / "secret"
    secret.write_text("a secret")
    log = mount.state / f"log/home/{NOBODY}/tool/link.d/log"
    log.parent.mkdir()
    log.symlink_to(secret)
    until(lambda: sh(mount, f"ls home/{NOBODY}/tool/link.d", NOBODY), lambda seen: seen == (0, ""))
    assert sh(mount, f"cat home/{NOBODY}/tool/link.d/log", NOBODY)[0] == 1
    log.unlink()
    log.parent.rmdir()
