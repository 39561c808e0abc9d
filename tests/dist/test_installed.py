"""Installations on a clean Debian 12, without a compiler or a network; their removal leaves no file."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from cortexfs.cli.parser import COMMANDS
from tests.places import PROJECT

HERE = Path(__file__).parent / "scripts"
DIST = PROJECT / "dist"
CLEAN = PROJECT / "build/clean-root"
TOOLS = PROJECT / "build/dist-tools"
# Files that any command or package of Debian may change.
ANYBODYS = ("made", "old", "tmp", "var/log", "var/cache", "var/lib/dpkg", "run/mount", "var/mail", "home")
ACCOUNTS = {f"etc/{name}{end}" for name in ("passwd", "shadow", "group", "gshadow", "subuid", "subgid")
            for end in ("", "-")} | {"etc/.pwd.lock"}  # fmt: skip
STATE = ("ctx", "etc/cortexfs", "var/lib/cortexfs", "var/lib/cortexfs-kept", "var/lib/cortexfs-plugins")


def run(tmp_path: Path, name: str) -> set[str]:
    """Run a script; returns the files and links that it left."""
    script = tmp_path / "script"
    script.write_text(f"cat >/made/common <<'TEXT'\n{(HERE / 'common').read_text()}TEXT\n. /made/common\n"
                      f"{(HERE / name).read_text()}")  # fmt: skip
    words = [PROJECT / ".ci/dist/within", CLEAN, tmp_path, script]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    upper = tmp_path / "upper"
    left = {
        str(path.relative_to(upper)) for path in upper.rglob("*") if path.is_symlink() or not path.is_dir()
    }
    return {
        name
        for name in left
        if name not in ACCOUNTS and not name.startswith(tuple(f"{each}/" for each in ANYBODYS))
    }


def test_the_clean_root_has_no_compiler() -> None:
    for name in ("gcc", "cc", "clang", "tcc", "pkg-config", "musl-gcc"):
        assert not (CLEAN / "usr/bin" / name).is_symlink()
        assert not (CLEAN / "usr/bin" / name).exists()
    assert (CLEAN / "usr/bin/python3").exists()


def test_pip_installs_and_removes_it(tmp_path: Path) -> None:
    left = run(tmp_path, "pip")
    assert not [name for name in left if not name.startswith(STATE)]


@pytest.mark.parametrize("way", ["user", "uv", "pipx"])
def test_a_user_without_root_installs_and_removes_it(tmp_path: Path, way: str) -> None:
    assert not run(tmp_path, way)


def test_the_debian_package_is_installed_upgraded_removed_and_purged(tmp_path: Path) -> None:
    assert not run(tmp_path, "deb")


def test_sums_are_those_of_all_files() -> None:
    lines = (DIST / "SHA256SUMS").read_text().splitlines()
    sums = {line[66:]: line[:64] for line in lines}
    files = {path.name for path in DIST.iterdir()} - {"SHA256SUMS"}
    assert sums == {name: hashlib.sha256((DIST / name).read_bytes()).hexdigest() for name in files}
    ends = sorted(os.path.splitext(name)[1] for name in files)
    assert ends == [".deb", ".gz", ".whl", ".whl"]


def test_the_source_package_has_what_git_has_and_nothing_else() -> None:
    known = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True)
    [path] = DIST.glob("cortexfs-*.tar.gz")
    with tarfile.open(path) as package:
        held = {name.partition("/")[2] for name in package.getnames()}
    held = {name for name in held if not name.startswith("man/")}
    assert held - {"PKG-INFO"} == set(known.stdout.split())


def test_the_wheel_has_the_programs_and_all_modules() -> None:
    [path] = DIST.glob("cortexfs-*.whl")
    assert "manylinux" in path.name
    held = set(zipfile.ZipFile(path).namelist())
    modules = {str(each.relative_to(PROJECT)) for each in (PROJECT / "cortexfs").rglob("*.py")}
    assert modules <= held
    data = {name.rpartition("/")[2] for name in held if ".data/scripts/" in name} - {""}
    assert data == {"cortexfs-object-runner", "cortexfs-looker"}


def test_lintian_finds_no_error_in_the_debian_package() -> None:
    [path] = DIST.glob("*.deb")
    words = ["lintian", "--allow-root", "--fail-on", "error", "--tag-display-limit", "0", str(path)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_man_page_for_each_command_and_man_warns_of_none() -> None:
    pages = sorted((PROJECT / "build/dist/source/man").rglob("*.[157]"))
    names = {page.name for page in pages}
    assert {f"ctx-{name}.1" for name in COMMANDS} | {"ctx.1", "ctx.7", "cortexfs-config.5"} <= names
    environ = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
    for page in pages:
        words = ["man", "--warnings", "-l", str(page)]
        done = subprocess.run(words, env=environ, cwd=page.parents[1], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), page
        assert len(done.stdout.splitlines()) > 10, page


def test_pypi_would_take_them() -> None:
    files = [path for path in DIST.iterdir() if path.suffix in (".gz", ".whl")]
    words = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(TOOLS)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_link_of_readme_leads_nowhere_on_pypi() -> None:
    [path] = DIST.glob("cortexfs-*.whl")
    with zipfile.ZipFile(path) as package:
        [name] = [each for each in package.namelist() if each.endswith(".dist-info/METADATA")]
        text = package.read(name).decode().partition("\n\n")[2]
    assert "docs/ctx.md" in text
    assert not re.search(r"\]\((?!https?://)", text)
