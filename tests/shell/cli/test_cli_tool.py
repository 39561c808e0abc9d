"""`ctx tool add` by root, without a mount: a copy of a script is a plugin of its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cortexfs.cli.main import main
from cortexfs.state import directories
from cortexfs.version import SCRIPT_VERSION
from tests.shell import plugin_commands
from tests.shell.plugin_commands import Said, hello

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, whose scripts are for all")

places, said = plugin_commands.places, plugin_commands.said


def script(name: str) -> str:
    path = Path(name)
    path.write_text("#!/bin/sh\n# tool: Test.\necho hi\n")
    path.chmod(0o755)
    return name


@pytest.mark.parametrize("state", ["enable", "disable"])
def test_a_script_does_not_take_the_place_of_a_plugin(
    places: directories.Places, said: Said, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    # abi.md 12.19
    hello(Path("plugin"))
    said.ok("install", "plugin")
    said.ok(state, "hello")
    assert main(["tool", "add", script("hello")]) == 1
    told = "there is a plugin hello 0.1.0 already; choose another name with --name\n"
    assert capsys.readouterr().err.endswith(told)
    assert 'version = "0.1.0"' in (places.state / "plugins/hello/manifest.toml").read_text()
    assert main(["tool", "add", "hello", "--name", "other"]) == 0
    assert main(["tool", "add", "hello", "--name", "other"]) == 0  # again, as after a change
    assert main(["tool", "add", "hello", "--replace"]) == 0
    assert SCRIPT_VERSION in (places.state / "plugins/hello/manifest.toml").read_text()


def test_a_plugin_does_not_take_the_place_of_a_script(places: directories.Places, said: Said) -> None:
    # abi.md 12.19
    assert main(["tool", "add", script("hello")]) == 0
    path = hello(Path("plugin")) / "manifest.toml"
    path.write_text(path.read_text().replace('"0.1.0"', '"2.0.0"'))
    status, _, err = said("install", "plugin", "--yes")
    why = "this is 2.0.0, unsigned: it is not a script, unlike the installed copy; to replace it"
    assert (status, why in err) == (13, True)
    assert SCRIPT_VERSION in (places.state / "plugins/hello/manifest.toml").read_text()
    said.ok("install", "plugin", "--replace")
