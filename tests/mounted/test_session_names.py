"""Sessions that are renamed, by mv(1) and by `ctx session rename`."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.talking import history, said, talk

ME = os.geteuid()
ECHOS = f"home/{ME}/model/debug/echo.d/session"


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    """Shared by tests that name their sessions after themselves."""
    with mounted(python) as mount:
        yield mount


def names(mount: Ctx) -> list[str]:
    return [line.split()[1] for line in mount.ctx("session", "list").stdout.splitlines()[1:]]


def refused(mount: Ctx, old: str, new: str) -> str:
    with pytest.raises(OSError) as problem:  # noqa: PT011
        os.rename(mount.root / ECHOS / old, mount.root / ECHOS / new)
    assert problem.value.errno is not None
    return errno.errorcode[problem.value.errno]


def test_a_session_goes_on_under_its_new_name(mount: Ctx) -> None:
    # abi.md 5.40
    said(mount, "other", session="before")
    said(mount, "hello", session="draft", cwd="/tmp")
    folder = mount.root / ECHOS
    said(mount, "newest", session="after")
    assert names(mount) == ["after", "draft", "before"]
    log = (folder / "draft/events.jsonl").read_bytes()
    done = mount.ctx("session", "rename", "model/debug/echo", "draft", "plan")
    assert done.stderr == "the session draft of model/debug/echo is plan now\n"
    assert not (folder / "draft").exists()
    assert (folder / "plan/events.jsonl").read_bytes() == log
    assert json.loads((folder / "plan/meta.json").read_text())["session"] == "plan"
    assert names(mount) == ["after", "plan", "before"]
    assert (folder / "index/list").read_text().split() == ["after", "plan", "before"]
    said(mount, "again", session="plan")
    assert [event["text"] for event in history(mount, session="plan") if event["type"] == "delta"] == [
        "hello",
        "again",
    ]
    assert history(mount, session="draft") == []
    mount.umount()
    mount.mount()
    assert (folder / "plan/events.jsonl").read_bytes().startswith(log)
    assert names(mount)[0] == "plan"


def test_by_mv_too(mount: Ctx) -> None:
    said(mount, "x", session="moved")
    done = mount.run(["mv", "-T", "moved", "moved.2"], cwd=mount.root / ECHOS)
    assert (done.returncode, done.stderr) == (0, "")
    assert (mount.root / ECHOS / "moved.2/latest.md").read_text().strip() == "x"
    assert mount.run(["rm", "-r", "moved.2"], cwd=mount.root / ECHOS).returncode == 0
    assert not (mount.root / ECHOS / "moved.2").exists()


def test_what_is_no_name_or_is_taken_is_refused(mount: Ctx) -> None:
    said(mount, "x", session="one")
    said(mount, "x", session="two")
    for name in ("index", "-x", "a b", "x.d"):
        assert refused(mount, "one", name) in ("EINVAL", "EROFS", "EEXIST"), name
    assert refused(mount, "one", "two") in ("EEXIST", "ENOTEMPTY")
    assert refused(mount, "one", "one+box") == "EPERM"
    assert refused(mount, "none", "three") == "ENOENT"
    assert refused(mount, "one/events.jsonl", "one/other.jsonl") == "EROFS"
    said(mount, "[]", "model/debug/script.sock", session="there")
    assert refused(mount, "one", "../../script.d/session/two") == "EROFS"
    assert {"one", "two"} <= set(names(mount))


def test_one_that_is_in_use_keeps_its_name(mount: Ctx) -> None:
    said(mount, "x", session="used")
    with talk(mount) as client:
        client.ask("resume", session="used")
        client.until("done")
        assert refused(mount, "used", "free") == "EBUSY"
        done = mount.ctx("session", "rename", "model/debug/echo", "used", "free", check=False)
        assert "the session is in use; leave it everywhere, and try again" in done.stderr
    assert "used" in names(mount)


@pytest.mark.skipif(ME != 0, reason="acts as several users, which only root can")
def test_nobody_renames_what_is_not_his(mount: Ctx) -> None:
    said(mount, "x", session="mine")
    done = mount.run(["mv", "-T", "mine", "theirs"], cwd=mount.root, uid=NOBODY)
    assert done.returncode == 1
    done = mount.run(
        ["python3", "-c", f"import os; os.rename('{ECHOS}/mine', '{ECHOS}/theirs')"],
        cwd=mount.root,
        uid=NOBODY,
    )
    assert "Permission denied" in done.stderr
    assert "mine" in names(mount)
