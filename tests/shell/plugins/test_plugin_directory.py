"""Installed plugins: the directories that count, the faults of a plugin, and the places of its programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.manifest.governance import Mechanism
from cortexfs.plugins.package import directory, manifests
from cortexfs.plugins.package.targets import ProgramCommand, resolve

AVAILABLE = frozenset((Mechanism.PROCESS, Mechanism.RLIMITS))
TOOLS = '[capabilities]\nprovides = ["tools"]\n'
TOOL = '[[native.tools]]\nname = "add"\ndescription = "Adds"\ncommand = "bin/add"\ninput_schema = {}\n'


def plugin(base: Path, name: str = "notes", text: str = "", folder: str = "", version: str = "1.6.9") -> Path:
    where = base / (folder or name)
    (where / "bin").mkdir(parents=True)
    (where / "bin" / "add").touch()
    top = f'name = "{name}"\nversion = "1"\ndescription = ""\ncortex_version = "{version}"\n'
    (where / "manifest.toml").write_text(top + text)
    return where


def refused(where: Path) -> str:
    with pytest.raises(Fault) as caught:
        directory.check(directory.read(where), AVAILABLE)
    return caught.value.message


def test_what_is_no_plugin_is_passed_over(tmp_path: Path) -> None:
    # abi.md 11.17
    for name in ("c", "a", "B", ".a", "a.bak", "a~"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    assert [folder.name for folder in directory.folders(tmp_path)] == ["B", "a", "c"]
    assert directory.folders(tmp_path / "missing") == []


def test_what_is_wrong_is_told_in_the_order_of_the_loader(tmp_path: Path) -> None:
    # abi.md 11.5, 11.7
    wrong = TOOLS + '[sandbox]\nlevel = "container_vm"\n'
    where = plugin(tmp_path, "notes", wrong, version="")
    (where / "package.toml").write_text("x")
    assert "invalid package metadata" in refused(where)
    (where / "package.toml").unlink()
    assert "cortex_version is required" in refused(where)
    manifest = where / "manifest.toml"
    manifest.write_text(manifest.read_text().replace('cortex_version = ""', 'cortex_version = "9.0.0"'))
    reason = "it needs 9.0.0 or newer, and this host has 1.6.9"
    assert refused(where) == f"plugin 'notes' targets a different cortex version than 1.6.9: {reason}"
    manifest.write_text(manifest.read_text().replace("9.0.0", "1.0.0"))
    assert "container_vm is not enforced" in refused(where)
    manifest.write_text(manifest.read_text().replace("container_vm", "child_process"))
    assert "has no [native] section" in refused(where)


def test_package_toml_replaces_the_section_whole(tmp_path: Path) -> None:
    # abi.md 11.7
    where = plugin(tmp_path, text='[package]\npublisher_id = "a"\nsbom = "b"\n')
    assert directory.read(where).package.sbom == "b"
    (where / "package.toml").write_text('publisher_id = "c"\n')
    package = directory.read(where).package
    assert (package.publisher_id, package.sbom) == ("c", "")


@pytest.mark.parametrize("text", ["x = 1", "publisher_id = 1", "\xff", "["])
def test_package_toml_that_cannot_be_read_is_a_fault(tmp_path: Path, text: str) -> None:
    # abi.md 11.7
    where = plugin(tmp_path)
    (where / "package.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(Fault, match=f"invalid package metadata {where}/package.toml: "):
        directory.read(where)


@pytest.mark.parametrize(
    "data", [b"\xff", b"a = " + b"[" * 100_000, b"a = " + b"9" * 100_000, b"#" * (1 << 21)]
)
def test_a_hostile_manifest_is_a_sentence(data: bytes) -> None:
    with pytest.raises(Fault, match=r"invalid manifest\.toml: ") as caught:
        manifests.parse(data)
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("kind", ["pipe", "directory", "nothing"])
def test_a_manifest_that_is_no_file_holds_nobody_up(tmp_path: Path, kind: str) -> None:
    where = tmp_path / "notes"
    where.mkdir()
    if kind == "pipe":
        os.mkfifo(where / "manifest.toml")
    elif kind == "directory":
        (where / "manifest.toml").mkdir()
    with pytest.raises(Fault):
        directory.read(where)


def resolved(where: Path) -> ProgramCommand:
    native = directory.read(where).native
    assert native
    return resolve(native.tools[0], where)


def test_commands_are_found_in_the_plugin(tmp_path: Path) -> None:
    # abi.md 11.9
    where = plugin(tmp_path, text=TOOLS + TOOL + 'args = ["-v"]\n')
    (where / "data").mkdir()
    assert resolved(where) == ((f"{where}/bin/add", "-v"), str(where))
    manifest = where / "manifest.toml"
    manifest.write_text(manifest.read_text() + 'working_dir = "data"\n')
    assert resolved(where).working_dir == f"{where}/data"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('command = "bin/other"', "command not found: bin/other; "),
        ('command = "bin"', "command not found: bin; "),
        ('command = "/bin/sh"', "command escapes plugin directory: /bin/sh; "),
        ('command = "bin/../../outside"', "command escapes plugin directory: bin/../../outside; "),
        ('command = "bin/link"', "command escapes plugin directory: bin/link; "),
        ('command = "bin/loop"', "command not found: bin/loop; "),
        ('working_dir = "data"', "working_dir not found: data; "),
        ('working_dir = "bin/add"', "working_dir not found: bin/add; "),
        ('working_dir = ".."', "working_dir escapes plugin directory: ..; "),
    ],
)
def test_commands_stay_in_the_plugin(tmp_path: Path, line: str, sentence: str) -> None:
    # abi.md 11.9
    text = TOOLS + TOOL.replace('command = "bin/add"', line)
    if "working_dir" in line:
        text = TOOLS + TOOL + line + "\n"
    where = plugin(tmp_path, text=text)
    (tmp_path / "outside").touch()
    (where / "bin" / "link").symlink_to(tmp_path / "outside")
    (where / "bin" / "loop").symlink_to("loop")
    with pytest.raises(Fault) as caught:
        resolved(where)
    assert caught.value.message.startswith(f"process tool 'add' {sentence}")


def test_the_hosts_paths_are_to_be_asked_for(tmp_path: Path) -> None:
    text = TOOL.replace("bin/add", "/bin/sh") + 'allow_host_paths = true\nworking_dir = "/"\n'
    assert resolved(plugin(tmp_path, text=TOOLS + text)) == (("/bin/sh",), "/")
