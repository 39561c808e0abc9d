"""Controls and aliases, edited with common editors (abi.md 3)."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.tree_client import USER, Served, needs_root, served
from tests.shell.session_stores import small_disk
from tests.waiting import until

OLD = "allow old_t tool:shell execute\n"
NEW = "allow new_t tool:shell execute\n"
BAD = "deny everybody\n"


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with served() as mount_:
        yield mount_


@pytest.fixture
def policy(shared: Served) -> Iterator[Path]:
    """A control with a value; no other new file may be in its folder when the test ends."""
    path = shared.root / "tool/shell.d/policy"
    files = set(os.listdir(path.parent)) | {"policy"}
    path.write_text(OLD)
    yield path
    assert set(os.listdir(path.parent)) <= files


@pytest.fixture
def fresh() -> Iterator[Served]:
    with served() as mount_:
        yield mount_


EDITORS = [
    "echo 'allow new_t tool:shell execute' > policy",
    "printf 'allow new_t tool:shell execute' > policy",
    "sed -i s/old/new/ policy",
    "sed -i.bak s/old/new/ policy && rm policy.bak",
    "sed s/old/new/ policy > /tmp/$$; cp /tmp/$$ policy; rm /tmp/$$",
    "sed s/old/new/ policy > /tmp/$$; cp -p /tmp/$$ policy; rm /tmp/$$",
    "sed s/old/new/ policy > /tmp/$$; mv /tmp/$$ policy",
    "sed s/old/new/ policy > /tmp/$$; install /tmp/$$ policy; rm /tmp/$$",
    "sed s/old/new/ policy > /tmp/$$; install -m 600 -o $(id -u) -g $(id -g) /tmp/$$ policy; rm /tmp/$$",
    "sed s/old/new/ policy > /tmp/$$; install -b /tmp/$$ policy; rm /tmp/$$ policy~",
    "sed s/old/new/ policy > /tmp/$$; rsync -aI /tmp/$$ policy; rm /tmp/$$",
    "sed s/old/new/ policy > /tmp/$$; rsync -aI --inplace /tmp/$$ policy; rm /tmp/$$",
    "sed s/old/new/ policy > /tmp/$$; rsync -aIb /tmp/$$ policy; rm /tmp/$$ policy~",
    "sed s/old/new/ policy > /tmp/$$; dd if=/tmp/$$ of=policy bs=5 status=none; rm /tmp/$$",
    "sed s/old/new/ policy | dd of=policy oflag=append conv=notrunc status=none && sed -i 1d policy",
    "sed s/old/new/ policy | tee policy > /dev/null",
    "vim.tiny -es -u NONE -c '%s/old/new/' -c wq policy",
    "vim.tiny -es -u NONE -c 'set backup backupcopy=no' -c '%s/old/new/' -c wq policy; rm -f policy~",
    "vim.tiny -es -u NONE -c 'set backup backupcopy=yes' -c '%s/old/new/' -c wq policy; rm -f policy~",
    "vim.tiny -es -c 'set nobackup writebackup backupcopy=no' -c '%s/old/new/' -c wq policy",
    "t=$(mktemp policy.XXXXXX); sed s/old/new/ policy > $t; mv $t policy",
    "sed s/old/new/ policy > /tmp/$$; cp --remove-destination /tmp/$$ policy; rm /tmp/$$",
    "sed s/old/new/ policy > /tmp/$$; install -m 644 /tmp/$$ policy; rm /tmp/$$",
    # The daemon refuses about one in a thousand of perl's temporary names, and perl goes on after that.
    "perl -i -pe s/old/new/ policy; perl -i -pe s/old/new/ policy",
    "printf '%s\\n' s/old/new/ w q | ed -s policy",
    "ex -s -u NONE -c '%s/old/new/' -c x policy",
]


@pytest.mark.parametrize("script", EDITORS)
def test_editors_edit_controls(shared: Served, policy: Path, script: str) -> None:
    # abi.md 3.14
    inode = policy.stat().st_ino
    shared.does(f"cd tool/shell.d; {script}")
    assert policy.read_text() == NEW
    found = policy.stat()
    assert found.st_ino == inode  # abi.md 1.14
    assert (found.st_size, found.st_mode & 0o7777, found.st_uid) == (len(NEW), 0o644, os.geteuid())


@pytest.mark.parametrize(
    "script",
    [
        "echo 'deny everybody' > policy",
        "sed -i s/allow/deny/ policy",
        "echo 'deny everybody' > /tmp/$$; cp /tmp/$$ policy; code=$?; rm /tmp/$$; exit $code",
        "echo 'deny everybody' > /tmp/$$; rsync -a /tmp/$$ policy; code=$?; rm /tmp/$$; exit $code",
        "echo 'deny everybody' | tee policy > /dev/null",
        "echo 'deny everybody' >> policy",
        "echo 'deny everybody' >> policy; truncate -s 7 policy",
        "vim.tiny -es -u NONE -c '%s/allow/deny/' -c wq policy; echo $? >&2; test $? = 0 && exit 1",
        "head -c 100000 /dev/zero > policy",
    ],
)
def test_a_bad_value_fails_and_changes_nothing(shared: Served, policy: Path, script: str) -> None:
    # abi.md 3.13
    done = shared.shell(f"cd tool/shell.d; {script}")
    assert done.returncode != 0, done
    assert done.stderr
    assert policy.read_text() == OLD
    assert "tool/shell.d/policy stays as it is" in shared.log() or "head" in script


def test_the_error_of_a_close_is_the_closers(policy: Path) -> None:
    descriptor = os.open(policy, os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"deny")
    with pytest.raises(OSError, match="Invalid argument"):
        os.fsync(descriptor)
    with pytest.raises(OSError, match="Invalid argument"):
        os.close(descriptor)
    assert policy.read_text() == OLD


def test_an_open_that_wrote_nothing_changes_nothing(shared: Served, policy: Path) -> None:
    # abi.md 3.10, 3.11, 3.12; truncate(1) is a write, `:` is not
    prompt = shared.root / "agent/coder.d/system.md"
    prompt.write_text("Be kind.\n")
    shared.does("cd agent/coder.d; : > system.md")
    assert prompt.read_text() == "Be kind.\n"
    shared.does("cd agent/coder.d; truncate -s 0 system.md")
    assert prompt.read_text() == ""


EMPTIED = [
    "echo > policy",
    "truncate -s 0 policy",
    "sed -i d policy",
    "cp -p /dev/null .policy.swp; mv .policy.swp policy || { rm .policy.swp; false; }",
    "vim.tiny -es -u NONE -c '%d' -c wq policy; echo $? >&2; test $? = 0 && exit 1",
]


@pytest.mark.parametrize("script", EMPTIED)
def test_a_policy_is_not_emptied(shared: Served, policy: Path, script: str) -> None:
    # abi.md 3.22
    done = shared.shell(f"cd tool/shell.d; {script}")
    assert done.returncode != 0, done
    assert done.stderr
    assert policy.read_text() == OLD
    assert "ctx policy reset tool/shell" in shared.log()


REPLACERS = [
    "install -m 644 $f policy",
    "cp --remove-destination $f policy",
    "cp -f --remove-destination $f policy",
    "rm policy; cat $f > policy",
    "mv policy policy~; cat $f > policy || { rm policy~; false; }",
    "tar c -C /tmp ${f#/tmp/} | tar x --unlink-first --transform s/.*/policy/",
]


@pytest.mark.parametrize("script", REPLACERS)
def test_a_bad_policy_that_is_put_in_its_place_leaves_the_last_valid_one(
    shared: Served, policy: Path, script: str
) -> None:
    # abi.md 3.22: these remove the policy first, and what they write then is refused
    begin = "f=/tmp/$$; echo 'deny everybody' > $f; cd tool/shell.d;"
    done = shared.shell(f"{begin} {script}; code=$?; rm $f; exit $code")
    assert done.returncode != 0, done
    assert "Invalid argument" in done.stderr
    assert policy.read_text() == OLD


def test_a_removed_policy_counts_until_it_is_reset(fresh: Served) -> None:
    # abi.md 3.16, 3.22
    policy = fresh.root / "tool/shell.d/policy"
    policy.write_text(OLD)
    policy.unlink()
    fresh.kill()
    fresh.stop()
    fresh.start()
    assert not policy.exists()
    policy.touch()
    assert policy.read_text() == OLD
    policy.unlink()
    policy.write_text("reset\n")
    assert policy.read_text() == ""
    policy.write_text(NEW)
    policy.write_text(" reset")
    assert policy.read_text() == ""
    until(lambda: os.listdir(fresh.state / "tool/shell.d"), lambda names: names == [])
    policy.write_text("# nothing, and that is meant\n")
    assert policy.read_text() == "# nothing, and that is meant\n"


def drafts(names: list[str]) -> list[str]:
    """Returns the drafts. A draft lasts until the kernel reports the close of its file, at any later time."""
    return [name for name in names if name.startswith(".new")]


@pytest.fixture(scope="module")
def full() -> Iterator[Served]:
    """A mount whose state is on a full disk, where the policy already has its name."""
    with served() as mount_, small_disk(mount_.state, 1):
        (mount_.root / "tool/shell.d/policy").write_text(OLD)
        with contextlib.suppress(OSError), open(mount_.state / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        yield mount_


@pytest.mark.parametrize("script", [*EDITORS, *REPLACERS])
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_full_disk_is_heard_by_whatever_writes(full: Served, shell: str, script: str) -> None:
    # abi.md 3.21
    policy = full.root / "tool/shell.d/policy"
    script = script.replace("; rm -f policy~", "").replace("; rm /tmp", "; code=$?; rm /tmp")
    script += "; (exit ${code:-$?})"
    begin = f"f=/tmp/$$; echo '{NEW.strip()}' > $f; cd tool/shell.d;"
    done = full.run(shell, "-c", f"{begin} {script} && echo said done; rm -f $f")
    try:
        assert "said done" not in done.stdout, done
        assert done.stderr or script.startswith(("vim", "ex"))
        policy.touch()  # some scripts remove it first
        assert policy.read_text() == OLD
    finally:
        for name in os.listdir(policy.parent):
            if "policy" in name and name != "policy":
                policy.with_name(name).unlink()
    until(lambda: os.listdir(full.state / "tool/shell.d"), lambda names: not drafts(names))


def test_nobody_sees_half_a_value(policy: Path) -> None:
    with open(policy, "w") as writer:
        writer.write(NEW)
        assert policy.read_text() == OLD
        writer.flush()
        assert policy.read_text() == OLD
    assert policy.read_text() == NEW


def test_times_that_are_set_stay(shared: Served, policy: Path, tmp_path: Path) -> None:
    source = tmp_path / "policy"
    source.write_text(NEW)
    os.utime(source, ns=(1_600_000_000_123_456_789,) * 2)
    shared.does(f"cp -p {source} tool/shell.d/policy")
    assert policy.stat().st_mtime_ns == 1_600_000_000_123_456_789
    assert shared.does(f"rsync -ai {source} tool/shell.d/policy") == ""
    shared.does("touch -d @5 tool/shell.d/policy")
    assert policy.stat().st_mtime == 5


def test_owner_and_odd_bits_are_not_to_be_had(shared: Served, policy: Path) -> None:
    for script in ("chown 1 policy", "chgrp 1 policy", "chmod 4755 policy"):
        done = shared.shell(f"cd tool/shell.d; {script}")
        assert "Operation not permitted" in done.stderr, script
    shared.does("cd tool/shell.d; chown $(id -u):$(id -g) policy; chmod 644 policy")


def test_a_removed_control_is_its_default_until_it_is_made_again(shared: Served, policy: Path) -> None:
    # abi.md 3.16
    effort = shared.root / "model/openai/gpt.d/effort"
    effort.write_text("low\n")
    effort.unlink()
    assert "effort" not in os.listdir(effort.parent)
    with pytest.raises(FileNotFoundError):
        effort.read_text()
    effort.touch()
    assert effort.read_text() == "auto\n"


def test_a_typing_error_makes_no_file(shared: Served) -> None:
    with pytest.raises(OSError, match="efort") as raised:
        (shared.root / "model/openai/gpt.d/efort").write_text("low\n")
    assert raised.value.errno == errno.EROFS


def test_a_temporary_file_is_private_to_its_folder(shared: Served, policy: Path) -> None:
    swap = policy.with_name(".policy.swp")
    swap.write_text("x")
    assert swap.name in os.listdir(policy.parent)
    with pytest.raises(OSError, match="swp") as raised:
        swap.rename(shared.root / "tool/fs.read.d/.policy.swp")
    assert raised.value.errno == errno.EXDEV
    with open(swap) as reader:
        swap.unlink()
        assert reader.read() == "x"
    assert not swap.exists()


def test_all_of_it_survives_kill_9(fresh: Served) -> None:
    # abi.md 3.17
    alias = f"home/{os.geteuid()}/tool/a"
    fresh.does(
        f"echo '{NEW.strip()}' > tool/shell.d/policy; rm model/openai/gpt.d/effort;"
        f"ln -s /ctx/model/openai/gpt model/main; ln -s x {alias}; ln -sfn y {alias}"
    )
    fresh.kill()
    fresh.stop()
    fresh.start()
    assert (fresh.root / "tool/shell.d/policy").read_text() == NEW
    kept = fresh.state / "tool/shell.d/policy"
    assert os.stat(fresh.root / "tool/shell.d/policy").st_mtime_ns == kept.stat().st_mtime_ns
    assert not (fresh.root / "model/openai/gpt.d/effort").exists()
    assert os.readlink(fresh.root / "model/main") == "/ctx/model/openai/gpt"
    assert os.readlink(fresh.root / alias) == "y"


def test_aliases_come_move_and_go(shared: Served) -> None:
    # abi.md 1.5
    shared.does("ln -s shell tool/sh; ln -sfn fs.read tool/sh; mv tool/sh tool/cat")
    assert os.readlink(shared.root / "tool/cat") == "fs.read"
    assert shared.does("tool/cat") == shared.does("tool/fs.read")
    assert not (shared.root / "tool/sh").is_symlink()
    shared.does("rm tool/cat")
    assert not (shared.root / "tool/cat").is_symlink()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("ln -s x tool/shell", "File exists"),
        ("ln -s x tool/x.d", "Invalid argument"),
        ("ln -s x 'tool/a b'", "Invalid argument"),
        ("ln -s x model/openai/m", "Read-only file system"),
        ("ln -s x shared/main/m", "Read-only file system"),
        ("ln -s x tool/a; mv -T tool/a tool/shell; code=$?; rm tool/a; exit $code", "File exists"),
        ("ln -s x tool/a; ln -sf x tool/b.sock; code=$?; rm tool/a; exit $code", "Invalid argument"),
        ("mkdir home/joe", "Invalid argument"),
        ("mkdir home/12/x", "No such file"),
    ],
)
def test_aliases_that_cannot_be(shared: Served, script: str, said: str) -> None:
    done = shared.shell(script)
    assert done.returncode
    assert said in done.stderr


@needs_root
def test_a_user_has_a_home_of_his_own_and_makes_aliases_there_only(shared: Served) -> None:
    # abi.md 1.10
    assert shared.shell(f"ls -d home/{USER}").returncode
    shared.does(f"ls home/{USER}", user=USER)
    shared.does(f"ln -s /ctx/tool/shell home/{USER}/tool/sh; readlink home/{USER}/tool/sh", user=USER)
    assert "ermission denied" in shared.shell("ln -s x tool/a", user=USER).stderr
    assert "ermission denied" in shared.shell(f"ls home/{USER}", user=USER + 1).stderr
    assert os.lstat(shared.root / f"home/{USER}/tool/sh").st_uid == USER
    shared.does(f"mv home/{USER}/tool/sh home/{USER}/tool/s; rm home/{USER}/tool/s", user=USER)


def write_until_dead(path: Path, number: int, enough: threading.Event) -> int:
    """Returns how many values the server acknowledged; it dies after `number` values or soon after."""
    done = 0
    with contextlib.suppress(OSError):
        while True:
            path.write_text(f"allow n{done + 1} tool:shell execute\n")
            done += 1
            if done == number:
                enough.set()
    return done


@pytest.mark.parametrize("writes", [1, 7, 20])
def test_what_was_acknowledged_before_kill_9_is_there_after_it(fresh: Served, writes: int) -> None:
    path = fresh.root / "tool/shell.d/policy"
    enough = threading.Event()

    def kill() -> None:
        enough.wait()
        fresh.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    done = write_until_dead(path, writes, enough)
    enough.set()
    killer.join()
    fresh.stop()
    fresh.start()
    assert done >= writes
    assert path.read_text() in [f"allow n{number} tool:shell execute\n" for number in (done, done + 1)]
