"""Mounts beside each other, and callers in other programs' sandboxes.

abi.md 4.40
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cortexfs.linux import seccomp
from tests.mounted import agents, test_user_daemon
from tests.mounted.agents import call, decisions, results, say, script, shell, working
from tests.mounted.ctx_mount import NOBODY, Answer, Ctx, mounted
from tests.mounted.placed import OWN, ROOTS, own_mount
from tests.mounted.spaces import space
from tests.mounted.talking import Frame, Talk
from tests.mounted.test_user_daemon import OTHER, as_user

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="several users need a root daemon"),
    pytest.mark.skipif(os.uname().machine not in seccomp.MACHINES, reason="no filter for this machine"),
]
SANDBOXED = f"[callers]\nsandboxed = [{NOBODY}]\n"
NUMBERS = itertools.count()
REFUSED = re.compile(r'[Pp]ermission denied|"code":"EACCES"')
BESIDE = "root's, beside one's own"

ctx, coder, home = agents.ctx, agents.coder, test_user_daemon.home


@pytest.fixture(scope="module")
def beside(python: Path) -> Iterator[Ctx]:
    """Another daemon of root's, which serves callers in sandboxes of one user."""
    with mounted(python, config=SANDBOXED) as mount:
        yield mount


@pytest.fixture(scope="module")
def side(python: Path) -> Iterator[dict[str, tuple[Ctx, str]]]:
    """A mount of root's and a mount of a user's beside each other, each with an agent."""
    with (
        space() as place,
        own_mount(python, 0, place=place) as roots,
        own_mount(python, NOBODY, place=place) as own,
        agents.agent(roots, "coder") as coder,
        agents.agent(own, "mine") as mine,
    ):
        yield {BESIDE: (roots.used_by(NOBODY), coder), OWN: (own, mine)}


class Party(NamedTuple):
    """A mount as a user sees it, an agent there, the mount of another daemon, and the user's uid."""

    ctx: Ctx
    agent: str
    other: Ctx
    uid: int


@pytest.fixture(params=[*ROOTS, OWN, BESIDE])
def party(request: pytest.FixtureRequest) -> Party:
    if request.param in ROOTS:
        uid = NOBODY if request.param == ROOTS[1] else 0
        ctx, beside = (request.getfixturevalue(name).used_by(uid) for name in ("ctx", "beside"))
        return Party(ctx, request.getfixturevalue("coder"), beside, uid)
    side: dict[str, tuple[Ctx, str]] = request.getfixturevalue("side")
    ctx, agent = side[request.param]
    return Party(ctx, agent, side[OWN if request.param == BESIDE else BESIDE][0], NOBODY)


@pytest.mark.parametrize("program", ["", "runner"])
def test_an_agent_reaches_no_mount_but_its_own(party: Party, program: str) -> None:
    ctx, coder, other, _ = party
    made = other.work / "made"
    before = other.status["runs"]
    runner = runner_of(ctx) if program else ""
    words = [runner] * bool(program) + [other.tool("shell.exec"), "--cmd", f"touch {made}"]
    said = shell(ctx, coder, f"{shlex.join(words)}; {ctx.tool('fs.read')} README.md")
    assert '"code":"EACCES"' in said or "Permission denied" in said
    assert "hello world" in said  # from its own mount
    assert not made.exists()
    assert other.status["runs"] == before


def runner_of(ctx: Ctx) -> str:
    return str(ctx.run(["readlink", f"{ctx.root}/bin/cortexfs-object-runner"]).stdout).strip()


def test_what_a_person_runs_is_no_caller_of_another_daemon(party: Party) -> None:
    for one, other in ((party.ctx, party.other), (party.other, party.ctx)):
        inner = shlex.join([other.tool("text.word_count"), "a b"])
        answer = one.call("shell.exec", "--cmd", f"{inner}; setsid {inner}")
        assert answer.output.count("another CortexFS") == 2, answer.output
        assert '"status":"ok"' not in answer.output
        assert other.call("text.word_count", "a b").status == 0


USERS_DAEMON = """
user: mkdir m && $CTX mount $PWD/m
user: m/tool/shell.exec "{root}/tool/text.word_count x"
user: {root}/tool/shell.exec "$PWD/m/tool/text.word_count x"
user: m/tool/shell.exec "$PWD/m/tool/text.word_count x"
user: mkdir n && $CTX mount $PWD/n --state $PWD/state --config $PWD/config
user: m/tool/shell.exec "$PWD/n/tool/text.word_count x"
user: n/tool/shell.exec "$PWD/m/tool/text.word_count x"
user: $CTX umount $PWD/n
user: $CTX umount $PWD/m
"""


