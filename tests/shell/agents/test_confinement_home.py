"""The default view of a home directory, tested from inside a host, as a user and as uid 0.

Each attempt is made in a confined host and in a free one, to prove that the view causes the refusal.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cortexfs.agents.view import caps, view
from tests.shell import confined
from tests.shell.confined import ONLY_HERE, Scene

pytestmark = ONLY_HERE
forks, scene = confined.forks, confined.scene

FILES = (
    ".ssh/authorized_keys",
    ".netrc",
    ".bashrc",
    ".git-credentials",
    ".cargo/credentials.toml",
    ".config/git/config",
    ".config/git/credentials",
    ".config/autostart/one",
    ".gitconfig",
    "dotfiles/zshrc",
    "project/src/file",
    "project/.env",
    "notes",
)
FOLDERS = (".empty", ".rustup", ".local/bin", ".cargo/bin")


@pytest.fixture
def home(scene: Scene) -> Path:
    home = scene.path / "alice"
    for name in FILES:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    for name in FOLDERS:
        (home / name).mkdir(parents=True, exist_ok=True)
    (home / ".zshrc").symlink_to("dotfiles/zshrc")
    shutil.copy("/bin/true", home / ".cargo/bin/program")
    for found in (home, *home.rglob("*")):
        os.chown(found, scene.uid, scene.uid, follow_symlinks=False)
    return home


def both(scene: Scene, home: Path, source: str, cwd: Path | None = None) -> tuple[str, str]:
    """Returns the result of `source` in a host of an agent with a writing tool, and in a free host."""
    shown = view("", str(cwd or home), root="/ctx", home=str(home), writable=True)
    source = f"os.chdir({str(home)!r}); {source}"
    return scene.both(source, view=shown, caps=caps("", str(home)))


CLOSED = {
    "append to the keys of ssh": "open('.ssh/authorized_keys', 'a')",
    "make other keys": "open('.ssh/new', 'w')",
    "make what is hidden": "os.mkdir('.gnupg')",
    "make a profile": "open('.profile', 'w')",
    "append to the shell's": "open('.bashrc', 'a')",
    "empty the shell's": "os.truncate('.bashrc', 0)",
    "remove the shell's": "os.unlink('.bashrc')",
    "the shell's, where it is": "open('dotfiles/zshrc', 'a')",
    "the shell's, by its link": "open('.zshrc', 'a')",
    "read passwords": "open('.netrc')",
    "read passwords of git": "open('.git-credentials')",
    "read more passwords of git": "open('.config/git/credentials')",
    "read a token": "open('.cargo/credentials.toml')",
    "start with the session": "open('.config/autostart/two', 'w')",
    "write git's settings": "open('.gitconfig', 'a')",
    "write more settings of git": "open('.config/git/config', 'a')",
    "replace git's settings": "os.rename('project/src/file', '.gitconfig')",
    "change a program": "open('.cargo/bin/program', 'r+')",
    "make a program": "open('.local/bin/ls', 'w')",
    "make a toolchain": "os.mkdir('.rustup/toolchains')",
    "by a link of its own": (
        "to = 'project/%d' % os.getpid(); os.symlink('../.ssh/authorized_keys', to); open(to, 'a')"
    ),
    "by a hard link": "os.link('.ssh/authorized_keys', 'project/l')",
    "by moving it": "os.rename('.ssh', 'project/ssh')",
    "by moving a folder over it": "os.rename('project/src', '.empty')",
    "by moving a folder of the home over it": "os.rename('project', '.empty')",
    "by a folder of a hidden name": "os.rename('project', '.gnupg')",
    "by another way": "open('project/../.ssh/authorized_keys', 'a')",
    "a new file in the home itself": "open('new', 'w')",
}


@pytest.mark.parametrize("source", CLOSED.values(), ids=CLOSED.keys())
def test_hidden_files_of_a_home_are_closed(scene: Scene, home: Path, source: str) -> None:
    # the issue: "An agent in $HOME with a writing tool wrote .ssh/authorized_keys and read 0600 files"
    refused, free = both(scene, home, source)
    assert (refused in (*confined.CLOSED, "EXDEV"), free) == (True, "done")


@pytest.mark.parametrize(
    "what", ["append to the keys of ssh", "make a profile", "read passwords", "by moving it"]
)
def test_they_are_closed_from_above_too(scene: Scene, home: Path, what: str) -> None:
    assert both(scene, home, CLOSED[what], scene.path)[0] in (*confined.CLOSED, "EXDEV")


OPEN = {
    "what is there": "os.listdir('.'); os.listdir('.ssh')",  # names only: a right to list holds for all below
    "edit": "open('project/src/file', 'a')",
    "hidden files elsewhere": "open('project/.env', 'a'); open('project/.new', 'w')",
    "make, move, remove": "os.mkdir('project/a'); os.rename('project/a', 'project/b'); os.rmdir('project/b')",
    "edit a file of the home itself": "open('notes', 'a')",
    "git's settings": "open('.gitconfig').read(); open('.config/git/config').read()",
    "programs": "subprocess.run(['.cargo/bin/program'], check=True)",
}


@pytest.mark.parametrize("source", OPEN.values(), ids=OPEN.keys())
def test_what_an_agent_can_do_in_a_home(scene: Scene, home: Path, source: str) -> None:
    assert both(scene, home, source) == ("done", "done")


@pytest.mark.parametrize(
    ("cwd", "source", "result"),
    [
        (".config/autostart", "open('.config/autostart/two', 'w')", "done"),
        (".config", "open('.config/autostart/two', 'w')", "done"),
        (".config", "open('.config/git/config', 'a')", "EROFS"),
        (".config", "open('.config/git/credentials')", "EACCES"),
        (".config", "open('.ssh/authorized_keys')", "EACCES"),
        (".cargo", "open('.cargo/credentials.toml')", "EACCES"),
        (".cargo", "open('.cargo/credentials', 'w')", "EROFS"),
        (".cargo/bin", "open('.cargo/bin/program', 'r+')", "EROFS"),
        (".ssh", "open('.ssh/authorized_keys', 'a')", "EROFS"),
        ("dotfiles", "open('dotfiles/zshrc', 'a')", "done"),
        ("project", "open('.gitconfig').read()", "done"),
        ("project", "open('.bashrc')", "EACCES"),
    ],
)
def test_a_hidden_folder_that_was_chosen(
    scene: Scene, home: Path, cwd: str, source: str, result: str
) -> None:
    # docs/security.md: it is shown without keys and passwords, and files that programs need are read-only
    assert both(scene, home, source, home / cwd) == (result, "done")
