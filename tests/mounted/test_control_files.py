"""The tree of a real daemon, file by file: the files of abi.md 1 to 3, and how opens and writes end."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.core.tree.test_controls import FILES, WRITABLE
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.waiting import until

OBJECTS = {"tool": "tool/fs.read", "model": "model/debug/echo", "agent": "agent/base"}
# abi.md 3.9
REFUSED = errno.EACCES if os.geteuid() else errno.EROFS
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as another user, which only root can")


def controls(ctx: Ctx, class_: str) -> Path:
    return ctx.root / f"{OBJECTS[class_]}.d"


def refusal(path: Path, flags: int = os.O_WRONLY) -> int | None:
    """Returns the errno of an open; None if the open succeeds."""
    try:
        os.close(os.open(path, flags))
    except OSError as error:
        return error.errno
    return None


def said(path: Path) -> tuple[str, dict[str, str]]:
    """Returns the text of an executable: its first line, and its `# cortexfs.KEY=VALUE` lines."""
    first, *lines = path.read_text().splitlines()
    assert all(line.startswith("# cortexfs.") for line in lines)
    return first, dict(line.removeprefix("# cortexfs.").split("=", 1) for line in lines)


# -- the tree


def test_the_root_holds_what_the_abi_lists(ctx: Ctx) -> None:
    # abi.md 1.1, 1.2, 1.3, 1.4, 1.11, 1.13
    assert sorted(os.listdir(ctx.root)) == ["agent", "bin", "home", "model", "shared", "status", "tool"]
    for program in ("ctx", "cortexfs-object-runner"):  # "links to the installed programs"
        link = ctx.root / "bin" / program
        assert link.is_symlink()
        assert os.access(link, os.X_OK)
    assert sorted(os.listdir(ctx.root / "bin")) == ["cortexfs-object-runner", "ctx"]
    assert "main" in os.listdir(ctx.root / "shared")
    # "model/main -> <root>/model/<provider>/<model> (aliases are real symlinks)"
    assert Path(os.readlink(ctx.root / "model/main")).parents[1] == ctx.root / "model"
    home = ctx.root / "home" / str(os.getuid())
    assert sorted(os.listdir(home)) == ["agent", "model", "tool"]
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_socket_is_there_where_session_says_so(ctx: Ctx) -> None:
    # abi.md 1.6, 1.8, 1.9
    folders = [*(ctx.root / "model").glob("*/*.d"), *(ctx.root / "agent").glob("*.d")]
    assert len(folders) >= 3
    for folder in folders:
        session = folder / "session"
        expected = session.read_text() == "socket\n" if session.exists() else True
        assert folder.with_suffix(".sock").is_socket() == expected, folder
    assert not list((ctx.root / "tool").glob("*.sock"))


@pytest.mark.parametrize("class_", ["tool", "agent"])
def test_an_executable_shows_metadata(ctx: Ctx, class_: str) -> None:
    # abi.md 1.18, 1.19
    first, keys = said(ctx.root / OBJECTS[class_])
    assert Path(first.removeprefix("#!")).name == "cortexfs-object-runner"
    assert {"object", "name", "description", "runner", "status", "plugin"} <= keys.keys()
    assert (keys["object"], keys["name"]) == (class_, OBJECTS[class_].partition("/")[2])
    assert (keys["runner"], keys["status"]) == (first.removeprefix("#!"), "ready")


def test_make_and_find_see_a_change(fresh: Ctx) -> None:
    # abi.md 1.15
    policy = controls(fresh, "tool") / "policy"
    (fresh.work / "Makefile").write_text(f"copy: {policy}\n\tcp {policy} copy\n")
    newer = ["find", str(fresh.root / "tool"), "-type", "f", "-newer", str(fresh.work / "Makefile")]
    assert fresh.run(["make", "-s"]).returncode == 0
    assert fresh.run(["make", "-q"]).returncode == 0  # make has nothing to do
    assert fresh.run(newer).stdout == ""
    policy.write_text("allow coder_t tool:fs.read execute\n")
    assert fresh.run(newer).stdout == f"{policy}\n"
    assert fresh.run(["make", "-q"]).returncode == 1
    assert fresh.run(["make", "-s"]).returncode == 0
    assert (fresh.work / "copy").read_text() == policy.read_text()


# -- controls


@pytest.mark.parametrize("class_", list(OBJECTS))
def test_the_files_are_the_abis_and_the_rest_is_read_only(ctx: Ctx, class_: str) -> None:
    # abi.md 3.2, 3.3, 3.4, 3.8, 3.9
    folder = controls(ctx, class_)
    assert set(os.listdir(folder)) - {"session"} == set(FILES[class_].split()) - {"session"}
    for name in FILES[class_].split():
        path, writable = folder / name, name in WRITABLE[class_].split()
        found = path.stat()
        mode = 0o600 if name == "log" else 0o644 if writable else 0o444  # abi.md 3.19
        assert stat.S_IMODE(found.st_mode) == mode, path
        assert found.st_uid == os.geteuid()
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
            assert refusal(path, flags) == (None if writable else REFUSED), path
        text = path.read_text()
        assert not text or text.endswith("\n"), path  # "text ending in a newline"


@needs_root
@pytest.mark.parametrize("class_", list(OBJECTS))
def test_nobody_else_may_write_any_of_them(ctx: Ctx, class_: str) -> None:
    # abi.md 3.8, 3.9
    script = 'cd "$1"; for f in *; do test -f "$f" && sh -c ": >> $f" 2>&1; done; cat * >/dev/null'
    done = ctx.run(["sh", "-c", script, "sh", str(controls(ctx, class_))], uid=NOBODY)
    lines = done.stdout.splitlines()
    assert len(lines) == len(FILES[class_].split())
    assert all("Permission denied" in line for line in lines), lines
    # All files but `log` are read. abi.md 3.19
    assert (done.returncode, done.stderr) == (1, "cat: log: Permission denied\n")


BAD = {
    "tool": {"policy": "deny everybody"},
    "model": {
        "effort": "enormous",
        "default": "no equals sign",
        "driver": "not a driver",
        "fallback": "nomodel",
        "policy": "allow",
    },
    "agent": {
        "groups": "wheel",
        "label": "me",
        "cwd": "here",
        "env": "no equals sign",
        "path": "here",
        "mount": "/a /b",
        "model": "/",
        "window": "wide",
        "tools": "/",
        "approval": "perhaps",
        "policy": "allow",
    },
}


@pytest.mark.parametrize(
    ("class_", "name"), [(class_, name) for class_, values in BAD.items() for name in values]
)
def test_echo_of_a_bad_value_fails_loudly(ctx: Ctx, class_: str, name: str) -> None:
    # abi.md 3.10, 3.13
    path = controls(ctx, class_) / name
    before = path.read_bytes()
    done = ctx.run(["bash", "-c", 'echo "$1" > "$2"', "bash", BAD[class_][name], str(path)])
    assert done.returncode != 0
    assert "Invalid argument" in done.stderr
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    with pytest.raises(OSError, match="Invalid argument"):
        os.write(descriptor, BAD[class_][name].encode() + b"\n")
    with pytest.raises(OSError, match="Invalid argument"):  # the open file stays spoilt for later writes
        os.write(descriptor, before or b"\n")
    with pytest.raises(OSError, match="Invalid argument"):
        os.close(descriptor)
    assert path.read_bytes() == before


def test_the_log_and_doctor_say_why(fresh: Ctx) -> None:
    # abi.md 3.13; issue: "a refused control names its reason in `ctx doctor` and daemon.log"
    with pytest.raises(OSError, match="Invalid argument"):
        (controls(fresh, "model") / "effort").write_text("enormous\n")
    log = (fresh.state / "daemon.log").read_text()
    assert "model/debug/echo.d/effort stays as it is: line 1: 'enormous' is not one of auto, low" in log
    found = json.loads(fresh.ctx("doctor", "--json", check=False).stdout)
    (refused,) = [row for row in found if row["check"] == "refused controls"]
    assert "line 1: 'enormous' is not one of auto, low" in refused["why"]


def test_pieces_and_ftruncate_are_judged_at_flush(ctx: Ctx) -> None:
    # abi.md 3.11, 3.12
    path = controls(ctx, "model") / "effort"
    for change in (lambda fd: os.write(fd, b"enormous"), lambda fd: os.ftruncate(fd, 2)):
        descriptor = os.open(path, os.O_WRONLY)
        change(descriptor)
        assert path.read_text() == "auto\n"
        with pytest.raises(OSError, match="Invalid argument"):
            os.fsync(descriptor)
        with pytest.raises(OSError, match="Invalid argument"):
            os.close(descriptor)
    assert path.read_text() == "auto\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"lo")
    os.write(descriptor, b"w")
    assert path.read_text() == "auto\n"
    os.close(descriptor)
    assert path.read_text() == "low\n"
    path.write_text("auto\n")


# -- attributes


@pytest.mark.parametrize("class_", list(OBJECTS))
def test_extended_attributes(ctx: Ctx, class_: str) -> None:
    # abi.md 3.20
    path = ctx.root / OBJECTS[class_]
    found = {name.rpartition(".")[2]: os.getxattr(path, name).decode() for name in os.listxattr(path)}
    assert found == {
        "kind": class_,
        "name": OBJECTS[class_].partition("/")[2],
        "origin": "builtin",
        "status": "ready",
        "token_estimate": str(-(-path.stat().st_size // 4)),
    }
    # "setting one is EROFS (ENOTSUP for foreign namespaces)"
    for name in ("user.cortexfs.name", "user.cortexfs.new"):
        with pytest.raises(OSError, match=path.name) as refused:
            os.setxattr(path, name, b"x")
        assert refused.value.errno == REFUSED
    with pytest.raises(OSError, match=path.name) as refused:
        os.removexattr(path, "user.cortexfs.name")
    assert refused.value.errno == REFUSED
    if os.geteuid() == 0:
        for name in ("user.other", "trusted.other", "security.other"):
            with pytest.raises(OSError, match=path.name) as refused:
                os.setxattr(path, name, b"x")
            assert refused.value.errno == errno.ENOTSUP


# -- names


@pytest.mark.parametrize("name", ["a b", "x.d", "x.sock", ".hidden", "-x", "é", "x" * 65, "a\nb"])
def test_an_invalid_name_is_refused_where_it_enters(ctx: Ctx, name: str) -> None:
    # abi.md 2.4; the name of a control folder
    # is no valid alias either
    for place in ("tool", "agent", "model", f"home/{os.getuid()}/tool"):
        with pytest.raises(OSError, match=r"argument|too long") as refused:
            os.symlink("x", ctx.root / place / name)
        assert refused.value.errno in (errno.EINVAL, errno.ENAMETOOLONG)
        assert name not in os.listdir(ctx.root / place)
    with pytest.raises(OSError, match=r"argument|too long|Read-only"):
        os.mkdir(ctx.root / "home" / name)
    done = ctx.ctx("agent", "new", "--", name, check=False)
    assert done.returncode == 2
    assert "name" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("provider", "add", "{}", "--base-url", "http://127.0.0.1:9", "--format", "openai.chat"),
        ("model", "new", "debug/{}", "--from", "debug/echo"),
        ("agent", "new", "{}"),
        ("plugin", "new", "{}", "unused"),
        ("send", "debug/echo", "hi", "--session", "{}"),
    ],
    ids=lambda words: words[0],
)
def test_commands_name_the_rule_that_a_name_breaks(ctx: Ctx, words: tuple[str, ...]) -> None:
    # abi.md 2.4
    for name, rule in (("a b", "may hold only letters, digits"), ("x" * 65, "64"), ("x.d", ".sock or .d")):
        done = ctx.ctx(*(word.format(name) for word in words), check=False)
        assert done.returncode == 2, done
        assert rule in done.stdout + done.stderr


# -- the log


def line_of(ctx: Ctx, object_: str, run: str) -> dict[str, Any]:
    lines = (ctx.root / f"{object_}.d/log").read_text().splitlines()
    (line,) = [entry for entry in map(json.loads, lines) if entry["run"] == run]
    assert isinstance(line, dict)
    return line


def test_a_line_of_the_log(ctx: Ctx) -> None:
    # abi.md 3.18
    good = ctx.call("text.word_count", "one two")
    line = line_of(ctx, "tool/text.word_count", good.frames[0]["run"])
    assert {"ts", "run", "uid", "source", "status", "ms", "bytes_in", "bytes_out"} <= line.keys()
    assert (line["uid"], line["source"], line["status"]) == (os.getuid(), "exec", "ok")
    assert (line["bytes_in"], line["bytes_out"]) == (len("one two"), len(good.output))
    run = json.loads(ctx.ctx("send", "model/debug/echo", "two words").stdout.partition("\n")[0])["run"]
    until(lambda: run in (ctx.root / "model/debug/echo.d/log").read_text())
    line = line_of(ctx, "model/debug/echo", run)
    assert (line["bytes_in"], line["bytes_out"]) == (len("two words"), len("two words"))
    bad = ctx.call("fs.read", "not/there")
    line = line_of(ctx, "tool/fs.read", bad.frames[0]["run"])
    assert (line["status"], line["code"]) == ("error", "ENOENT")


def test_a_log_is_bounded(python: Path) -> None:
    # abi.md 3.18; docs/config.md: `limits.log_kib`
    with mounted(python, config="[limits]\nlog_kib = 4\n") as ctx:
        log, sizes = ctx.root / "tool/text.word_count.d/log", []
        for _ in range(60):
            run = ctx.call("text.word_count", "x").frames[0]["run"]
            assert line_of(ctx, "tool/text.word_count", run)["status"] == "ok"
            sizes.append(log.stat().st_size)
        assert max(sizes) < 2 * 4096
        assert sorted(sizes) != sizes  # the log began anew