def test_a_users_daemons_beside_each_other_and_roots(ctx: Ctx, home: Path, python: Path) -> None:
    done = as_user(home, python, USERS_DAEMON.format(root=ctx.root))
    said = done.stdout.split("-> ")[1:]
    assert [at for at, part in enumerate(said) if "another CortexFS" in part] == [0, 1, 4, 5], done.stdout
    assert "EACCES" not in said[2], done.stdout


# Executes its arguments in a sandbox: a filter of system calls that refuses almost nothing.
SANDBOX = """
import os, sys
from cortexfs.linux import syscalls as linux, seccomp
linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
seccomp.close(network=True, unix=True)
os.execv(sys.argv[1], sys.argv[1:])
"""


def sandboxed(mount: Ctx, uid: int | None = None) -> Answer:
    words = [str(mount.python), "-c", SANDBOX, mount.tool("text.word_count"), "a b"]
    return Answer(mount.run(words, uid=uid, text=False))


def is_refused(answer: Answer, uid: int) -> bool:
    assert (answer.status, answer.code) == (13, "EACCES"), answer
    return f"sandboxed = [{uid}]" in answer.message


def test_a_strangers_sandbox_is_refused_unless_the_owner_says_otherwise(party: Party) -> None:
    # abi.md 4.41
    assert is_refused(sandboxed(party.ctx), party.uid)


def test_the_owner_says_which_users_sandboxes_are_served(beside: Ctx, python: Path) -> None:
    # abi.md 4.41
    assert is_refused(sandboxed(beside, 0), 0)
    assert sandboxed(beside, NOBODY).status == 0
    with own_mount(python, config=SANDBOXED) as own:
        assert sandboxed(own).status == 0
        assert is_refused(sandboxed(beside.used_by(0, own.space)), 0)


def test_doctor_says_so_in_a_sandbox(ctx: Ctx) -> None:
    # abi.md 4.41
    words = [
        str(ctx.python),
        "-c",
        SANDBOX,
        str(ctx.python),
        "-I",
        "-m",
        "cortexfs.cli.main",
        "doctor",
        "--json",
    ]
    (found,) = [one for one in json.loads(ctx.run(words).stdout) if one["check"] == "sandbox"]
    assert (found["level"], "sandboxed = [0]" in found["mend"]) == ("warn", True)


