"""Make the states of earlier versions, which today's daemon has to understand.

    .venv/bin/python -m tests.states.make [COMMIT...]

Each commit is built into an environment of its own, mounted, used as its users did, and unmounted. Its state
is NAME.tar.xz, and NAME.json holds the output that it showed. The commits are the last ones of issues.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path

from tests.places import PROJECT

HERE = Path(__file__).parent
# The last commit of each closed issue, and the first commit that users had.
COMMITS = ("0b89b85", "d6596c9", "b0fa807", "e001957", "beaadae", "db2dc9b", "0a3f6c1", "a87a2ee")
SESSION = "kept"
SAID = "this is kept over upgrades"
# Controls and the values that are written to them, where a commit has them: in the tree of all versions.
CONTROLS = {
    "tool/fs.read.d/policy": "allow coder_t tool:fs.read execute\n",
    "tool/fs.search.d/env": "KEPT=yes\n",
}
COMMANDS = (
    f"send debug/echo --session {SESSION} {SAID!r}",
    "agent new keeper --model debug/echo --tools fs.read",
    "provider add keeper --base-url http://127.0.0.1:9/v1 --format openai.chat --model big",
    "provider secret set keeper",
)


def made(commit: str, folder: Path) -> Path:
    """Build a commit; returns the path of its ctx."""
    source, home = folder / "source", folder / "venv"
    source.mkdir()
    packed = subprocess.run(["git", "archive", commit], cwd=PROJECT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", source], input=packed, check=True)
    venv.create(home, symlinks=True)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    [wheel] = folder.glob("*.whl")
    python = home / "bin/python"
    subprocess.run([*pip, "--python", python, "install", "--no-deps", wheel], check=True)
    site = home / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    (site / "shared.pth").write_text(sysconfig.get_path("purelib"))
    return home / "bin/ctx"


def used(ctx: Path, root: Path, state: Path) -> dict[str, object]:
    """Use a mount; returns the outputs that it showed."""
    places = {"CTX_STATE": str(state), "CTX_CONFIG": f"{state}-config", "CTX_ROOT": str(root)}
    environ = {**os.environ, **places}

    def run(line: str) -> bool:
        words = f"{ctx} {line}"
        done = subprocess.run(
            words, shell=True, env=environ, input="sk-kept\n", text=True, capture_output=True
        )
        print(f"  {'ok' if done.returncode == 0 else done.stderr.strip()[-200:]}: {line[:60]}")
        return done.returncode == 0

    assert run(f"mount {root}")
    try:
        ran = [line.split(" --")[0] for line in COMMANDS if run(line)]
        controls = {}
        for path, text in CONTROLS.items():
            with contextlib.suppress(OSError):
                (root / path).write_text(text)
                controls[path] = (root / path).read_text()
        aliases = {}
        with contextlib.suppress(OSError):
            (root / "model/kept").symlink_to("debug/echo")
            aliases["model/kept"] = os.readlink(root / "model/kept")
        session = f"home/{os.getuid()}/model/debug/echo.d/session/{SESSION}/latest.md"
        said = (root / session).read_text() if "send debug/echo" in ran else None
    finally:
        run(f"umount {root}")
    return {"commands": ran, "controls": controls, "aliases": aliases, "session": said}


def make(commit: str) -> None:
    print(commit)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        root, state = folder / "root", folder / "state"
        shown = used(made(commit, folder), root, state)
        (HERE / f"{commit}.json").write_text(json.dumps(shown, indent=1) + "\n")
        with tarfile.open(HERE / f"{commit}.tar.xz", "w:xz") as packed:
            for each in (state, Path(f"{state}-config")):
                packed.add(each, each.name, filter=kept)


def kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leaves out caches, sockets and the log of the daemon."""
    return (
        None if member.name.endswith(("daemon.log", ".sock")) or "/descriptions/" in member.name else member
    )


if __name__ == "__main__":
    for each in sys.argv[1:] or COMMITS:
        make(each)
