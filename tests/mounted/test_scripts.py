"""Scripts that are tools on a mount of root's: users' own, and root's for all users (abi.md 12)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.scripts import GREET, as_user, called, placed
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")

OTHER = 65533
HOME = f"home/{NOBODY}/tool"


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        yield mount


@pytest.fixture
def greet(ctx: Ctx) -> Iterator[Path]:
    path = placed(ctx)
    status, said = as_user(ctx, "tool", "add", path)
    assert (status, f"made {HOME}/greet; each call runs {path} as it is at that time; ready" in said) == (
        0,
        True,
    ), said
    yield path
    as_user(ctx, "tool", "rm", "greet")


def sh(ctx: Ctx, text: str, uid: int = NOBODY) -> tuple[int, str]:
    done = ctx.run(["sh", "-c", text], uid=uid, cwd=ctx.root)
    return done.returncode, done.stdout + done.stderr


def control(ctx: Ctx, name: str) -> str:
    return sh(ctx, f"cat {HOME}/greet.d/{name}")[1]


# A user's own.


def test_it_is_a_tool_as_any_other(ctx: Ctx, greet: Path) -> None:
    # abi.md 12.8, 12.10
    answer = f"--loud bob, says {NOBODY} in {ctx.work}\n"
    assert called(ctx, "greet", "bob", "--loud") == (0, answer)
    assert as_user(ctx, "run", "greet", "--loud", "bob") == (0, answer)
    assert as_user(ctx, "run", "greet", '{"who":"bob","loud":true}') == (0, answer)
    assert called(ctx, "greet")[0] == 2
    status, said = called(ctx, "greet", "--help")
    assert (status, "usage: greet [--loud] WHO" in said, "run_process script" in said) == (0, True, True)
    assert control(ctx, "description") == "Greet somebody.\n"
    assert json.loads(control(ctx, "schema"))["required"] == ["who"]
    assert (control(ctx, "origin"), control(ctx, "status")) == (f"script:{greet}\n", "ready\n")
    assert control(ctx, "script").startswith(f"{greet}\n# tool: Greet somebody.\n")
    assert as_user(ctx, "complete", "--", "ctx", "run", "greet", "--l") == (0, "--loud\n")
    assert as_user(ctx, "complete", "--", "ctx", "tool", "rm", "g") == (0, "greet\n")
    assert f"{HOME}/greet" in as_user(ctx, "ls", "tool")[1]
    assert json.loads(as_user(ctx, "tool", "list", "--json")[1]) == [
        {
            "object": f"{HOME}/greet",
            "status": "ready",
            "origin": f"script:{greet}",
            "description": "Greet somebody.",
        }
    ]
    lines = [json.loads(line) for line in control(ctx, "log").splitlines()]
    assert {(line["uid"], line["source"]) for line in lines} == {(NOBODY, "exec")}


def test_a_dry_run_is_refused(ctx: Ctx, greet: Path) -> None:
    # abi.md 12.9, 4.48
    status, said = called(ctx, "greet", "bob", "--dry-run")
    assert (status, "EINVAL" in said) == (2, True), said


def test_its_failure_says_its_last_lines(ctx: Ctx) -> None:
    # abi.md 12.8
    lines = "\n".join(f"echo line {number} >&2" for number in range(99))
    path = placed(ctx, text=f"#!/bin/sh\n# tool: Fail.\n{lines}\nexit 3\n")
    assert as_user(ctx, "tool", "add", path, "--name", "fails")[0] == 0
    status, said = called(ctx, "fails")
    assert (status, said.splitlines()[0]) == (1, "fails: EIO: the script ended with exit status: 3: line 89")
    assert said.splitlines()[-1] == "line 98"
    placed(ctx, text="#!/bin/sh\n# tool: Fail.\necho 2 errors\nexit 1\n")
    assert called(ctx, "fails")[1] == "fails: EIO: the script ended with exit status: 1: 2 errors\n"
    placed(ctx, text="#!/bin/sh\n# tool: Fail.\nkill -9 $$\n")
    assert called(ctx, "fails")[0] == 70
    assert as_user(ctx, "tool", "rm", f"{HOME}/fails")[0] == 0


def test_it_is_live(ctx: Ctx, greet: Path) -> None:
    # abi.md 12.11: "the file is as it lies there at each call"
    greet.write_text(GREET.replace("says", "sings"))
    assert called(ctx, "greet", "bob")[1] == f"bob, sings {NOBODY} in {ctx.work}\n"
    greet.write_text(GREET.replace("Greet somebody.", "Greet all.").replace("flag loud", "flag soft"))
    assert called(ctx, "greet", "bob", "--soft")[0] == 0
    assert called(ctx, "greet", "bob", "--loud")[0] == 2
    until(lambda: control(ctx, "description"), lambda said: said == "Greet all.\n")
    assert "soft" in json.loads(control(ctx, "schema"))["properties"]
    greet.write_text("#!/bin/sh\necho no comment\n")
    status, said = called(ctx, "greet", "bob")
    assert (status, "has no line of the form: # tool: DESCRIPTION" in said) == (2, True)


def test_it_survives_a_restart_and_goes_with_its_file(ctx: Ctx, greet: Path) -> None:
    # abi.md 12.10
    ctx.umount()
    ctx.mount()
    assert called(ctx, "greet", "bob")[0] == 0
    assert sh(ctx, f"rm {HOME}/greet; ls {HOME}") == (0, "")
    assert as_user(ctx, "tool", "rm", "greet") == (
        1,
        "ctx tool: there is no script 'greet' to remove; see: ctx tool list\n",
    )
    assert greet.exists()


def test_by_hand(ctx: Ctx, greet: Path) -> None:
    # abi.md 12.10: "made with create(2), and removed with unlink(2)"
    text = f"{greet}\\n# tool: By hand.\\n"
    assert sh(ctx, f"touch {HOME}/hand; cat {HOME}/hand.d/status")[1].startswith(
        "broken: its .d/script is empty"
    )
    assert sh(ctx, f"{HOME}/hand")[0] == 69
    assert sh(ctx, f"printf '{text}' > {HOME}/hand.d/script")[0] == 0
    until(lambda: sh(ctx, f"cat {HOME}/hand.d/status")[1], lambda said: said == "ready\n")
    assert sh(ctx, f"echo relative > {HOME}/hand.d/script")[0] != 0
    assert sh(ctx, f"cat {HOME}/hand.d/script; rm {HOME}/hand") == (0, text.replace("\\n", "\n"))
    assert sh(ctx, f"cp {greet} {HOME}/copied; ls {HOME}")[1].splitlines()[:2] == ["greet", "greet.d"]
    # abi.md 3.2: a tool of everybody's has no script
    assert not (ctx.root / "tool/fs.read.d/script").exists()
    with pytest.raises(OSError, match="Read-only"):
        (ctx.root / "tool/fs.read.d/script").write_text(f"{greet}\n# tool: x\n")


def test_a_name_is_one_tools(ctx: Ctx, greet: Path) -> None:
    # abi.md 12.10: "A name that tool/ has is taken"
    status, said = as_user(ctx, "tool", "add", greet, "--name", "fs.read")
    assert (status, "there is tool/fs.read" in said) == (1, True), said
    assert sh(ctx, f"touch {HOME}/fs.read")[0] == 1
    for name in ("../../tool/x", "a/b", ".hidden", "x.d", "x.sock"):
        status, said = as_user(ctx, "tool", "add", greet, "--name", name)
        assert (status, "name" in said) == (2, True), said
    assert sh(ctx, f"ls {HOME}") == (0, "greet\ngreet.d\n")


# Other users, and files that are no script of this user's.


def test_another_users_is_neither_run_nor_shown(ctx: Ctx, greet: Path) -> None:
    # abi.md 12.13
    for uid in (OTHER, None):
        assert called(ctx, "greet", "bob", uid=uid)[0] in (1, 13, 126)
    assert sh(ctx, f"ls {HOME}; cat {HOME}/greet.d/script", OTHER)[1].count("Permission denied") == 2
    assert as_user(ctx, "run", "greet", "bob", uid=OTHER)[0] == 1
    assert "greet" not in as_user(ctx, "tool", "list", uid=OTHER)[1]
    assert "greet" not in (ctx.root / ".objects").read_text()
    # A user may name another user's file as a script, but the daemon does not use it.
    assert as_user(ctx, "tool", "add", greet, uid=OTHER)[0] == 13
    folder = f"home/{OTHER}/tool"
    assert (
        sh(ctx, f"touch {folder}/theirs; printf '{greet}\\n# tool: x\\n' > {folder}/theirs.d/script", OTHER)[
            0
        ]
        == 0
    )
    until(lambda: sh(ctx, f"cat {folder}/theirs.d/status", OTHER)[1], lambda said: said == "ready\n")
    status, said = called(ctx, "theirs", uid=OTHER, home=OTHER)
    assert (status, "belongs to uid" in said) == (13, True), said
    assert sh(ctx, f"rm {folder}/theirs", OTHER)[0] == 0


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _folder_link(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))
    path.parent.symlink_to("moved")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o755)
    os.chown(path, NOBODY, NOBODY)


def _device(path: Path) -> None:
    path.unlink()
    os.mknod(path, 0o020755, os.makedev(1, 5))
    os.chown(path, NOBODY, NOBODY)


def _open_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def _others_folder(path: Path) -> None:
    os.chown(path.parent, OTHER, OTHER)


ATTACKS: dict[str, Callable[[Path], object]] = {
    "a link leads to the script": _link,
    "(?s)a link leads to the script|belongs to uid": _folder_link,
    "is no regular file": _fifo,
    "it is no regular file": _device,
    "it is setuid or setgid": lambda path: path.chmod(0o4755),
    "it is setuid or setgid; ": lambda path: path.chmod(0o2755),
    "users other than its owner may write it": lambda path: path.chmod(0o757),
    "users other than its owner may write it; ": lambda path: path.chmod(0o775),
    "users other than its owner may write it; check its files": _open_folder,
    "it belongs to uid 65533": _others_folder,
    "belongs to uid 65533; check": lambda path: os.chown(path, OTHER, OTHER),
    "the file has a second name": lambda path: path.with_name("other").hardlink_to(path),
    "is not executable for you": lambda path: path.chmod(0o644),
    "No such file": lambda path: path.unlink(),
    "is over 16 KiB": lambda path: path.write_text("# tool: x\n" + "# y\n" * (1 << 20)),
    "invisible characters": lambda path: path.write_text("# tool: x\x1b[2J\n"),
}


@pytest.mark.parametrize("why", ATTACKS)
def test_what_is_no_script_of_its_users_is_not_run(ctx: Ctx, greet: Path, why: str) -> None:
    # abi.md 12.12
    before = greet.parent
    try:
        ATTACKS[why](greet)
        for status, said in (called(ctx, "greet", "bob"), as_user(ctx, "tool", "add", greet)):
            if "link leads" in why and status == 0:  # add names what the link leads to
                continue
            assert status in (1, 2, 13), said
            assert "bob, says" not in said
            assert re.search(why, said), said
    finally:
        if before.is_symlink():
            before.unlink()
            before.with_name("moved").rename(before)
        for name in ("other", "elsewhere", "greet.sh"):
            (before / name).unlink(missing_ok=True)
        os.chown(before, NOBODY, NOBODY)
        before.chmod(0o755)


# Root's, for all.


def test_an_error_about_its_comment_names_it(ctx: Ctx) -> None:
    path = placed(ctx, "odd.sh", GREET.replace("string", "strin"))
    told = f'ctx tool: {path}: its line "arg who strin: whom" is not of the form: '
    assert as_user(ctx, "tool", "add", path)[1].startswith(told)
    assert ctx.ctx("tool", "add", str(path), check=False).stderr.startswith(told)


def test_roots_is_a_copy_for_all(ctx: Ctx) -> None:
    # abi.md 12.16
    path = placed(ctx, "hail.sh")
    added = ctx.ctx("tool", "add", str(path))
    assert "installed hail 1.0.0+script" in added.stderr
    try:
        path.write_text(GREET.replace("says", "was changed by its user, says"))
        for uid in (NOBODY, OTHER):
            assert called(ctx, "hail", "bob", uid=uid, home=None) == (0, f"bob, says {uid} in {ctx.work}\n")
        (copy,) = Path(f"{ctx.state}-plugins").glob("hail-*/bin/hail")
        status = copy.stat()
        assert (status.st_uid, status.st_mode & 0o022) == (0, 0)
        assert ctx.run(["sh", "-c", f"echo x >> {copy}"], uid=NOBODY).returncode != 0
        listed = json.loads(ctx.ctx("tool", "list", "--json").stdout)
        assert [(one["object"], one["origin"]) for one in listed] == [
            ("tool/hail", "plugin:hail@1.0.0+script")
        ]
        assert "tool/hail" in as_user(ctx, "tool", "list")[1]
        assert as_user(ctx, "tool", "add", path)[0] == 1  # the name is taken
        refused = "tool/hail is a tool of all users; uid 0 can remove it\n"
        assert as_user(ctx, "tool", "rm", "hail") == (13, f"ctx tool: {refused}")
        # "an edit needs `add` again"
        ctx.ctx("tool", "add", str(path))
        assert "was changed" in called(ctx, "hail", "bob", home=None)[1]
    finally:
        ctx.ctx("tool", "rm", "hail")
    assert not (ctx.root / "tool/hail").exists()


def test_root_has_its_own_too(ctx: Ctx) -> None:
    # abi.md 12.16
    path = placed(ctx, "mine.sh", uid=0)
    ctx.ctx("tool", "add", str(path), "--home")
    assert called(ctx, "mine", "bob", uid=None, home=0)[0] == 0
    assert called(ctx, "mine", "bob", uid=NOBODY, home=0)[0] != 0
    ctx.ctx("tool", "rm", "mine")
    done = ctx.ctx("tool", "add", str(path), "--name", "fs.read", check=False)
    assert done.returncode == 1
    assert "there is tool/fs.read already, of builtin" in done.stderr
    assert not (ctx.state / "plugins/fs.read").exists()


def test_a_plugin_has_scripts_too(ctx: Ctx, tmp_path: Path) -> None:
    # abi.md 12.17
    (tmp_path / "manifest.toml").write_text(
        """\
name = "greeting"
version = "0.1.0"
description = "Greetings."
cortex_version = "1.0.0"
capabilities = { provides = ["tools"] }
[native]
protocol = "argv"
[[native.tools]]
name = "greet.all"
description = "Greet somebody."
command = "./greet.sh"
input_schema = { type = "object" }
"""
    )
    (tmp_path / "greet.sh").write_text(GREET)
    (tmp_path / "greet.sh").chmod(0o755)
    ctx.ctx("plugin", "install", str(tmp_path))
    try:
        assert called(ctx, "greet.all", "bob", home=None) == (0, f"bob, says {NOBODY} in {ctx.work}\n")
        assert called(ctx, "greet.all", "--no-such", home=None)[0] == 2
    finally:
        ctx.ctx("plugin", "uninstall", "greeting", "--purge")
