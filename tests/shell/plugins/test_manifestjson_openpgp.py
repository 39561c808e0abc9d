"""OpenPGP signatures of plugins with a manifest.json: made by gpg, trusted by a file, checked by gpgv."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs import config
from cortexfs.core.errors import Fault, exit_status
from cortexfs.plugins.enabled import Offers
from cortexfs.plugins.install import fetch as fetching
from cortexfs.plugins.package import manifest_hash, package
from cortexfs.plugins.trust import openpgp
from tests.shell.plugin_desk import World, world
from tests.shell.plugins.test_manifestjson_plugins import fetch, plugin, remote

__all__ = ["world"]  # a fixture

pytestmark = pytest.mark.skipif(not (shutil.which("gpg") and shutil.which("gpgv")), reason="gpg makes keys")


class Signer:
    def __init__(self, home: str) -> None:
        self._gpg = ["gpg", "--homedir", home, "--batch", "--quiet"]
        self._run("--passphrase", "", "--quick-gen-key", "Author <a@example.com>", "ed25519", "sign", "never")
        lines = self._run("--with-colons", "--list-keys").decode().splitlines()
        self.fingerprint = next(line.split(":")[9] for line in lines if line.startswith("fpr:"))
        self.key = self._run("--export")

    def _run(self, *words: str, given: bytes = b"") -> bytes:
        done = subprocess.run([*self._gpg, *words], input=given, capture_output=True, check=True)
        return done.stdout

    def signature(self, tree: package.PackageFiles) -> str:
        digest = manifest_hash.package_digest(tree.contents)
        return base64.b64encode(self._run("--detach-sign", given=digest.encode())).decode()


@pytest.fixture(scope="module")
def signer() -> Iterator[Signer]:
    home = tempfile.mkdtemp(prefix="gpg-")  # it holds a socket, whose path has to be short
    try:
        yield Signer(home)
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False)
        shutil.rmtree(home, ignore_errors=True)


def test_a_signed_package_is_installed_and_ends_with_its_key(world: World, signer: Signer) -> None:
    # abi.md 9.10
    source = world.base / "source"
    signature = signer.signature(package.read(plugin(source)))
    plugin(source, signature=signature)
    cpx = world.base / "x.cpx"
    world.ctx("pack", str(source), str(cpx))
    # no key is trusted yet
    status, _, err = world.ctx("install", str(cpx))
    assert (status, "the package is unsigned" in err) == (13, True)
    assert (
        "its OpenPGP signature is not checked, as no keys are trusted in"
        in world.ctx("install", str(source))[2]
    )
    world.ctx("uninstall", "word-count", "--purge")
    keys = world.where.config / openpgp.KEYS
    keys.write_bytes(signer.key)
    status, _, err = world.ctx("install", str(cpx))
    assert (status, f"signed by the OpenPGP key {signer.fingerprint}; " in err) == (0, True), err
    offers = Offers(config.load(world.where))
    assert offers.load().faults == {}
    # docs/policy.md: "of a package whose signature is by a publisher or a key that you trust"
    assert [one.trusted for one in offers.load().plugins] == [True]
    # docs/manifest-json.md: "a key that you take out ends its plugins"
    keys.unlink()
    loaded = offers.load()
    assert "as no keys are trusted in" in loaded.faults["word-count"]
    assert loaded.withdrawn == {"word-count"}
    keys.write_bytes(signer.key)
    assert offers.load().faults == {}


def test_one_that_does_not_hold_refuses(world: World, signer: Signer) -> None:
    source = world.base / "source"
    signature = signer.signature(package.read(plugin(source)))
    plugin(source, signature=signature, description="Another")
    world.where.config.mkdir()
    (world.where.config / openpgp.KEYS).write_bytes(signer.key)
    status, _, err = world.ctx("install", str(source))
    assert status != 0
    assert "the signature does not hold: it signs other files; install the plugin again" in err
    assert not (world.where.state / "plugins" / "word-count").exists()
    # the signature covers the package also "where the hash is that of the entry point"
    tree = package.read(plugin(source))
    entry = manifest_hash.entry_digest(tree.files["lib/count.wasm"].data)
    plugin(source, signature=signer.signature(tree), hash=entry)
    assert world.ctx("install", str(source))[0] == 0


def test_keys_that_are_too_long_are_not_cut(world: World, signer: Signer) -> None:
    source = world.base / "source"
    plugin(source, signature=signer.signature(package.read(plugin(source))))
    world.where.config.mkdir()
    keys = world.where.config / openpgp.KEYS
    keys.write_bytes(signer.key)
    os.truncate(keys, openpgp.MAX_KEYS + 1)
    status, _, err = world.ctx("install", str(source))
    assert status == exit_status("EMSGSIZE")
    assert f"{keys} is over 32 MiB" in err


def test_it_covers_nothing_that_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(Fault, match=r"its OpenPGP signature does not cover https://example.com/count"):
        fetching.completed(remote(tmp_path / "p", signature="c2ln"), fetch)
