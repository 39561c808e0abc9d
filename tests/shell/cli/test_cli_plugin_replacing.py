"""The replacement of an installed plugin, and the questions that come first."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from cortexfs import config
from cortexfs.plugins.package import package, records
from cortexfs.plugins.trust import openpgp, succession
from cortexfs.plugins.trust.succession import Copy
from cortexfs.state import directories
from tests.shell import plugin_commands
from tests.shell.plugin_commands import Said, edit, hello
from tests.shell.plugin_desk import World, world
from tests.shell.plugins.test_manifestjson_openpgp import Signer, signer
from tests.shell.plugins.test_manifestjson_plugins import plugin as json_plugin

__all__ = ["signer", "world"]  # fixtures

places, said = plugin_commands.places, plugin_commands.said
ANN, BOB = Path("ann"), Path("bob")


@pytest.fixture
def installed(places: directories.Places, said: Said) -> Path:
    """Installs hello 0.1.0 of Ann. There is also a hello of Bob, whom this state trusts as well."""
    for who in (ANN, BOB):
        hello(who)
        edit(who, 'author = "Ann"', f'author = "{who}"')
        said.ok("keygen", f"{who}.key")
        sign(said, who)
        said.ok("install", str(who), "--yes", "--replace")
    said.ok("install", str(ANN), "--replace")
    return places.state / "plugins/hello"


def sign(said: Said, who: Path, key: str = "") -> str:
    return said.ok("sign", str(who), "--key", f"{key or who}.key").partition("fingerprint=")[2].split()[0]


def lower(folder: Path) -> None:
    edit(folder, 'version = "0.1.0"', 'version = "0.0.1"')


def refused(said: Said, *words: str) -> str:
    status, _, err = said("install", *words)
    assert status == 13, err
    assert err.count("\n") == 1
    assert "say --replace, or run this on a terminal" in err
    return err


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("yes", [(), ("--yes",)])
def test_another_publisher_does_not_take_a_name(
    installed: Path, said: Said, yes: tuple[str, ...], packed: bool
) -> None:
    # issue: "foo 0.1.0 of one trusted publisher is replaced by foo 0.0.1 of another without a question"
    lower(BOB)
    fingerprint = sign(said, BOB)
    source = str(BOB)
    if packed:
        said.ok("pack", source, "bob.cpx")
        source = "bob.cpx"
    err = refused(said, source, *yes)
    assert f'hello 0.1.0, signed by "ann" with the key {records.read(installed).fingerprint} is' in err
    assert f'this is 0.0.1, signed by "bob" with the key {fingerprint}: it is of another publisher and' in err
    assert "its version is lower" in err
    assert 'version = "0.1.0"' in (installed / "manifest.toml").read_text()
    assert "installed hello 0.0.1, signed by bob" in said.ok("install", source, *yes, "--replace")


def test_a_publisher_is_its_key_and_not_its_name(installed: Path, said: Said) -> None:
    # abi.md 11.24: "belongs to the key that has signed it, whatever the publisher's id says"
    said.ok("keygen", "other.key")
    sign(said, ANN, "other")
    assert "it is of another publisher" in refused(said, str(ANN), "--yes")
    sign(said, ANN)
    edit(ANN, 'author = "ann"', 'author = "Ann and friends"')
    sign(said, ANN)
    said.ok("install", str(ANN), "--yes")


def test_an_unsigned_copy_and_a_signed_one_are_asked_about(installed: Path, said: Said) -> None:
    (BOB / "package.toml").unlink()
    err = refused(said, str(BOB), "--yes")
    assert "this is 0.1.0, unsigned: it is unsigned, unlike the installed copy" in err
    said.ok("install", str(BOB), "--replace")
    said.ok("install", str(BOB))  # an author installs a newer draft
    assert "hello 0.1.0, unsigned is installed" in refused(said, str(ANN))
    assert "it is signed, unlike the installed copy" in refused(said, str(ANN), "--yes")


def test_a_lower_version_is_asked_about(installed: Path, said: Said) -> None:
    lower(ANN)
    sign(said, ANN)
    assert ": its version is lower;" in refused(said, str(ANN), "--yes")
    edit(ANN, 'version = "0.0.1"', 'version = "0.1.1"')
    sign(said, ANN)
    said.ok("install", str(ANN))
    edit(ANN, 'version = "0.1.1"', 'version = "next"')
    sign(said, ANN)
    assert "the two versions cannot be compared" in refused(said, str(ANN))


@pytest.mark.parametrize("answer", ["y", "", "n"])
def test_a_person_is_asked_with_both_named(installed: Path, said: Said, answer: str) -> None:
    lower(BOB)
    sign(said, BOB)
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as typed:
        typed.write(f"{answer}\n".encode())
        command = [sys.executable, "-m", "cortexfs.cli.main", "plugin", "install", "bob"]
        done = subprocess.run(command, stdin=theirs, capture_output=True, text=True, check=False)
        os.close(theirs)
    for word in ("0.1.0", "0.0.1", '"ann" with the key ', '"bob" with the key ', "Replace it, "):
        assert word in done.stderr
    assert done.returncode == (0 if answer == "y" else 13)
    version = "0.0.1" if answer == "y" else "0.1.0"
    assert f'version = "{version}"' in (installed / "manifest.toml").read_text()


def test_names_that_the_former_publisher_might_take_are_not_the_next_ones(
    installed: Path, places: directories.Places, said: Said
) -> None:
    # abi.md 11.46: --replace was for the copy
    assert config.choices(places.config)["hello"] is True
    said.ok("enable", "hello", "--replace")
    said.ok("install", str(ANN))
    assert config.choices(places.config)["hello"] == config.REPLACE
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as typed:
        typed.write(b"y\n")
        command = [sys.executable, "-m", "cortexfs.cli.main", "plugin", "install", "bob"]
        subprocess.run(command, stdin=theirs, capture_output=True, check=True)
        os.close(theirs)
    assert json.loads((places.config / "plugins.json").read_text())["hello"] is True


def test_a_damaged_copy_is_installed_anew(installed: Path, said: Said) -> None:
    (installed / "manifest.toml").write_text("no manifest")
    assert "of no known version" in refused(said, str(BOB))
    said.ok("install", str(ANN))


def test_an_openpgp_key_is_a_publisher_too(world: World, signer: Signer) -> None:
    # abi.md 11.24: "both keys, where there is an OpenPGP one too"
    source = world.base / "source"
    signature = signer.signature(package.read(json_plugin(source)))
    json_plugin(source, signature=signature)
    keys = world.where.config / openpgp.KEYS
    keys.parent.mkdir(parents=True, exist_ok=True)
    keys.write_bytes(signer.key)
    assert world.ctx("install", str(source))[0] == 0
    assert world.ctx("install", str(source))[0] == 0
    json_plugin(source)
    status, _, err = world.ctx("install", str(source), "--yes")
    assert status == 13
    assert f"signed by the OpenPGP key {signer.fingerprint} is installed" in err
    assert "it is unsigned, unlike the installed copy" in err


@pytest.mark.parametrize(
    ("before", "after", "is_asked"),
    [
        (Copy("1", key="k", openpgp="p"), Copy("1", key="k", openpgp="p"), False),
        (Copy("1", openpgp="p"), Copy("1", key="k", openpgp="p"), False),
        # a key that was added does not suffice once the former key is missing
        (Copy("1", key="k", openpgp="p"), Copy("1", key="k"), True),
        (Copy("1", key="k"), Copy("1", key="l", openpgp="p"), True),
        (Copy("1", key="k"), Copy("1", openpgp="k"), True),
        (Copy("1.0.0"), Copy("1.0.0-rc.1"), True),
        (Copy("1.9.0"), Copy("1.10.0"), False),
        (Copy("1.9"), Copy("1.10"), False),
        (Copy("2"), Copy("1.10.1"), True),
        (Copy("1.2-rc.1"), Copy("1.2"), False),
        (Copy("1.2.3.4"), Copy("1.2.3.5"), True),
        (Copy(""), Copy("x"), False),
    ],
)
def test_every_key_has_to_be_there_again(before: Copy, after: Copy, is_asked: bool) -> None:
    assert bool(succession.unlike(before, after)) == is_asked
