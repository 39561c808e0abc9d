"""A real mount for tests: an interpreter of its own that sees the fixture plugin, a state and a
configuration of its own, and `ctx` as a user would call it. Nothing of it may outlive its test."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest.mock
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cortexfs.cli.main import main
from cortexfs.config import choose
from tests.mounted.ctx_program import Program, program
from tests.mounted.spaces import Inside
from tests.waiting import PATIENCE, until

FIXTURES = Path(__file__).parent.parent / "fixtures"
NOBODY = 65534
TAIL = shutil.which("gnutail") or "tail"  # that of uutils follows files by inotify(7) alone
programs: dict[Path, Program] = {}  # `ctx` of each interpreter that there is


class Ctx:
    """One mount, and how to run things on it: by who has it, if no other user is named."""

    owner: int | None = None  # where it is not who runs the tests
    user: int | None = None
    space: Inside | None = None  # where it is used

    def __init__(self, base: Path, python: Path, state: Path | None = None) -> None:
        self.base = base
        self.python = python
        self.root = base / "ctx"
        self.state = state or base / "state"
        self.config = base / "config"
        self.work = base / "work"
        self.work.mkdir()
        self.work.chmod(0o1777)  # as /tmp: whoever likes works there, and nobody moves what is another user's
        self.environ = {
            "PATH": f"{sysconfig.get_path('scripts')}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(base),
            "LANG": "C.UTF-8",
            "XDG_CACHE_HOME": str(base / "cache"),
            "CTX_STATE": str(self.state),
            "CTX_CONFIG": str(self.config),
            "CTX_ROOT": str(self.root),
            "CTX_DEBUG": "1",
        }

    def used_by(self, user: int, space: Inside | None = None) -> Ctx:
        """The same mount, as that user has it before them."""
        found = copy.copy(self)
        found.user, found.space = user, space or self.space
        return found

    def ctx(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The `ctx` program, of the interpreter that has the fixture plugin, by the owner of the mount."""
        if self.owner is None:
            done = programs[self.python].run(words, self.environ, self.work)
        else:
            program = [str(self.python), "-I", "-m", "cortexfs.cli.main"]
            done = self.run([*program, *words], uid=self.owner)
        assert not check or done.returncode == 0, done.stderr
        return done

    def quickly(self, *words: str) -> None:
        """The same without a process of its own, which takes a fifth of the time."""
        if self.owner is None:
            assert self._here(*words) == 0
        else:
            self.ctx(*words)

    def _here(self, *words: str) -> int:
        with unittest.mock.patch.dict(os.environ, self.environ, clear=True):
            return main(words)

    def mount(self) -> None:
        self.ctx("mount", str(self.root))

    def umount(self) -> None:
        if self.owner is None:
            self._here("umount", str(self.root))
        else:
            self.ctx("umount", str(self.root), check=False)

    def tool(self, name: str) -> str:
        return str(self.root / "tool" / name)

    @property
    def pid(self) -> int:
        return int(self.status["pid"])

    @property
    def status(self) -> dict[str, str]:
        """As it is now: what a plain read gives may be a second old."""
        if self.owner is None:
            fd = os.open(self.root / "status", os.O_RDONLY | os.O_RSYNC)
            with open(fd) as file:
                text = file.read()
        else:
            text = self.by_owner("dd", "iflag=sync", "status=none", f"if={self.root}/status")
        return dict(line.split(": ", 1) for line in text.splitlines())

    def by_owner(self, *words: str, input: str | None = None) -> str:
        """The output of a command of the owner's, who alone sees into a mount that is not root's."""
        done = self.run(words, uid=self.owner, input=input)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def give_away(self, folder: Path) -> None:
        """Makes it the owner's."""
        if self.owner is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self.owner, self.owner)

    def text(self, path: str) -> str:
        """What is in a file of the mount, for its owner."""
        return (
            (self.root / path).read_text()
            if self.owner is None
            else self.by_owner("cat", f"{self.root}/{path}")
        )

    def put(self, path: str, text: str) -> None:
        """Writes a file of the mount, as its owner."""
        if self.owner is None:
            (self.root / path).write_text(text)
        else:
            self.by_owner("tee", f"{self.root}/{path}", input=text)

    def at_rest(self, runs: int = 0) -> None:
        """Wait until that many runs go on."""
        until(lambda: self.status["runs"], lambda seen: seen.startswith(f"{runs} active"))

    def run(
        self,
        words: Sequence[str | bytes],
        *,
        input: str | bytes | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        uid: int | None = None,
        check: bool = False,
        text: bool = True,
        **options: Any,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command as a user at a shell would, optionally as another uid."""
        cwd = cwd or self.work
        if uid is None:
            uid = self.user
        if uid is not None:
            options = {"user": uid, "group": uid, "extra_groups": []} | options
        if self.space:
            words, cwd = [*self.space.words(options.pop("user", 0), cwd), *words], Path("/")
        if input is None:
            options.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            words,
            input=input,
            cwd=cwd,
            env=self.environ | dict(env or {}),
            check=check,
            text=text,
            capture_output=True,
            timeout=PATIENCE,
            **options,
        )

    def call(self, name: str, *arguments: str | bytes, **options: Any) -> Answer:
        """Exec a tool with its output piped, so JSONL."""
        return Answer(self.run([self.tool(name), *arguments], text=False, **options))


class Answer:
    """What came of a call: exit status, frames, and the output that the deltas make."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.status = done.returncode
        self.stderr = done.stderr.decode()
        self.lines = done.stdout.splitlines()
        self.frames: list[dict[str, Any]] = [json.loads(line) for line in self.lines]
        self.types = [frame["type"] for frame in self.frames]
        self.output = "".join(frame["text"] for frame in self.frames if frame["type"] == "delta")
        errors = [frame for frame in self.frames if frame["type"] == "error"]
        self.code: str | None = errors[-1]["code"] if errors else None
        self.message: str = errors[-1]["message"] if errors else ""

    def __repr__(self) -> str:
        return f"<exit {self.status} {self.lines!r} {self.stderr!r}>"


@contextlib.contextmanager
def interpreter() -> Iterator[Path]:
    """A virtual environment that has everything of ours and the fixture plugin as an installed package."""
    base = Path(tempfile.mkdtemp(prefix="ctx-venv-"))
    try:
        base.chmod(0o755)
        venv.create(base, with_pip=False, symlinks=True)
        site = Path(sysconfig.get_path("purelib", "venv", {"base": str(base), "platbase": str(base)}))
        shutil.copytree(FIXTURES / "site", site, dirs_exist_ok=True)
        parents = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
        lines = [f"import site; site.addsitedir({parent!r})" for parent in sorted(parents)]
        (site / "parent.pth").write_text("\n".join(lines) + "\n")
        scripts = Path(sysconfig.get_path("scripts"))
        for name in ("ctx", "cortexfs-object-runner", "cortexfs-looker", "rg"):
            (base / "bin" / name).symlink_to(scripts / name)
        python = base / "bin" / "python"
        with program(python) as programs[python]:
            yield python
    finally:
        shutil.rmtree(base)


@contextlib.contextmanager
def mounted(
    python: Path,
    enable: Sequence[str] = (),
    config: str = "",
    state: Path | None = None,
    *,
    owner: int | None = None,
    space: Inside | None = None,
) -> Iterator[Ctx]:
    """A mounted tree; unmounted, reaped and removed afterwards. A user's own is mounted in a space."""
    base = Path(tempfile.mkdtemp(prefix="ctx-test-"))
    base.chmod(0o755)
    mount = Ctx(base, python, state)
    mount.config.mkdir()
    (mount.config / "config.toml").write_text(config)
    if owner is not None:
        mount.owner = mount.user = owner
        mount.space = space
        mount.give_away(base)
    try:
        for name in enable:
            choose(mount.config, name, True)  # what `ctx plugin enable` does, in a tenth of its time
        mount.mount()
        yield mount
    finally:
        mount.umount()
        subprocess.run(["umount", "-l", str(mount.root)], stderr=subprocess.DEVNULL, check=False)
        log = (mount.state / "daemon.log").read_text()
        shutil.rmtree(base)
    ours = re.sub(r".* host output: \S+: Traceback .*", "", log)  # without bugs of plugins
    bugs = [word for word in (" ERROR ", "Traceback", "a bug in") if word in ours]
    assert not bugs, log  # what a test would not notice otherwise


def alive(pid: int) -> bool:
    """Whether it still runs; one that only waits to be reaped does not."""
    return not wait_gone(pid, 0)


def wait_gone(pid: int, seconds: float = PATIENCE) -> bool:
    """Wait for the end of a process that is not our child."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


assert sys.platform == "linux"
