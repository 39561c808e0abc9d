"""The identity that a tool runs as: abi.md 4.34, with a root daemon and several users."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, Answer, Ctx

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="several users need a root daemon")


def who(ctx: Ctx, prefix: list[str] | None = None, **options: Any) -> dict[str, Any]:
    answer = Answer(ctx.run([*(prefix or []), ctx.tool("show.who")], text=False, input=b"", **options))
    assert answer.status == 0, answer
    seen: dict[str, Any] = json.loads(answer.output)
    return seen


def test_uid_gid_and_groups_are_the_callers(ctx: Ctx) -> None:
    seen = who(ctx, uid=NOBODY)
    assert (seen["uid"], seen["gid"], seen["groups"]) == (NOBODY, NOBODY, [])
    seen = who(ctx, user=NOBODY, group=1000, extra_groups=[1000, 2000])
    assert (seen["uid"], seen["gid"], seen["groups"]) == (NOBODY, 1000, [1000, 2000])


def test_one_may_have_all_the_groups_that_there_can_be(ctx: Ctx) -> None:
    # abi.md 4.35; NGROUPS_MAX of <linux/limits.h>, in 11 digits each
    groups = list(range(2**32 - 2 - 65536, 2**32 - 2))
    assert who(ctx, user=NOBODY, group=1000, extra_groups=groups)["groups"] == groups
    assert who(ctx, user=0, group=0, extra_groups=groups)["groups"] == groups
    assert who(ctx, uid=NOBODY)["groups"] == []  # and other users still get hosts


def test_cwd_and_umask_are_the_callers(ctx: Ctx) -> None:
    place = ctx.work / "place"
    place.mkdir()
    seen = who(ctx, cwd=place, umask=0o027)
    assert (seen["cwd"], seen["umask"]) == (str(place), 0o027)


def test_no_capabilities_and_no_new_privileges(ctx: Ctx) -> None:
    seen = who(ctx, uid=NOBODY)
    assert int(seen["caps"], 16) == 0
    assert int(seen["bounding"], 16) == 0
    assert seen["no_new_privs"] == "1"


def test_nothing_of_the_daemon_is_inherited(ctx: Ctx) -> None:
    seen = who(ctx, uid=NOBODY)
    assert "CTX_STATE" not in seen["environ"]
    files = [
        path for path in seen["fds"] if path.startswith("/") and not path.startswith(("/dev/null", "/proc"))
    ]
    assert files == [str(ctx.work)]  # the caller's own working directory


def test_files_a_tool_writes_belong_to_the_caller(ctx: Ctx) -> None:
    # issue: "files it writes are its own"
    path = ctx.work / "own"
    assert ctx.call("fs.write", str(path), "mine", uid=NOBODY, umask=0o077).status == 0
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (NOBODY, NOBODY, 0o600)


@pytest.mark.parametrize("through", ["", "link"])
def test_what_may_not_be_read(ctx: Ctx, through: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    # issue: "uid 65534 gets EACCES (13) for what it may not read, for fs.*, shell.exec and through links"
    private = ctx.work / f"private{through}"
    private.mkdir(mode=0o700)
    (private / "file").write_text("root's")
    path = private / "file"
    if through:
        path = ctx.work / "to-private"
        path.symlink_to(private / "file")
    for name, arguments in {
        "fs.read": [str(path)],
        "fs.search": ["root", f"path={private}"],
        "fs.list": [f"path={private}"],
        "fs.stat": [str(path), "follow=true"],
        "fs.glob": ["*", f"path={private}"],
        "fs.write": [str(path), "mine"],
        "fs.replace": [str(path), "old=root", "new=mine"],
    }.items():
        answer = ctx.call(name, *arguments, uid=NOBODY)
        assert (answer.status, answer.code) == (13, "EACCES"), (name, answer)
    answer = ctx.call("shell.exec", f"cat {path}", uid=NOBODY)
    assert answer.status == 1
    assert "Permission denied" in answer.output


def test_a_working_directory_that_may_not_be_entered(ctx: Ctx) -> None:
    # design: "a failing fchdir on the caller's cwd is an EACCES frame"
    closed = ctx.work / "closed"
    closed.mkdir(mode=0o700)
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    answer = Answer(ctx.run([*drop, ctx.tool("show.who")], cwd=closed, input=b"", text=False))
    assert (answer.status, answer.code) == (13, "EACCES"), answer
    assert "working directory" in answer.message


def test_no_other_users_home(ctx: Ctx) -> None:
    # abi.md 1.10
    assert (
        ctx.run(["ls", str(ctx.root / "home" / "1234")], user=1234, group=1234, extra_groups=[]).returncode
        == 0
    )
    done = ctx.run(["ls", str(ctx.root / "home" / "1234")], uid=NOBODY)
    assert done.returncode == 2
    assert "Permission denied" in done.stderr


def test_hosts_of_others_are_out_of_reach(ctx: Ctx) -> None:
    # issue: "its tool cannot signal, ptrace or read the memory of another's host or of the daemon"
    victims = [ctx.pid, who(ctx)["pid"], who(ctx, user=1234, group=1234, extra_groups=[])["pid"]]
    for pid in victims:
        answer = ctx.call("show.kill", str(pid), uid=NOBODY)
        assert "yes" not in answer.output, answer


def test_a_private_mount_namespace(ctx: Ctx, tmp_path: Path) -> None:
    # abi.md 4.35
    place = ctx.work / "ns"
    place.mkdir()
    (place / "outer").write_text("outer")
    script = 'mount -t tmpfs none "$1" && echo inner > "$1/inner" && "$2" path="$1"; "$3" "$1/outer"'
    done = ctx.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(place), ctx.tool("fs.list"), ctx.tool("fs.read")]
    )
    assert "inner" in done.stdout
    assert '"code":"ENOENT"' in done.stdout
    assert '"outer"' not in done.stdout


def test_a_container_with_device_rules_of_its_own(ctx: Ctx) -> None:
    # abi.md 4.35: a host is not under the caller's device cgroup
    group = Path("/sys/fs/cgroup/devices" if Path("/sys/fs/cgroup/devices").exists() else "/sys/fs/cgroup")
    mine = group / f"ctx-test-{os.getpid()}"
    mine.mkdir()
    try:
        call = f'echo $$ > {mine}/cgroup.procs && exec "$@"'
        inside = ["sh", "-c", call, "sh", "unshare", "-m", ctx.tool("text.word_count"), "x"]
        answer = Answer(ctx.run(inside, text=False))
        assert (answer.status, answer.code) == (13, "EACCES"), answer
        assert "device rules" in answer.message
        inside = ["sh", "-c", call, "sh", ctx.tool("text.word_count"), "x"]
        assert Answer(ctx.run(inside, text=False)).status == 0  # this caller sees the daemon's mounts
    finally:
        mine.rmdir()


def test_a_user_namespace_gives_nothing(ctx: Ctx) -> None:
    # abi.md 4.35
    secret = ctx.work / "secret-userns"
    secret.write_text("root's")
    secret.chmod(0o600)
    done = ctx.run(["unshare", "-Ur", ctx.tool("fs.read"), str(secret)], uid=NOBODY)
    assert "root's" not in done.stdout
    assert '"code":"EACCES"' in done.stdout


def test_without_capabilities_root_is_nobody_special(ctx: Ctx) -> None:
    other = ctx.work / "others"
    other.write_text("1234's")
    os.chown(other, 1234, 1234)
    other.chmod(0o600)
    assert ctx.call("fs.read", str(other)).output == "1234's"
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    done = ctx.run([*drop, ctx.tool("fs.read"), str(other)])
    assert '"code":"EACCES"' in done.stdout
    seen = who(ctx, drop)
    assert int(seen["caps"], 16) == 0


def test_in_a_container_that_sees_the_tree_but_not_run(ctx: Ctx) -> None:
    # issue: "other mount namespaces (a container that sees the tree but not /run)"
    words = [
        "bwrap",
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/lib",
        "/lib",
        "--symlink",
        "usr/lib64",
        "/lib64",
    ]
    words += [
        "--symlink",
        "usr/bin",
        "/bin",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--unshare-pid",
        "--tmpfs",
        "/w",
    ]
    words += ["--bind", str(ctx.root / "tool"), "/t", "--chdir", "/w"]
    if not str(Path(Path(ctx.tool("fs.read")).read_bytes().splitlines()[0][2:].decode())).startswith("/usr"):
        runner = Path(ctx.tool("fs.read")).read_bytes().splitlines()[0][2:].decode()
        words += ["--ro-bind", runner, runner]
    done = ctx.run([*words, "/bin/sh", "-c", "echo in > f; /t/fs.read f; /t/shell.exec 'ls /run; pwd'"])
    assert '"text":"in\\n"' in done.stdout, (done.stdout, done.stderr)
    assert "/w" in done.stdout


def test_plugins_describe_themselves_as_nobody(ctx: Ctx) -> None:
    # abi.md 4.39
    described = (ctx.root / "tool" / "show.describer.d" / "description").read_text()
    assert described == f"Described as uid {NOBODY}.\n"
    assert ctx.call("show.describer", input=b"", user=1234, group=1234).output == "called as uid 1234"


def test_a_call_from_inside_a_run_is_counted(ctx: Ctx) -> None:
    # abi.md 4.38
    script = ctx.work / "recurse"
    script.write_text(f"#!/bin/sh\n{ctx.tool('shell.exec')} {ctx.work}/recurse\n")
    script.chmod(0o755)
    answer = ctx.call("shell.exec", str(script))
    assert "EAGAIN" in answer.output, answer
    answer = ctx.call("shell.exec", f"setsid {ctx.tool('text.word_count')} 'a b' | cat")
    assert "2 words" in answer.output


def test_a_program_that_a_tool_runs_inherits_nothing(ctx: Ctx) -> None:
    # no socket of a call and no directory of a caller: 0, 1, 2, and the directory that ls has open
    answers = [ctx.call("shell.exec", "ls /proc/self/fd") for _ in range(3)]
    assert [answer.output.split() for answer in answers] == [["0", "1", "2", "3"]] * 3
