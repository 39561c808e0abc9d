"""`ctx plugin` in this process, over a state and a configuration that belong to the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cortexfs import config
from cortexfs.cli.main import main
from cortexfs.plugins.enabled import Offers
from cortexfs.state import directories
from tests.shell.plugins.test_manifestjson_plugins import plugin, told


class World:
    def __init__(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.base = base
        self.where = directories.Places(base / "state", base / "config")
        self._capsys = capsys

    def ctx(self, *words: str) -> tuple[int, str, str]:
        status = main(["plugin", *words])
        said = self._capsys.readouterr()
        return status, said.out, said.err

    def install(self, name: str, **changes: Any) -> tuple[int, str, str]:
        return self.ctx("install", str(plugin(self.base / "source" / name, name=name, **changes)))

    def config_of(self, name: str) -> Any:
        loaded = Offers(config.load(self.where)).load()
        (one,) = [one for one in loaded.plugins if one.name == name]
        return told(one)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> World:
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("CTX_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CTX_ROOT", str(tmp_path / "ctx"))
    return World(tmp_path, capsys)
