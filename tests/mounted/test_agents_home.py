"""Agents in the home directory of their user, a plain user or root, by the default mount table."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import agent, call, results, say, script, working, write
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.placed import OWN, ROOTS, own_mount
from tests.mounted.talking import Frame

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes the home directory of another user")

FILES = (".ssh/authorized_keys", ".bashrc", ".netrc", ".git-credentials", ".config/git/credentials", "notes")
NUMBERS = (
    itertools.count()
)  # sessions with new numbers are asked about anew, agents with new numbers have hosts of their own
GIT = "[user]\n\tname = Alice\n\temail = alice@example.org\n"


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


@pytest.fixture
def homer(ctx: Ctx) -> Iterator[str]:
    with agent(ctx, f"homer{next(NUMBERS)}", "shell.exec", "fs.write", "fs.read") as path:
        yield path


@pytest.fixture
def alice() -> Iterator[pwd.struct_passwd]:
    """A user of this machine without a home directory, which is created for the time of a test."""
    for user in pwd.getpwall():
        home = Path(user.pw_dir)
        if user.pw_uid and home.name != "nonexistent" and home.parent.is_dir():
            with contextlib.suppress(FileExistsError):
                home.mkdir(mode=0o755)
                break
    else:
        pytest.skip("each user of this machine has a home directory, or none")
    try:
        _furnish(home)
        for found in (home, *home.rglob("*")):
            os.chown(found, user.pw_uid, user.pw_gid, follow_symlinks=False)
        yield user
    finally:
        shutil.rmtree(home)


@pytest.fixture(params=[ROOTS[1], OWN])
def at_home(
    request: pytest.FixtureRequest, ctx: Ctx, alice: pwd.struct_passwd, python: Path
) -> Iterator[tuple[Ctx, str]]:
    """Alice's view of a mount, root's or her own, and an agent on the mount."""
    with contextlib.ExitStack() as stack:
        mount = ctx.used_by(alice.pw_uid)
        if request.param == OWN:
            mount = stack.enter_context(own_mount(python, alice.pw_uid))
        names = ("shell.exec", "fs.write", "fs.read")
        yield mount, stack.enter_context(agent(mount, f"homer{next(NUMBERS)}", *names))


def _furnish(home: Path) -> None:
    for name in (*FILES, "project/file", ".cargo/credentials.toml"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("before")
        (home / name).chmod(0o600)
    (home / ".gitconfig").write_text(GIT)
    (home / ".empty").mkdir()


def shell(ctx: Ctx, path: str, uid: int | None, cwd: str, *cmds: str) -> list[Frame]:
    """Returns the frames of a run of these commands, all allowed."""
    task = script(*(call("shell.exec", cmd=cmd) for cmd in cmds), say("x"))
    with working(ctx, path, task, uid, cwd=cwd, session=f"s{next(NUMBERS)}") as client:
        asked = client.until("approval")[-1]
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_session")
        return client.until("done", status="ok")


CLOSED = {
    "keys": "echo x >> .ssh/authorized_keys",
    "new keys": "echo x > .ssh/new",
    "the shell's": "echo x >> .bashrc",
    "a new profile": "echo x > .profile",
    "a new folder": "mkdir .gnupg",
    "passwords": "cat .netrc",
    "passwords of git": "cat .git-credentials",
    "more passwords of git": "cat .config/git/credentials",
    "a token": "cat .cargo/credentials.toml",
    "git's settings": "echo x >> .gitconfig",
    "a link": "ln -s ../.ssh/authorized_keys project/link && echo x >> project/link",
    "a hard link": "ln .ssh/authorized_keys project/hard",
    "a folder moved over it": "mv -T project .empty",
    "a folder moved away": "mv .ssh project/ssh",
    "a new file of the home": "echo x > new",
}


def test_it_reaches_no_hidden_file(at_home: tuple[Ctx, str], alice: pwd.struct_passwd) -> None:
    # the issue: "An agent in $HOME with a writing tool wrote .ssh/authorized_keys and read 0600 files"
    home = Path(alice.pw_dir)
    frames = shell(*at_home, alice.pw_uid, alice.pw_dir, *CLOSED.values())
    told = dict(zip(CLOSED, results(frames), strict=True))
    assert [what for what, one in told.items() if not one["is_error"]] == []
    assert {name: (home / name).read_text() for name in FILES} == dict.fromkeys(FILES, "before")
    assert {one.name for one in home.iterdir() if not one.name.startswith(".")} == {"notes", "project"}
    assert not (home / ".profile").exists()
    assert (home / ".gitconfig").read_text() == GIT
    notes = [one["content"] for one in frames if one["type"] == "observer" and one["source"] == "mount view"]
    assert f"{home}/.bashrc is hidden" in "\n".join(notes)
    assert "do not show keys and passwords to agents" in told["keys"]["output"]


def test_it_works_there(at_home: tuple[Ctx, str], alice: pwd.struct_passwd) -> None:
    # the issue: git with .gitconfig works
    git = (
        "cd project && git init -q . && git add file && git commit -qm first && git log --format='%an <%ae>'"
    )
    cmds = [git, "echo after > project/file; echo more >> notes; ls", "echo $HOME; cat ~/.gitconfig"]
    for cwd in (alice.pw_dir, os.path.dirname(alice.pw_dir)):
        at = f"cd {alice.pw_dir} && rm -rf project/.git && "
        frames = shell(*at_home, alice.pw_uid, cwd, *(at + cmd for cmd in cmds))
        commit, listed, settings = (one["output"] for one in results(frames))
        assert commit == "Alice <alice@example.org>\n"
        assert listed == "notes\nproject\n"
        assert settings == f"{alice.pw_dir}\n{GIT}"
    assert Path(alice.pw_dir, "project/file").read_text() == "after\n"


def test_a_table_of_its_own_is_its_users_choice(ctx: Ctx, alice: pwd.struct_passwd) -> None:
    with agent(ctx, "chosen", "fs.read") as path:
        shown = [str(ctx.root), alice.pw_dir]
        write(ctx, path, "mount", "".join(f"{one}\t{one}\tro\t-\n" for one in shown))
        task = script(call("fs.read", path=".bashrc"), say("x"))
        with working(ctx, path, task, alice.pw_uid, cwd=alice.pw_dir) as client:
            (told,) = results(client.until("done", status="ok"))
    assert told["output"] == "before"


def test_who_is_started_sees_no_more_of_it(ctx: Ctx, alice: pwd.struct_passwd) -> None:
    # Of the originals: "hidden→visible never", whatever the table of the started agent shows
    asks = script(call("fs.read", path=".bashrc"), call("fs.read", path="notes"), say("said"))
    with agent(ctx, "boss", "agent.run", "fs.read") as path, agent(ctx, "mate", "fs.read") as mate:
        policy = (ctx.root / f"{path}.d/policy").read_text()
        write(ctx, path, "policy", f"{policy}allow boss_t agent:mate start\n")
        write(ctx, mate, "mount", f"/\t/\tro\t-\n{alice.pw_dir}/.bashrc\t{alice.pw_dir}/.bashrc\tro\t-\n")
        task = script(call("agent.run", name="mate", task=asks), say("x"))
        before = (ctx.root / "tool/fs.read.d/log").read_text()
        with working(ctx, path, task, alice.pw_uid, cwd=alice.pw_dir) as client:
            asked = client.until("approval")[-1]
            client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
            (told,) = results(client.until("done", status="ok"))
        log = (ctx.root / "tool/fs.read.d/log").read_text().removeprefix(before)
    assert told["output"] == "said"
    assert [status for status in ('"error"', '"ok"') if status in log] == ['"error"', '"ok"']
    assert '"code":"EACCES"' in log


def test_roots_home_is_one_too(ctx: Ctx, homer: str) -> None:
    home = Path(pwd.getpwuid(0).pw_dir)
    with (
        tempfile.TemporaryDirectory(prefix=".ctx-test-", dir=home) as hidden,
        tempfile.TemporaryDirectory(prefix="ctx-test-", dir=home) as shown,
        contextlib.ExitStack() as leaving,
    ):
        leaving.callback(Path(f"{hidden}-new").unlink, missing_ok=True)
        Path(hidden, "file").write_text("before")
        cmds = [
            f"cat {hidden}/file",
            f"echo x > {hidden}/file",
            f"echo x > {hidden}-new",
            f"mv {shown} {hidden}",
        ]
        frames = shell(ctx, homer, None, str(home), *cmds, f"echo x > {shown}/file")
        assert [one["is_error"] for one in results(frames)] == [True] * 4 + [False]
        assert Path(hidden, "file").read_text() == "before"
        assert not Path(f"{hidden}-new").exists()
        # a hidden folder is shown if the user chose it as the working directory
        frames = shell(ctx, homer, None, hidden, "cat file && echo after > file")
        assert Path(hidden, "file").read_text() == "after\n"
