"""Plugins with a manifest.json as directories and packages, and as the daemon learns of them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cortexfs import config
from cortexfs.config import Config
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import targets
from cortexfs.core.manifest.toml import Package
from cortexfs.core.manifestjson import fetched
from cortexfs.plugins import json_kinds
from cortexfs.plugins.enabled import Offers
from cortexfs.plugins.install import decisions
from cortexfs.plugins.install import fetch as fetching
from cortexfs.plugins.install import install as installing
from cortexfs.plugins.package import manifest_hash, manifests, package, records
from cortexfs.plugins.trust import signing

MODULE = b"\0asm\1\0\0\0"
MANIFEST = {
    "name": "word-count",
    "version": "1.0.0",
    "description": "Counts words",
    "kind": "wasm",
    "entryPoint": "./lib/count.wasm",
    "runtime": "wasm",
    "capabilities": ["tools"],
}


def plugin(where: Path, **changes: Any) -> Path:
    """Create the directory of a plugin as its author has it."""
    (where / "lib").mkdir(parents=True, exist_ok=True)
    (where / "lib" / "count.wasm").write_bytes(MODULE)
    (where / "manifest.json").write_bytes(msgspec.json.encode(MANIFEST | changes))
    return where


class World:
    """A state and a configuration, and plugins installed in them."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.config = Config(state=base / "state", directory=base / "config")
        for folder in (base / "state", base / "config"):
            folder.mkdir()
        self.offers = Offers(self.config)

    def install(self, name: str = "word-count", **changes: Any) -> Path:
        tree = package.read(plugin(self.base / "source" / name, name=name, **changes))
        record = records.PluginRecord("a test", records.files_of(tree))
        files = {**tree.files, records.FILE: records.file(record)}
        where = installing.install(self.base / "state" / "plugins", name, files)
        config.choose(self.config.directory, name, True)
        return where

    def offered(self) -> hostcalls.Plugin:
        loaded = self.offers.load()
        assert loaded.faults == {}
        (one,) = loaded.plugins
        return one

    def fault(self, name: str = "word-count") -> str:
        return self.offers.load().faults[name]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def told(one: hostcalls.Plugin) -> targets.WasmModule:
    return targets.declared(one, targets.WasmModule)


