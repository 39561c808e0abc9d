"""The packages: an sdist that builds by itself, as a checkout does, and a wheel that puts the runner beside
ctx."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cortexfs.version import VERSION

ROOT = Path(__file__).parents[2]
BUILD = "import scikit_build_core.build as b, sys; getattr(b, sys.argv[1])(sys.argv[2])"
SHIPPED = ["LICENSE", "README.md", "cortexfs", "docs", "pyproject.toml", "runner", "tests"]
SHIPPED += [".ci", "Makefile", "mountpoint", "requirements-dev.lock"]  # `make up` and `make test` need these


def build(what: str, source: Path, target: Path) -> Path:
    """Run a build backend's entry (PEP 517) in `source`; returns the one file that it makes."""
    target.mkdir()
    command = [sys.executable, "-c", BUILD, f"build_{what}", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (made,) = target.iterdir()
    return made


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of an sdist of this checkout, unpacked."""
    folder = tmp_path_factory.mktemp("packages")
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in SHIPPED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, checkout)
    sdist = build("sdist", checkout, folder / "sdist")
    subprocess.run(["tar", "xf", sdist, "-C", folder], check=True)
    return folder / f"cortexfs-{VERSION}"


@pytest.fixture(scope="module")
def wheel(unpacked: Path) -> zipfile.Path:
    """A wheel made from these files alone."""
    return zipfile.Path(build("wheel", unpacked, unpacked.parent / "wheel"))


def test_the_sdist_is_a_checkout(unpacked: Path) -> None:
    assert not [name for name in SHIPPED if not (unpacked / name).exists()]
    assert os.access(unpacked / ".ci" / "up", os.X_OK)


def test_the_wheel_installs_its_programs_beside_ctx(wheel: zipfile.Path, tmp_path: Path) -> None:
    runner = tmp_path / "runner"
    script = wheel / f"cortexfs-{VERSION}.data" / "scripts" / "cortexfs-object-runner"
    runner.write_bytes(script.read_bytes())
    runner.chmod(0o755)
    said = subprocess.run([runner, "--version"], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"cortexfs-object-runner {VERSION} ")
    looker = wheel / f"cortexfs-{VERSION}.data" / "scripts" / "cortexfs-looker"
    assert looker.read_bytes().startswith(b"\x7fELF")


# abi.md 8.5
def test_the_wheel_has_both_names_of_the_program(wheel: zipfile.Path) -> None:
    lines = (wheel / f"cortexfs-{VERSION}.dist-info" / "entry_points.txt").read_text().split("\n")
    assert {"ctx = cortexfs.cli.main:main", "cortex = cortexfs.cli.main:main"} <= set(lines)


def test_the_wheel_has_every_module_and_no_tests(wheel: zipfile.Path) -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "cortexfs").rglob("*.py")}
    shipped = set(wheel.root.namelist())
    assert modules <= shipped
    assert not [name for name in shipped if name.startswith(("tests/", "runner/"))]
