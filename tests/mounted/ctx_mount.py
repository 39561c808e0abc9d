"""A real mount for tests, with its own interpreter, state and configuration, and `ctx` as a user calls it.
The interpreter sees the fixture plugin. No process, mount or file of the mount may outlive its test."""

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
TAIL = shutil.which("gnutail") or "tail"  # the tail of uutils follows files by inotify(7) alone
programs: dict[Path, Program] = {}  # the running `ctx` of each interpreter


class Ctx:
    """One mount, and ways to run commands on it: as the owner of the mount, unless another user is passed."""

    owner: int | None = None  # None: the user that runs the tests
    user: int | None = None
    space: Inside | None = None  # the space in which the mount is used

    def __init__(self, base: Path, python: Path, state: Path | None = None) -> None:
        self.base = base
        self.python = python
        self.root = base / "ctx"
        self.state = state or base / "state"
        self.config = base / "config"
        self.work = base / "work"
        self.work.mkdir()
        self.work.chmod(0o1777)  # as /tmp: any user may work there, none may move another's files
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
        """Returns the same mount as `user` uses it."""
        found = copy.copy(self)
        found.user, found.space = user, space or self.space
        return found

    def ctx(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run `ctx`, from the interpreter that has the fixture plugin, as the owner of the mount."""
        if self.owner is None:
            done = programs[self.python].run(words, self.environ, self.work)
        else:
            program = [str(self.python), "-I", "-m", "cortexfs.cli.main"]
            done = self.run([*program, *words], uid=self.owner)
        assert not check or done.returncode == 0, done.stderr
        return done

    def quickly(self, *words: str) -> None:
        """Run `ctx` in this process where possible, which takes a fifth of the time."""
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
        """The current status. A plain read of the file may return a status that is a second old."""
        if self.owner is None:
            fd = os.open(self.root / "status", os.O_RDONLY | os.O_RSYNC)
            with open(fd) as file:
                text = file.read()
        else:
            text = self.by_owner("dd", "iflag=sync", "status=none", f"if={self.root}/status")
        return dict(line.split(": ", 1) for line in text.splitlines())

    def by_owner(self, *words: str, input: str | None = None) -> str:
        """Returns the output of a command run as the owner. Only the owner sees into a user's own mount."""
        done = self.run(words, uid=self.owner, input=input)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def give_away(self, folder: Path) -> None:
        """Makes the owner of the mount the owner of `folder` and its files."""
        if self.owner is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self.owner, self.owner)

    def text(self, path: str) -> str:
        """Returns the text of a file of the mount, read as the owner."""
        return (
            (self.root / path).read_text()
            if self.owner is None
            else self.by_owner("cat", f"{self.root}/{path}")
        )

    def put(self, path: str, text: str) -> None:
        """Writes a file of the mount as the owner."""
        if self.owner is None:
            (self.root / path).write_text(text)
        else:
            self.by_owner("tee", f"{self.root}/{path}", input=text)

    def at_rest(self, runs: int = 0) -> None:
        """Wait until exactly `runs` runs are active."""
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
        """Execute a tool. Its output is piped, and so is JSONL."""
        return Answer(self.run([self.tool(name), *arguments], text=False, **options))


class Answer:
    """The result of a call: exit status, frames, and the output put together from the deltas."""

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
    """Create a virtual environment with our packages, and with the fixture plugin as an installed package."""
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
    """Mount a tree; unmount, reap and remove it afterwards. A user's own mount is made in a space."""
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
            choose(mount.config, name, True)  # as `ctx plugin enable` does, in a tenth of its time
        mount.mount()
        yield mount
    finally:
        mount.umount()
        subprocess.run(["umount", "-l", str(mount.root)], stderr=subprocess.DEVNULL, check=False)
        log = (mount.state / "daemon.log").read_text()
        shutil.rmtree(base)
    ours = re.sub(r".* host output: \S+: Traceback .*", "", log)  # leaves out bugs of plugins
    bugs = [word for word in (" ERROR ", "Traceback", "a bug in") if word in ours]
    assert not bugs, log  # a test would not notice these bugs otherwise


def alive(pid: int) -> bool:
    """Returns True if the process still runs. A process that only waits to be reaped does not run."""
    return not wait_gone(pid, 0)


def wait_gone(pid: int, seconds: float = PATIENCE) -> bool:
    """Wait for the end of a process that need not be our child. Returns True if it has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


assert sys.platform == "linux"
