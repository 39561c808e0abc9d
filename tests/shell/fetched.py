"""JavaScript plugins that import modules from other places: helpers that write, install and load them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cortexfs.config import Config
from cortexfs.core import hostcalls
from cortexfs.core.manifestjson.fetched import FOLDER
from cortexfs.plugins.enabled import Offers
from cortexfs.state import directories
from tests.shell import esmodules, moduleserver
from tests.shell.calling import serving
from tests.shell.moduleserver import PRIVATE, Certificates, Site
from tests.shell.plugin_commands import Said
from tests.shell.wat import Asked

GREET = "module.exports = (name) => 'Hello, ' + name;"
SOURCE = 'import greet from "npm:greet@^1";\n' + esmodules.source({"tool": "return greet(args.text)"})
TOOL = esmodules.source({"tool": "return 'from elsewhere: ' + args.text"})
MANIFEST = {
    "name": "fetching",
    "version": "1.0.0",
    "description": "For tests",
    "kind": "esm",
    "entryPoint": "./mod.ts",
    "runtime": "deno",
    "capabilities": ["tools"],
}


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return moduleserver.certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def site(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Registries and modules, and environment variables that point to them."""
    with moduleserver.site(certificates) as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


def plugin(where: Path, source: str = "", /, **changes: Any) -> Path:
    """Create the directory of a plugin as its author has it."""
    where.mkdir(exist_ok=True)
    if source:
        (where / "mod.ts").write_text(source)
    (where / "manifest.json").write_bytes(msgspec.json.encode(MANIFEST | changes))
    return where


class Desk:
    """A state and a configuration of a test, and the plugin installed there."""

    def __init__(self, base: Path, said: Said) -> None:
        self.base = base
        self.config = Config(state=base / "state", directory=base / "config")
        self.said = said
        self.installed = base / "state" / "plugins" / "fetching"

    def install(self, source: Path) -> str:
        return self.said.ok("install", str(source), "--private", PRIVATE)

    def refused(self, source: Path, private: str = PRIVATE) -> str:
        status, _, err = self.said("install", str(source), "--private", private)
        assert status
        assert not self.installed.exists()
        return err

    def review(self, source: Path) -> str:
        return self.said("review", str(source), "--private", PRIVATE)[1]

    def offered(self) -> hostcalls.Plugin:
        """Returns the plugin as a daemon that starts now would describe it to its hosts."""
        loaded = Offers(self.config).load()
        assert loaded.faults == {}
        (one,) = loaded.plugins
        return one

    def fault(self) -> str:
        return Offers(self.config).load().faults["fetching"]

    def fetched(self) -> set[str]:
        """Returns the names of the fetched files in the store."""
        top = self.installed / FOLDER
        return {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}


@pytest.fixture
def desk(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(place, Said(capsys))
    found = directories.Places(made.config.state, made.config.directory)
    monkeypatch.setenv("CTX_STATE", os.fspath(found.state))
    monkeypatch.setenv("CTX_CONFIG", os.fspath(found.config))
    monkeypatch.setenv("CTX_ROOT", os.fspath(place / "ctx"))
    return made


async def called(desk: Desk, tmp_path: Path, tool: str = "tool") -> str:
    async with serving(tmp_path, desk.config.state) as world:
        return await Asked(world, desk.offered()).said(tool, text="you")