SERVED = {
    "no_new_privs": ["setpriv", "--no-new-privs"],
    "bwrap": ["bwrap", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc"],
    "a user namespace": ["unshare", "-Ur"],
}


@pytest.mark.parametrize("how", SERVED)
def test_no_new_privileges_without_a_filter_is_served(party: Party, how: str) -> None:
    # abi.md 4.42
    words = [*SERVED[how], party.ctx.tool("text.word_count"), "a b"]
    answer = Answer(party.ctx.run(words, text=False))
    assert answer.status == 0, answer


# Issue: "An agent loop of debug/script that tries every write, chmod, link, socket, exec and dry run that
# items 1-3 name: nothing outside its view changes; run as root and as a user."

ATTEMPTS = {
    "write": "echo x >> {out}/file",
    "make": "touch {out}/new",
    "a folder": "mkdir {out}/folder",
    "remove": "rm -f {out}/file",
    "rename": "mv {out}/file {out}/other",
    "cut": "truncate -s 0 {out}/file",
    "a fifo": "mkfifo {out}/fifo",
    "a node": "mknod {out}/node c 1 3",
    "mode": "chmod 666 {out}/file",
    "mode of the folder": "chmod 777 {out}",
    "mode in words that the path is not in": "d={out}; cd $d/.. && chmod 777 $(basename $d)",
    "setuid": "chmod 4755 {out}/program",
    "setuid inside": "cp /bin/true own && chmod 4755 own",
    "owner": "chown 0:0 {out}/file; chgrp 1 {out}/file",
    "times": "touch -d 2001-01-01 {out}/file",
    "attributes": "setfattr -n user.x -v y {out}/file",
    "flags": "chattr +A {out}/file",
    "a hard link in": "ln {out}/file inside",
    "a hard link out": "ln README.md {out}/linked",
    "a link": "ln -s / {out}/link",
    "through a link": "ln -sf {out} here && chmod 777 here/file && echo x > here/file",
    "the interpreter": "chmod 4755 /proc/$PPID/exe; chmod 700 /proc/$PPID/exe",
    "the directory of the host": "chmod 777 /proc/$PPID/cwd/../out",
    "the state": "chmod -R a+rwX {state}; cat {state}/secrets/*",
    "the configuration": "chmod 666 {config}/config.toml; echo >> {config}/config.toml",
    "another's socket": """python3 -c 'import socket; socket.socket(1).connect("{beside}/.run.sock")'""",
    "another's mount": "{beside}/tool/fs.write {out}/new x; {runner} {beside}/tool/fs.write {out}/new x",
    "a tool that writes": "{root}/tool/fs.write {out}/new x",
    "a tool that would write": "{root}/tool/fs.write --dry-run {out}/new x",
}


def seen(folder: Path) -> dict[str, tuple[object, ...]]:
    """Returns all that a program can change of a folder and of the files in it."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        status = path.lstat()
        text = path.read_bytes() if path.is_file() else b""
        facts = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_nlink)
        found[str(path)] = (*facts, text, tuple(os.listxattr(path, follow_symlinks=False)))
    return found


def test_no_table_lets_the_memory_of_the_runner_be_written(party: Party) -> None:
    # The runner may connect to the daemon, so a program that writes its memory could connect as well.
    with agents.agent(party.ctx, f"wide{next(NUMBERS)}") as path:
        agents.write(party.ctx, path, "mount", "/\t/\trw\t-\n")
        said = shell(
            party.ctx, path, "echo x > /proc/self/comm; echo x > /proc/self/mem; head -c 9 /proc/self/comm"
        )
    assert said.count("Read-only file system") + said.count("Permission denied") == 2, said
    assert "head" in said


def approved(client: Talk) -> list[Frame]:
    """Approve each call until the run ends; returns all frames."""
    frames = [client.frame()]
    while frames[-1]["type"] != "done":
        if frames[-1]["type"] == "approval":
            asked = frames[-1]
            client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        frames.append(client.frame())
    return frames


def test_nothing_outside_of_its_view_changes(party: Party) -> None:
    ctx, coder, other, uid = party
    out = ctx.base / f"out{next(NUMBERS)}"
    out.mkdir()
    ctx.work.chmod(0o777)
    (out / "file").write_text("mine")
    (out / "program").write_bytes(Path("/bin/true").read_bytes())
    for path in (out, *out.iterdir()):
        os.chown(path, uid, uid)
    state, config = ctx.state, ctx.config
    before = seen(out), seen(config), os.stat(sys.executable), oct(state.stat().st_mode)
    places = {"out": out, "state": state, "config": config, "beside": other.root, "root": ctx.root}
    commands = [words.format(**places, runner=runner_of(other)) for words in ATTEMPTS.values()]
    task = script(*(call("shell.exec", cmd=words) for words in commands), say("x"))
    with working(ctx, coder, task, scope="temp") as client:
        frames = approved(client)
    assert len([one for one in results(frames) if one["name"] == "shell.exec"]) == len(commands)
    assert len(decisions(frames)) >= len(commands)
    after = seen(out), seen(config), os.stat(sys.executable), oct(state.stat().st_mode)
    assert after[0] == before[0]
    assert after[1] == before[1]
    assert after[2].st_mode == before[2].st_mode
    assert after[3] == before[3]
    assert not [path for path in ctx.work.rglob("*") if path.lstat().st_mode & 0o6000]


def test_mounts_of_two_users_are_closed_to_each_other(python: Path) -> None:
    # "two daemons in both directions", also where fuse.conf has user_allow_other
    with (
        space("user_allow_other\n") as place,
        own_mount(python, NOBODY, place=place) as one,
        own_mount(python, OTHER, place=place) as other,
    ):
        for mine, theirs in ((one, other), (other, one)):
            made, before = theirs.work / "made", theirs.status["runs"]
            tool = [theirs.tool("shell.exec"), "--cmd", f"touch {made}"]
            for words in (
                ["ls", str(theirs.root)],
                ["cat", f"{theirs.root}/status"],
                tool,
                [runner_of(mine), *tool],
                [str(mine.python), "-I", "-m", "cortexfs.cli.main", "run", *tool],
            ):
                done = mine.run(words)
                assert REFUSED.search(done.stdout + done.stderr), done
            with agents.agent(mine, "near", "shell.exec") as near:
                said = shell(mine, near, f"{shlex.join(tool)}; {shlex.join([runner_of(mine), *tool])}")
                assert len(REFUSED.findall(said)) >= 2, said
            assert not made.exists()
            assert theirs.status["runs"] == before
