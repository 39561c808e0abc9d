"""`cortex NAME` of a plugin: arguments are read as declared, and passed to the runner as one JSON object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cortexfs.cli import main as program
from cortexfs.cli import parser, plugin_commands
from tests.shell.cli_tree import COMMANDS, ctx, plant


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = plant(tmp_path / "ctx")
    monkeypatch.setenv("CTX_ROOT", str(made))
    return made


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["ann"], {"whom": "ann"}),
        (["ann", "2", "true"], {"whom": "ann", "times": 2, "back": True}),
        (["--wide", "ann", "1.5"], {"whom": "ann", "times": 1.5, "wide": True}),
        (["ann", "-w", "-h", "a flag", "2", "--speed=-3"], {"whom": "ann", "times": 2}),
        (["ann", "--no-wide"], {"whom": "ann", "wide": False}),
        (["true"], {"whom": "true"}),
        (["ünï"], {"whom": "ünï"}),
        (["--", "--wide"], {"whom": "--wide"}),
        (["-w", "--", "--", "-1"], {"whom": "--", "times": -1, "wide": True}),
        (["--with", "", "x"], {"whom": "x", "with": ""}),
    ],
)
def test_arguments_and_options_are_read_as_declared(
    words: list[str], given: dict[str, Any], root: Path
) -> None:
    # abi.md 9.17
    # abi.md 9.16
    more = {"wide": True, "with": "a flag", "speed": -3} if "a flag" in words else {}
    done = ctx("wave-hand", *words, root=root, input="typed")
    output, place, name, input, rest = done.stdout.splitlines()
    assert (output, place, name, rest) == ("text", f"<{root}/.commands>", "<wave-hand>", "typed")
    assert json.loads(input[1:-1]) == given | more
    assert (done.returncode, done.stderr) == (7, "")  # the runner's status


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "<whom> is missing"),
        (["ann", "often"], "argument <times>: expected a number, got 'often'"),
        (["ann", "nan"], "argument <times>: expected a number, got 'nan'"),
        (["ann", "1_000"], "argument <times>: expected a number, got '1_000'"),
        (["ann", "١٢"], "argument <times>: expected a number, got '١٢'"),
        (["ann", "true"], "argument <times>: expected a number, got 'true'"),
        (["ann", "1e400"], "argument <times>: expected a number, got '1e400'"),
        (["ann", "9" * 400], f"argument <times>: expected a number, got '{'9' * 100}...'"),
        (["ann", "--speed=\udcff"], "argument -s/--speed: expected a number, got '\\udcff'"),
        (["ann", "1", "maybe"], "argument <back>: 'maybe' is unknown; it can be true, false"),
        (["ann", "--speed"], "-s/--speed needs a value"),
        (["ann", "--fast"], "there is no option --fast"),
        (["ann", "1", "true", "more"], "'more' is one argument too many"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    words: list[str], sentence: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # abi.md 4.23
    assert program.main(["wave-hand", *words]) == 2
    said = capsys.readouterr().err.replace("from 'true', 'false'", "from true, false")  # some Pythons quote
    assert said == f"ctx wave-hand: {sentence}; see: ctx wave-hand --help\n"


def test_text_is_text(root: Path) -> None:
    # abi.md 4.17
    done = subprocess.run(
        [sys.executable, "-m", "cortexfs.cli.main", "wave-hand", b"\xff"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ctx wave-hand: whom: expected text, got bytes that are no UTF-8\n"


def test_too_much_for_one_argument_is_said(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # execve(2): "MAX_ARG_STRLEN ... 32 pages"
    assert program.main(["wave-hand", "a" * (100 << 10), "--with", "b" * (100 << 10)]) == 2
    assert capsys.readouterr().err == "ctx wave-hand: its arguments are over 128 KiB together\n"


def test_frames_are_there_for_who_wants_them(root: Path) -> None:
    assert ctx("wave-hand", "ann", root=root, CTX_OUTPUT="jsonl").stdout.startswith("jsonl\n")


@pytest.mark.parametrize(
    "words", [["wave-hand", "--help"], ["help", "wave-hand"], ["wave-hand", "x", "--help"]]
)
def test_help_is_made_of_the_manifest(
    words: list[str], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # abi.md 9.16, each with a description; untrusted text moves no cursor
    assert program.main(words) == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: ctx wave-hand [options] <whom> [<times>] [<back>]\n")
    for part in (
        "Waves 100",
        "\\x1b[31m",
        "At whom",
        "How often",
        "-w, --wide",
        "-h",
        "--with STRING",
        "5 % of it",
        "--help",
    ):
        assert part in said
    assert "\x1b" not in said
    assert said.endswith("a command of the plugin waves\n")


def test_all_are_listed_in_the_help_of_the_program(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 9.16
    for words in ([], ["--help"], ["help"], ["-h"]):
        assert program.main(words) == 0
        listed = capsys.readouterr().out.partition("commands of plugins:\n")[2].partition("\n\n")[0]
        assert [line.split()[0] for line in listed.splitlines()] == ["wave-hand"]


def test_help_needs_no_mount(tmp_path: Path) -> None:
    done = ctx("--help", root=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "commands of plugins" not in done.stdout


@pytest.mark.parametrize(
    ("command", "status", "sentence"),
    [
        ("wink", 69, "its plugin winks is disabled; enable it with: ctx plugin enable winks"),
        ("nod", 69, "its plugin nods is broken: it ends"),
        ("wave", 2, "there is no command 'wave'; did you mean wave-hand?"),
        ("xyzzy", 2, "there is no command 'xyzzy'; see: ctx --help"),
    ],
)
def test_what_cannot_be_called_says_why(
    command: str, status: int, sentence: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # abi.md 4.24
    assert program.main([command]) == status
    assert capsys.readouterr().err == f"ctx {command}: {sentence}\n"


def test_without_a_mount_nothing_is_known_of_plugins(tmp_path: Path) -> None:
    done = ctx("wave-hand", root=tmp_path)
    mend = f"no CortexFS is mounted at {tmp_path}; mount one with: ctx mount {tmp_path}"
    assert (done.returncode, done.stderr) == (
        2,
        "ctx wave-hand: there is no command 'wave-hand'; see: ctx --help; commands of plugins are unknown,"
        f" as {mend}\n",
    )


def test_no_command_of_ours_is_hidden(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 8.6
    assert "status" not in plugin_commands.ready(None)
    assert program.main(["status"]) == 0
    assert "uptime" in capsys.readouterr().out


def test_a_command_of_ours_asks_nothing_and_imports_nothing() -> None:
    code = (
        "import sys; from cortexfs.cli import main, mounts; mounts.root = lambda given: sys.exit(9);"
        "main.main(['version']); print('cortexfs.cli.plugin_commands' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_odd_declarations_make_a_parser() -> None:
    # Manifests may give arguments any text as their name, also `help` and names that argparse itself uses.
    odd = {
        **COMMANDS[0],
        "args": [
            {"name": name, "type": "string", "description": "%"} for name in ("a b", "[c]", "%s", "é\n\t", "")
        ],
        "options": [
            {"name": "help", "type": "string", "description": "%(prog)s", "flag": "-x"},
            {"name": "no-y", "type": "boolean", "description": "", "flag": "-1"},
        ],
    }
    made = plugin_commands.parser_of(odd)
    assert isinstance(made, parser.CommandParser)
    assert "[<a b>] [<[c]>] [<%s>] [<é >] [<>]" in made.format_help()
    values = dict(plugin_commands._values(odd, vars(made.parse_args(["1", "2", "-x", "3", "--no-y"]))))
    assert values == {"a b": "1", "[c]": "2", "help": "3", "no-y": True}
