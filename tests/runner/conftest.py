"""Builds of the runner: as it ships, and with the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.core import wire
from cortexfs.version import VERSION
from tests.runner import fake

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")

EVERY = sorted((Path(__file__).parents[2] / "runner").glob("*.c"))
LOOKER = [path for path in EVERY if path.name == "cortexfs-looker.c"]
SOURCES = [path for path in EVERY if path not in LOOKER]

WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
PLAIN = ["-O2", "-static"]
SANITIZED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
DEBUG = ["-g", "-O1"]


def build(target: Path, flags: list[str], compiler: str = "cc", sources: list[Path] = SOURCES) -> Path:
    define = f'-DCORTEXFS_VERSION="{VERSION}"'
    subprocess.run([compiler, *WARNINGS, *flags, define, "-o", target, *sources], check=True)
    return target


@pytest.fixture(scope="session")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runner")
    compiler = "musl-gcc" if shutil.which("musl-gcc") else "cc"
    return {
        "plain": build(folder / "plain", PLAIN, compiler),
        "sanitized": build(folder / "sanitized", SANITIZED),
        "debug": build(folder / "debug", DEBUG),
    }


@pytest.fixture(scope="session", params=["plain", "sanitized"])
def runner(binaries: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    return binaries[request.param]


@pytest.fixture
def place(runner: Path, tmp_path: Path) -> Iterator[fake.Place]:
    with fake.place(tmp_path, runner) as made:
        yield made


@pytest.fixture
def open_place(runner: Path) -> Iterator[fake.Place]:
    """A place and a runner that other users can reach, as they cannot reach pytest's own folders."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        folder.chmod(0o755)
        copy = Path(shutil.copy(runner, folder / "runner"))
        with fake.place(folder, copy) as made:
            (folder / wire.SOCKET_NAME).chmod(0o777)
            yield made
    finally:
        shutil.rmtree(folder)
