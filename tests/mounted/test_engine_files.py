"""Other models of this machine: model/main as set by its user, and other GGUF files."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from cortexfs.models.local import weights
from tests.mounted.ctx_mount import Ctx
from tests.mounted.engines import ask, engine


def test_the_user_s_own_main_wins_for_good(fresh: Ctx) -> None:
    main, echo = fresh.root / "model" / "main", str(fresh.root / "model/debug/echo")
    assert fresh.run(["ln", "-sfn", echo, str(main)]).returncode == 0
    assert os.readlink(main) == echo
    os.kill(fresh.pid, signal.SIGHUP)
    fresh.umount()
    fresh.mount()
    assert os.readlink(main) == echo
    assert ask(fresh, "mine", name="main").output == "mine"


def test_main_may_be_moved_and_removed(fresh: Ctx) -> None:
    main, other = fresh.root / "model" / "main", fresh.root / "model" / "other"
    target = os.readlink(main)
    main.rename(other)
    assert not main.is_symlink()
    fresh.umount()
    fresh.mount()
    assert os.readlink(other) == os.readlink(main) == target
    main.unlink()
    assert sorted(entry.name for entry in (fresh.root / "model").iterdir() if entry.is_symlink()) == ["other"]


# -- other GGUF files


def added(ctx: Ctx, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return ctx.ctx("provider", *words, "--config", str(ctx.config), "--state", str(ctx.state), check=check)


def test_any_other_file(fresh: Ctx) -> None:
    # issue: "any other GGUF file by `ctx provider add-gguf FILE`"; "A running mount follows"
    carried = weights.carried()
    assert carried is not None
    # The home is closed to the user nobody. It is enough that root's engine can read the file.
    home = fresh.work / "home"
    home.mkdir(mode=0o700)
    file = home / "Some Model.gguf"
    os.link(carried, file) if carried.stat().st_dev == home.stat().st_dev else file.write_bytes(
        carried.read_bytes()
    )
    done = added(fresh, "add-gguf", str(file))
    assert "added huggingfacetb/some-model, up to 8192 tokens" in done.stderr
    model = fresh.root / "model" / "huggingfacetb" / "some-model"
    assert (model.parent / "some-model.d/id").read_text() == "Some Model.gguf\n"
    assert (model.parent / "some-model.d/status").read_text() == "ready\n"
    assert added(fresh, "add-gguf", str(file), "--name", "my/model").returncode == 0
    assert ask(fresh, name="my/model").status == 0
    pid = engine(fresh)
    assert ask(fresh, name="huggingfacetb/some-model").status == 0
    assert engine(fresh) == pid  # each file has one engine
    # the file is used in its place, and its model fails once the file is gone
    file.unlink()
    os.kill(fresh.pid, signal.SIGHUP)
    done = added(fresh, "remove", "my/model")
    assert "left its file where it is" in done.stderr
    assert not (fresh.root / "model/my").exists()
    answer = ask(fresh, name="huggingfacetb/some-model")
    assert (answer.status, "No such file" in answer.message) == (69, True)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["/etc/passwd"], 2, "cannot be used as a GGUF file"),
        (["/nowhere/x.gguf"], 1, "No such file"),
        (["{carried}", "--name", "nothing"], 2, "not of the form provider/model"),
        (["{carried}", "--name", "debug/echo"], 2, "has its own models"),
    ],
)
def test_what_is_not_added(ctx: Ctx, words: list[str], status: int, said: str) -> None:
    done = added(ctx, "add-gguf", *(word.format(carried=weights.carried()) for word in words), check=False)
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert not (ctx.config / "gguf").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="root's engine is nobody")
def test_a_file_that_nobody_may_read(fresh: Ctx) -> None:
    file = fresh.work / "closed.gguf"
    carried = weights.carried()
    assert carried is not None
    file.write_bytes(carried.read_bytes()[: 4 << 20])
    file.chmod(0o600)
    done = added(fresh, "add-gguf", str(file), check=False)
    assert (done.returncode, f"chmod o+r {file}" in done.stderr) == (13, True)
    # a model whose file is closed later reports that when it is used
    file.chmod(0o644)
    added(fresh, "add-gguf", str(file), "--name", "my/closed")
    file.chmod(0o600)
    answer = ask(fresh, name="my/closed")
    assert (answer.status, f"chmod o+r {file}" in answer.message) == (69, True)
    # root opens files without powers, as a daemon that was taken over could ask for any file
    file.chmod(0o644)
    home = fresh.work / "home"
    home.mkdir(mode=0o700)
    os.chown(home, 1234, 1234)
    moved = file.rename(home / file.name)
    done = added(fresh, "add-gguf", str(moved), "--name", "my/other", check=False)
    assert (done.returncode, f"chmod o+x {home}" in done.stderr) == (13, True)
    file.symlink_to(moved)
    answer = ask(fresh, name="my/closed")
    assert (answer.status, f"{file} cannot be read: Permission denied" in answer.message) == (69, True)
    file.unlink()
    os.mkfifo(file)
    answer = ask(fresh, name="my/closed")
    assert (answer.status, f"{file} is no regular file" in answer.message) == (69, True)
    file.unlink()
    moved.rename(file)
    # and a damaged file
    answer = ask(fresh, name="my/closed")
    assert (answer.status, answer.code) == (69, "EHOSTDOWN")
    assert "cannot load" in answer.message
