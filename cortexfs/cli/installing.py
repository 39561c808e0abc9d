"""Installs packages into the command's own environment, with the program that made it: pip, uv or pipx.

Rules: an environment made by uv or pipx has no pip, and only that program may change it. One that the
system's package manager keeps is left alone. Output goes to standard error, as it may take long.
This file must never know the purpose of the packages.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from cortexfs.cli import progress
from cortexfs.core.errors import Fault

_PIP = ("-m", "pip", "--disable-pip-version-check", "--retries", "2", "install")


def install(words: Sequence[str]) -> None:
    """Install packages. `words` are the words after `pip install`, and the last of them is a package."""
    site = sysconfig.get_path("purelib")
    command = [*_installer(words[-1]), *words]
    if not os.access(site, os.W_OK):
        raise Fault("EACCES", f"you may not install into {site}; let its owner run this command")
    quiet = {"PIP_PROGRESS_BAR": "off", "UV_NO_PROGRESS": "1"} if progress.stays() else {}
    done = subprocess.run(
        command,
        stdout=sys.stderr.fileno(),
        stdin=subprocess.DEVNULL,
        env={**os.environ, **quiet},
        check=False,
    )
    if done.returncode:
        name = "pip" if command[0] == sys.executable else os.path.basename(command[0])
        mend = f"is the network there? See {name}'s words above, and run this again"
        raise Fault("EHOSTDOWN", f"{name} could not install {words[-1]}; {mend}")


def _installer(package: str) -> list[str]:
    """Returns the command without its packages. Raises EPERM or EHOSTDOWN if no program can install here."""
    prefix = Path(sys.prefix)
    if (pipx := shutil.which("pipx")) and (prefix / "pipx_metadata.json").exists():
        return [pipx, "runpip", prefix.name, "install"]
    uv, has_pip = shutil.which("uv"), importlib.util.find_spec("pip") is not None
    if uv and (_is_of_uv(prefix) or not has_pip):
        return [uv, "pip", "install", "--python", sys.executable]
    if Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED").exists() and sys.prefix == sys.base_prefix:
        mend = "install CortexFS into an environment of its own: python3 -m venv, uv tool or pipx"
        raise Fault("EPERM", f"{sys.prefix} is kept by the system's package manager; {mend}")
    if not has_pip:
        site = sysconfig.get_path("purelib")
        mend = f"install one of them, or install {package} into {site}"
        raise Fault("EHOSTDOWN", f"{sys.executable} has no pip, and there is no uv; {mend}")
    return [sys.executable, *_PIP]


def _is_of_uv(prefix: Path) -> bool:
    try:
        lines = (prefix / "pyvenv.cfg").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return any(line.partition("=")[0].strip() == "uv" for line in lines)