def test_a_directory_is_every_file_in_it(tmp_path: Path) -> None:
    # docs/manifest-json.md: "every file below the directory, hidden ones too"
    folder = plugin(tmp_path / "p")
    for name in (".hidden", "data/table.csv", "notes.bak", ".git/HEAD", ".installed.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    tree = package.read(folder)
    expected = [".hidden", "data/table.csv", "lib/count.wasm", "manifest.json", "notes.bak"]
    assert sorted(tree.files) == expected
    assert (tree.manifest.name, tree.manifest.version) == ("word-count", "1.0.0")
    assert tree.ignored == (".git",)
    assert package.unpack(package.pack(tree), "x.cpx").files == tree.files


def test_a_manifest_toml_comes_first(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "p")
    text = 'name = "other"\nversion = "1"\ndescription = "x"\ncortex_version = "1.6.0"\n'
    (folder / "manifest.toml").write_text(text)
    assert package.read(folder).manifest.name == "other"


def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    # Of the originals: "Symlinks inside the allowed dir are followed"
    folder = plugin(tmp_path / "p")
    for make in (
        lambda path: path.symlink_to("/etc/passwd"),
        lambda path: path.symlink_to("lib"),
        lambda path: path.symlink_to("nowhere"),
        os.mkfifo,
    ):
        make(folder / "odd")
        with pytest.raises(Fault, match='"odd" is neither a file nor a directory; ship a copy of what it'):
            package.read(folder)
        (folder / "odd").unlink()


def test_the_hash_is_verified_when_it_is_read(tmp_path: Path) -> None:
    # abi.md 9.9
    whole = manifest_hash.package_digest(
        {name: file.data for name, file in package.read(plugin(tmp_path / "p")).files.items()}
    )
    entry = f"sha256:{hashlib.sha256(MODULE).hexdigest()}"
    for right in (whole, entry):
        assert package.read(plugin(tmp_path / "p", hash=right)).manifest.name == "word-count"
    wrong = f"sha256:{'0' * 64}"
    with pytest.raises(Fault, match=f"manifest.json: hash: says {wrong}, but the files are {whole}; install"):
        package.read(plugin(tmp_path / "p", hash=wrong))


def test_the_entry_point_is_among_the_files(tmp_path: Path) -> None:
    folder = plugin(tmp_path / "p")
    (folder / "lib" / "count.wasm").unlink()
    with pytest.raises(Fault, match=r'entryPoint: "lib/count.wasm" is not among its files; put it there'):
        package.read(folder)


def test_what_is_installed_is_told_to_its_host(world: World) -> None:
    world.install()
    one = world.offered()
    assert (one.name, one.version, one.kind) == ("word-count", "1.0.0", "wasm")
    module = told(one)
    assert Path(module.path).read_bytes() == MODULE
    # abi.md 11.28: "What runs is a copy of the bytes that were checked"
    assert Path(module.path).is_relative_to(world.base / "state-plugins")
    assert module.sha256 == hashlib.sha256(MODULE).hexdigest()
    assert (module.capabilities, module.config) == (("tools",), {})
    assert one.keeps == str(world.base / "state-kept" / "word-count")
    assert Path(one.keeps).stat().st_mode & 0o777 == 0o755


def test_what_has_changed_since_is_refused(world: World) -> None:
    where = world.install()
    world.offered()
    (where / "lib" / "count.wasm").write_bytes(MODULE + b"\0")
    assert world.fault() == 'it has changed since it was installed: "lib/count.wasm"; install it anew'


def test_defaults_of_its_settings_are_told(world: World) -> None:
    # docs/manifest-json.md: "A set value counts, else that in config.settings"
    world.install(config={"settings": {"depth": 3}})
    assert told(world.offered()).config == {"depth": 3}


# -- a module at an address

ADDRESS = "https://example.com/count.wasm"
DIGEST = f"sha256:{hashlib.sha256(MODULE).hexdigest()}"


def fetch(address: str, most: int) -> bytes:
    assert (address, most) == (ADDRESS, fetching.MAX_MODULE)
    return MODULE


def remote(where: Path, **changes: Any) -> package.PackageFiles:
    return package.read(plugin(where, entryPoint=ADDRESS, **changes))


def test_a_module_at_an_address_is_fetched_once(tmp_path: Path) -> None:
    # abi.md 9.29
    tree = remote(tmp_path / "p")
    assert manifests.is_json(tree.manifest)
    with pytest.raises(Fault, match=f"its module is at {ADDRESS}, which is fetched at the installation"):
        json_kinds.plugin(tree.manifest.json, tmp_path / "p")
    whole = fetching.completed(tree, fetch)
    place = tmp_path / "installed"
    installing.write(place, whole.files)
    assert package.read(place).files == whole.files
    assert Path(told(json_kinds.plugin(tree.manifest.json, place)).path).read_bytes() == MODULE


def test_the_hash_of_what_is_fetched_holds(tmp_path: Path) -> None:
    assert fetching.completed(remote(tmp_path / "p", hash=DIGEST), fetch).files
    with pytest.raises(Fault, match=r"manifest\.json: hash: says sha256:000"):
        fetching.completed(remote(tmp_path / "p", hash=f"sha256:{'0' * 64}"), fetch)
    # a hash of the package says nothing about the module
    package_hash = manifest_hash.package_digest(
        {name: file.data for name, file in remote(tmp_path / "q").files.items()}
    )
    with pytest.raises(Fault, match=f"hash: does not cover {ADDRESS}; write the SHA-256 of what is there"):
        fetching.completed(remote(tmp_path / "q", hash=package_hash), fetch)


def test_a_signature_needs_the_hash_of_what_is_fetched(tmp_path: Path) -> None:
    signing.write_package(plugin(tmp_path / "p"), Package())
    for changes in ({"hash": DIGEST}, {}):
        tree = remote(tmp_path / "p", **changes)
        signed = signing.signed(tree, signing.sign(tree, b"s" * 32, "example.dev"))
        if not changes:
            with pytest.raises(Fault, match=f"its signature does not cover {ADDRESS}, the address"):
                fetching.completed(signed, fetch)
            continue
        whole = fetching.completed(signed, fetch)
        assert signing.verify(whole).status == "verified"
    # a file that a package carries in the module's place is discarded, as no signature covers it
    smuggled = package.File(b"evil")
    tree = package.read(plugin(tmp_path / "r"))
    carrying = package.PackageFiles({**tree.files, fetched.MODULE: smuggled}, tree.manifest)
    assert fetching.completed(carrying, fetch).files == tree.files


def test_what_a_plugin_has_kept_goes_with_it(world: World) -> None:
    world.install()
    kept = Path(world.offered().keeps)
    # also the remains of a killed removal
    for folder in (kept / "1000", kept.with_name(f".{kept.name}") / "1000"):
        folder.mkdir(parents=True)
        (folder / "state.sqlite").write_bytes(b"x")
    decisions.forget(world.config.state, "word-count")
    assert list(kept.parent.iterdir()) == []
    decisions.forget(world.config.state, "word-count")
