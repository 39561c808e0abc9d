"""Installed plugins: which directories count, what is wrong with one, and where its programs are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.governance import Mechanism
from cortexfs.plugins import directory, manifests
from cortexfs.plugins.directory import Installed

AVAILABLE = frozenset((Mechanism.PROCESS, Mechanism.RLIMITS))
NATIVE = 'trust = "trusted_native"\n[native]\nisolation = "trusted_in_process"\nabi_version = 1\n'
TOOLS = '[capabilities]\nprovides = ["tools"]\n'
TOOL = '[[native.tools]]\nname = "add"\ndescription = "Adds"\ncommand = "bin/add"\ninput_schema = {}\n'


def plugin(base: Path, name: str = "notes", text: str = "", folder: str = "", version: str = "1.6.9") -> Path:
    where = base / (folder or name)
    (where / "bin").mkdir(parents=True)
    (where / "bin" / "add").touch()
    top = f'name = "{name}"\nversion = "1"\ndescription = ""\ncortex_version = "{version}"\n'
    (where / "manifest.toml").write_text(top + text)
    return where


def scan(base: Path, enabled: Callable[[str], bool] = lambda name: True) -> list[Installed]:
    return directory.scan(base, enabled, AVAILABLE)


def fault(base: Path, text: str) -> str:
    plugin(base, text=text)
    (one,) = scan(base)
    assert one.fault
    assert not one.enabled
    return one.fault


def test_plugins_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    # cortex-sdk.md 5: "Directory scan order = readdir order ... (BUG): sort"
    for name in ("c", "a", "b", "B"):
        plugin(tmp_path, name)
    assert [one.name for one in scan(tmp_path)] == ["B", "a", "b", "c"]
    assert scan(tmp_path / "missing") == []


def test_what_is_no_plugin_is_passed_over(tmp_path: Path) -> None:
    # cortex-sdk.md 2: "Subdirs starting "." or ending .bak skipped. Per dir: manifest present?"
    plugin(tmp_path, folder=".notes")
    plugin(tmp_path, folder="notes.bak")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert scan(tmp_path) == []


def test_a_fault_is_one_sentence_and_the_others_go_on(tmp_path: Path) -> None:
    # cortex-sdk.md 2: "Any failure = one warning string, plugin skipped, daemon goes on"
    (plugin(tmp_path, "bad") / "manifest.toml").write_text("name = ")
    plugin(tmp_path, "good")
    bad, good = scan(tmp_path)
    assert bad.fault
    assert bad.fault.startswith(f"invalid manifest {tmp_path}/bad/manifest.toml: it is not TOML: ")
    assert (good.fault, good.enabled) == (None, True)


def test_a_disabled_plugin_is_told_of_too(tmp_path: Path) -> None:
    # cortex-sdk.md 2: "A broken but disabled plugin still warns"
    plugin(tmp_path, "good", TOOLS)  # no [native]: judged only where it is enabled
    plugin(tmp_path, "old", version="9.0.0")
    good, old = scan(tmp_path, lambda name: False)
    assert (good.enabled, good.fault) == (False, None)
    reason = "it needs 9.0.0 or newer, and this host has 1.6.9"
    assert old.fault == f"plugin 'old' targets a different cortex version than 1.6.9: {reason}"


def test_what_is_wrong_is_told_in_the_order_of_the_loader(tmp_path: Path) -> None:
    # cortex-sdk.md 2: "parse+merge package.toml -> cortex_version -> governance -> enabled list -> native"
    wrong = TOOLS + '[sandbox]\nlevel = "container_vm"\n'
    where = plugin(tmp_path, "notes", wrong, version="")
    (where / "package.toml").write_text("x")
    assert "invalid package metadata" in (scan(tmp_path)[0].fault or "")
    (where / "package.toml").unlink()
    assert "cortex_version is required" in (scan(tmp_path)[0].fault or "")
    manifest = where / "manifest.toml"
    manifest.write_text(manifest.read_text().replace('cortex_version = ""', 'cortex_version = "1.0.0"'))
    assert "container_vm is not enforced" in (scan(tmp_path)[0].fault or "")
    manifest.write_text(manifest.read_text().replace("container_vm", "child_process"))
    assert "has no [native] section" in (scan(tmp_path)[0].fault or "")


def test_package_toml_replaces_the_section_whole(tmp_path: Path) -> None:
    # cortex-sdk.md 1: "A package.toml file REPLACES [package] whole"
    where = plugin(tmp_path, text='[package]\npublisher_id = "a"\nsbom = "b"\n')
    assert directory.read(where).package.sbom == "b"
    (where / "package.toml").write_text('publisher_id = "c"\n')
    package = directory.read(where).package
    assert (package.publisher_id, package.sbom) == ("c", "")


@pytest.mark.parametrize("text", ["x = 1", "publisher_id = 1", "\xff", "["])
def test_package_toml_that_cannot_be_read_is_a_fault(tmp_path: Path, text: str) -> None:
    # cortex-sdk.md 1: upstream's CLI "silently falls back to [package]"; loader: "invalid package metadata"
    where = plugin(tmp_path)
    (where / "package.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(Fault, match=f"invalid package metadata {where}/package.toml: "):
        directory.read(where)


def test_names_that_differ_are_a_warning(tmp_path: Path) -> None:
    # cortex-sdk.md 2: names "are NOT compared (DOC!=CODE)": "make a mismatch a warning"
    plugin(tmp_path, folder="cortex-plugin-notes")
    (one,) = scan(tmp_path)
    assert one.enabled
    assert (
        one.warning == "the directory cortex-plugin-notes holds the plugin notes; they should have one name"
    )


def test_of_two_directories_the_one_with_the_name_counts(tmp_path: Path) -> None:
    for folder in ("a", "notes", "z"):
        plugin(tmp_path, folder=folder)
    a, notes, z = scan(tmp_path)
    assert (notes.fault, notes.enabled) == (None, True)
    assert a.fault == z.fault == f"{tmp_path}/notes has the plugin notes already"
    assert not a.enabled


@pytest.mark.parametrize(
    "data", [b"\xff", b"a = " + b"[" * 100_000, b"a = " + b"9" * 100_000, b"#" * (1 << 21)]
)
def test_a_hostile_manifest_is_a_sentence(data: bytes) -> None:
    with pytest.raises(Fault, match=r"invalid manifest\.toml: ") as caught:
        manifests.parse(data)
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_a_manifest_that_is_no_file_holds_nobody_up(tmp_path: Path, kind: str) -> None:
    where = tmp_path / "notes"
    where.mkdir()
    os.mkfifo(where / "manifest.toml") if kind == "pipe" else (where / "manifest.toml").mkdir()
    (one,) = scan(tmp_path)
    assert one.fault


def test_commands_are_found_in_the_plugin(tmp_path: Path) -> None:
    # cortex-sdk.md 1 and 3: "command relative -> plugin dir", "cwd = working_dir or plugin dir"
    (plugin(tmp_path, text=TOOLS + TOOL + 'args = ["-v"]\n') / "data").mkdir()
    (one,) = scan(tmp_path)
    assert one.commands == (((f"{one.path}/bin/add", "-v"), str(one.path)),)
    manifest = one.path / "manifest.toml"
    manifest.write_text(manifest.read_text() + 'working_dir = "data"\n')
    assert scan(tmp_path)[0].commands[0].working_dir == f"{one.path}/data"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('command = "bin/other"', "command not found: {}/bin/other; "),
        ('command = "bin"', "command not found: {}/bin; "),
        ('command = "/bin/sh"', "command escapes plugin directory: /bin/sh; "),
        ('command = "bin/../../outside"', "command escapes plugin directory: {}/bin/../../outside; "),
        ('command = "bin/link"', "command escapes plugin directory: {}/bin/link; "),
        ('working_dir = "data"', "working_dir not found: {}/data; "),
        ('working_dir = "bin/add"', "working_dir not found: {}/bin/add; "),
        ('working_dir = ".."', "working_dir escapes plugin directory: {}/..; "),
    ],
)
def test_commands_stay_in_the_plugin(tmp_path: Path, line: str, sentence: str) -> None:
    # cortex-sdk.md 1: "command and working_dir must canonicalize under canonical plugin dir"
    text = TOOLS + TOOL.replace('command = "bin/add"', line)
    if "working_dir" in line:
        text = TOOLS + TOOL + line + "\n"
    where = plugin(tmp_path, text=text)
    (tmp_path / "outside").touch()
    (where / "bin" / "link").symlink_to(tmp_path / "outside")
    (one,) = scan(tmp_path)
    assert one.fault
    assert one.fault.startswith(f"process tool 'add' {sentence.format(where)}")


def test_a_loop_of_links_is_a_fault(tmp_path: Path) -> None:
    where = plugin(tmp_path, text=TOOLS + TOOL)
    (where / "bin" / "add").unlink()
    (where / "bin" / "add").symlink_to("add")
    assert "command not found" in (scan(tmp_path)[0].fault or "")


def test_the_hosts_paths_are_to_be_asked_for(tmp_path: Path) -> None:
    text = TOOL.replace("bin/add", "/bin/sh") + 'allow_host_paths = true\nworking_dir = "/"\n'
    plugin(tmp_path, text=TOOLS + text)
    (one,) = scan(tmp_path)
    assert one.commands == ((("/bin/sh",), "/"),)


def test_a_library_is_there_and_in_the_plugin(tmp_path: Path) -> None:
    # cortex-sdk.md 2: "Missing .so: logged, plugin "loaded" without tools": here it is told
    text = NATIVE.replace("[native]", TOOLS + "[native]")
    where = plugin(tmp_path, text=text)
    assert "has no library" in (scan(tmp_path)[0].fault or "")
    (where / "libnotes.so").symlink_to("/bin/sh")
    assert "has its library outside" in (scan(tmp_path)[0].fault or "")
    (where / "libnotes.so").unlink()
    (where / "libnotes.so").touch()
    assert scan(tmp_path)[0].library == where / "libnotes.so"
