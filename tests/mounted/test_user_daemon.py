"""A daemon that a user started: abi.md 4.37, and the places of 8.1.

Some machines do not open /dev/fuse to all users, so these tests mount a device of their own over it,
in a mount namespace of their own. There, a shell script acts as the user.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY
from tests.mounted.spaces import open_device
from tests.waiting import PATIENCE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")

USER = NOBODY  # fusermount3 needs a user with a name
OTHER = 1


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ctx-user-") as name:
        base = Path(name)
        base.chmod(0o755)
        open_device(base)
        user = base / "home"
        user.mkdir()
        os.chown(user, USER, USER)
        yield user


def as_user(home: Path, python: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script with its own /dev/fuse: lines of `user` as the user, lines of `other` as another user."""
    drop = f"setpriv --reuid={USER} --regid={USER} --clear-groups"
    other = f"setpriv --reuid={OTHER} --regid={OTHER} --clear-groups"
    # One script of root's, which becomes one of the two users for each line.
    lines = [f"mount --bind {home.parent}/fuse /dev/fuse", f"cd {home}"]
    for line in script.strip().splitlines():
        who, _, what = line.strip().partition(": ")
        lines.append(f"{drop if who == 'user' else other} sh -c '{what}' 2>&1; echo \"-> $?\"")
    ctx = f"{python} -I -m cortexfs.cli.main"
    return subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", "\n".join(lines)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home), "CTX": ctx, "CTX_OUTPUT": "text"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        check=True,
    )


def test_a_user_mounts_runs_and_unmounts(home: Path, python: Path) -> None:
    done = as_user(
        home,
        python,
        """
        user: $CTX mount ctx
        user: ctx/tool/text.word_count "one two"
        user: ctx/tool/fs.write mine.txt text && stat -c %u mine.txt
        user: echo "allow coder_t tool:fs.read execute" > ctx/tool/fs.read.d/policy
        user: cat ctx/tool/fs.read.d/policy
        user: stat -c %a .local/state/cortexfs
        other: ls ctx
        other: ctx/tool/text.word_count "one two"
        user: $CTX umount ctx
        user: ls ctx | wc -l
        """,
    )
    parts = [part.strip() for part in done.stdout.split("-> ")]
    statuses = [int(part.split()[0]) for part in parts[1:]]
    assert statuses[:6] == [0] * 6, done.stdout
    assert "2 words" in done.stdout
    assert f"\n{USER}\n" in done.stdout
    assert "allow coder_t" in done.stdout
    assert "\n700\n" in done.stdout  # abi.md 8.1: and private
    assert statuses[6] != 0  # another user cannot list it
    assert statuses[7] == 126
    assert statuses[8:] == [0, 0], done.stdout


def test_a_sandbox_of_the_users_own_gains_nothing(home: Path, python: Path) -> None:
    # abi.md 4.35
    box = home / "box"
    box.mkdir()
    (box / "file").write_text("covered\n")
    sandbox = (
        'unshare -Urm sh -c "mount -t tmpfs none box && echo inner > box/file && ctx/tool/fs.read box/file"'
    )
    done = as_user(
        home,
        python,
        f"""
        user: $CTX mount ctx
        user: {sandbox}
        user: $CTX umount ctx
        """,
    )
    assert "covered" not in done.stdout
    assert "inner\n-> 0" in done.stdout or "EACCES" in done.stdout, done.stdout


def test_agents_of_the_users_own(home: Path, python: Path) -> None:
    # abi.md 1.10: his agent/ he has, and his home too
    agents = f"ctx/home/{USER}/agent"
    done = as_user(
        home,
        python,
        f"""
        user: $CTX mount ctx
        user: $CTX agent new mine --home --model debug/echo --tools fs.read
        user: $CTX send agent/mine hello
        user: $CTX agent new mine
        user: {agents}/mine hello
        user: $CTX agent rm mine --yes
        user: ls {agents}
        user: $CTX umount ctx
        """,
    )
    parts = [part.strip() for part in done.stdout.split("-> ")]
    statuses = [int(part.split()[0]) for part in parts[1:]]
    assert statuses == [0, 0, 0, 1, 0, 0, 0, 0], done.stdout
    assert f"uid {USER} has an agent mine" in done.stdout
    assert parts[-3].split("\n")[1:] == ["mine.d"], done.stdout  # the folder with its session stays


def test_scripts_of_the_users_own(home: Path, python: Path) -> None:
    # abi.md 12.10 to 12.14, on a mount of the user's
    script = home / "greet.sh"
    script.write_text('#!/bin/sh\n# tool: Greet.\n# arg who string: whom\necho "hi $1"\n')
    script.chmod(0o755)
    os.chown(script, USER, USER)
    tool = f"ctx/home/{USER}/tool/greet"
    done = as_user(
        home,
        python,
        f"""
        user: $CTX mount ctx
        user: $CTX tool add greet.sh
        user: {tool} bob && $CTX run greet bob
        other: {tool} bob
        user: mkdir work && cp greet.sh work/theirs.sh && $CTX tool add work/theirs.sh
        user: $CTX agent new coder --model debug/echo --tools shell.exec
        user: $CTX send agent/coder x --cwd $PWD/work
        user: $CTX run theirs bob
        user: $CTX restart && $CTX run greet bob && $CTX run theirs bob
        user: chmod g+w greet.sh; $CTX run greet bob
        user: chmod g-w greet.sh; mv greet.sh other.sh; ln -s other.sh greet.sh; $CTX run greet bob
        user: rm greet.sh; mkfifo -m 755 greet.sh; $CTX run greet bob
        user: $CTX tool rm greet && ls {tool}
        user: $CTX umount ctx
        """,
    )
    parts = [part.strip() for part in done.stdout.split("-> ")]
    statuses = [int(part.split()[0]) for part in parts[1:]]
    assert statuses == [0, 0, 0, 126, 0, 0, 0, 69, 69, 13, 13, 2, 2, 0], done.stdout
    assert done.stdout.count("hi bob\n") == 3
    assert "agent/coder could write" in parts[7]


def test_no_other_process_of_the_user_looks_into_the_daemon(home: Path, python: Path) -> None:
    # issue: "No secret in any ... core dump"; prctl(2): one that is not dumpable is neither read nor dumped
    pid = '$(sed -n "s/^pid: //p" ctx/status)'
    done = as_user(
        home,
        python,
        f"""
        user: $CTX mount ctx
        user: cat /proc/{pid}/environ
        user: head -c 1 /proc/{pid}/maps
        user: cat /proc/$(pgrep -P {pid})/environ >/dev/null
        user: ctx/tool/text.word_count "one two"
        user: $CTX umount ctx
        """,
    )
    statuses = [int(part.split()[0]) for part in done.stdout.split("-> ")[1:]]
    assert statuses == [0, 1, 1, 0, 0, 0], done.stdout
    assert done.stdout.count("Permission denied") == 2
