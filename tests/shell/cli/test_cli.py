"""The command line without a daemon: the guard of all commands, help, status, env and version."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.cli import main as program
from cortexfs.cli import output, parser
from cortexfs.cli.bounded import MAX_ANSWER, ask
from cortexfs.cli.mount import checks
from cortexfs.cli.shell import about
from cortexfs.core.errors import Fault
from tests.shell.cli_tree import STATUS, add, ctx, plant

EVERY = sorted(parser.COMMANDS)
WITH_DATA = ("status", "doctor", "ls", "env", "version")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plant(tmp_path / "ctx")


@pytest.fixture
def here(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the planted tree, which commands of this process take as their mount."""
    monkeypatch.setenv("CTX_ROOT", str(root))
    return root


@pytest.mark.parametrize("command", EVERY)
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 8.8
    assert program.main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "examples:\n  " in text
    assert "ctx " in text.partition("examples:")[2]


@pytest.mark.parametrize("command", WITH_DATA)
def test_every_command_that_prints_data_prints_json(
    command: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # abi.md 8.8
    program.main([command, "--json"])
    assert json.loads(capsys.readouterr().out)


def test_help_has_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    # Help reads the same with every Python: 3.14 would colour it, also because of FORCE_COLOR.
    monkeypatch.setenv("FORCE_COLOR", "1")

    class Coloured(argparse.RawDescriptionHelpFormatter):
        """A formatter with colours, as in Python 3.14."""

        is_coloured = True

        def _set_color(self, color: bool) -> None:
            self.is_coloured = color
            getattr(super(), "_set_color", lambda color: None)(color)

        def format_help(self) -> str:
            return "\x1b[1m" * self.is_coloured + super().format_help()

    for formatter in (argparse.RawDescriptionHelpFormatter, Coloured):
        made = parser.CommandParser(prog="ctx", description="It says.", formatter_class=formatter)
        assert made.format_help().startswith("usage: ctx [-h]\n\nIt says.\n")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main([]) == 0
    listed = [
        line.split()[0] for line in capsys.readouterr().out.partition("commands:\n")[2].splitlines() if line
    ]
    assert listed[: len(parser.COMMANDS)] == list(parser.COMMANDS)
    assert "complete" not in listed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["verison"], "ctx verison: there is no command 'verison'; did you mean version?"),
        (["status", "--frob"], "ctx status: there is no option --frob; see: ctx status --help"),
        (["session", "list", "--jsn=x"], "ctx session: there is no option --jsn; did you mean --json?"),
        (["send", "a", "b", "--seson"], "ctx send: there is no option --seson; did you mean --session?"),
        (
            ["provider", "test", "a", "b c", "d"],
            "ctx provider: 'b c' is one argument too many; see: ctx provider test --help",
        ),
        (["run"], "ctx run: OBJECT is missing; see: ctx run --help"),
        (["mcp", "call"], "ctx mcp: SERVER, TOOL are missing; see: ctx mcp call --help"),
        (["--frob"], "ctx: there is no option --frob; see: ctx --help"),
        (["--root"], "ctx: --root needs a value; see: ctx --help"),
        (["status", "--json=x"], "ctx status: --json takes no value; see: ctx status --help"),
        # abi.md 8.19
        (["agent", "nwe"], "ctx agent: argument VERB: 'nwe' is unknown; did you mean new?"),
        (
            ["plugin", "trust", "lst"],
            "ctx plugin: argument action: 'lst' is unknown; did you mean list?",
        ),
        (
            ["ping", "x", "--count", "few"],
            "ctx ping: argument --count: write a whole number, as 3, in place of 'few'; see: ctx ping --help",
        ),
        (
            ["session", "gc", "--older-than", "old"],
            "ctx session: argument --older-than: write a number, as 1.5, in place of 'old';"
            " see: ctx session gc --help",
        ),
        (
            ["completion", "tcsh1"],
            "ctx completion: argument SHELL: 'tcsh1' is unknown; it can be bash, zsh, fish;"
            " see: ctx completion --help",
        ),
        (["ask", "--schema", "caf\udce9", "x"], "ctx ask: --schema: it is not UTF-8; write it in UTF-8"),
        (["policy"], "ctx policy: VERB is missing; see: ctx policy --help"),
    ],
)
def test_a_wrong_word_is_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # abi.md 4.23
    assert program.main(words) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{sentence}\n")


@pytest.mark.parametrize(
    ("raised", "status", "sentence"),
    [
        (Fault("EACCES", "not yours"), 13, "ctx version: not yours\n"),
        (PermissionError(13, "Permission denied", "/x"), 13, "ctx version: /x: Permission denied\n"),
        (KeyboardInterrupt(), 130, ""),
        (
            ZeroDivisionError("oops"),
            70,
            "ctx version: a bug in CortexFS: ZeroDivisionError: oops; CTX_DEBUG=1 shows",
        ),
    ],
)
def test_the_guard_knows_every_end(
    raised: BaseException,
    status: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(options: object) -> int:
        raise raised

    monkeypatch.setitem(about.COMMANDS, "version", about.COMMANDS["version"]._replace(run=fails))
    assert program.main(["version"]) == status
    assert capsys.readouterr().err.startswith(sentence)


def test_a_bug_shows_where_to_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        about.COMMANDS, "version", about.COMMANDS["version"]._replace(run=lambda options: 1 // 0)
    )
    monkeypatch.setenv("CTX_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        program.main(["version"])


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_locale_that_cannot_show_everything_is_no_failure(encoding: str, root: Path) -> None:
    # commands.md: "what the locale cannot show is replaced by `?`, and in JSON by `\\u` sequences"
    description = "M\N{LATIN SMALL LETTER E WITH ACUTE}l \N{CHECK MARK}"
    add(root, "tool/wide", description, "builtin", {})
    text = ctx("ls", "wide", root=root, PYTHONIOENCODING=encoding)
    assert text.returncode == 0
    assert ("\N{CHECK MARK}" in text.stdout) == (encoding == "utf-8")
    (row,) = json.loads(ctx("ls", "wide", "--json", root=root, PYTHONIOENCODING=encoding).stdout)
    assert row["description"] == description


def test_cortex_is_the_same_program(tmp_path: Path) -> None:
    # abi.md 8.5
    link = tmp_path / "cortex"
    link.write_text(f"#!{sys.executable}\nfrom cortexfs.cli.main import main\nraise SystemExit(main())\n")
    link.chmod(0o755)
    project = str(Path(program.__file__).parents[2])
    done = subprocess.run(
        [link, "nix"],
        env={"PYTHONPATH": project, "CTX_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(
        "cortex nix: there is no command 'nix'; see: cortex --help; commands of plugins"
    )


def test_status_is_what_the_mount_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["status"]) == 0
    assert capsys.readouterr().out == STATUS


def test_status_as_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "version": "0.1.0",
        "uptime": 61,
        "pid": 4194999,
        "mount": "/ctx",
        "tools": 2,
        "models": 1,
        "agents": 0,
        "runs": {"active": 3, "total": 120},
        "hosts": 2,
        "last_error": "none",
        "broken_plugins": {"notes": "its process was killed by SIGSEGV"},
    }


@pytest.mark.parametrize("place", ["before", "after", "environment"])
def test_a_command_means_the_mount_that_it_is_given(place: str, root: Path) -> None:
    words = {"before": ["--root", str(root), "status"], "after": ["status", "--root", str(root)]}
    elsewhere = {"CTX_ROOT": "/nowhere"} if place in words else {}
    assert ctx(*words.get(place, ["status"]), root=root, **elsewhere).stdout == STATUS


def test_no_mount_is_69_and_says_how_to_get_one(tmp_path: Path) -> None:
    # abi.md 4.24
    done = ctx("status", root=tmp_path)
    mend = f"mount one with: ctx mount {tmp_path}"
    assert (done.returncode, done.stderr) == (
        69,
        f"ctx status: no CortexFS is mounted at {tmp_path}; {mend}\n",
    )


def test_env_is_evaluated_by_a_shell(tmp_path: Path) -> None:
    root = tmp_path / "it's a mount"
    script = (
        f'eval "$({sys.executable} -m cortexfs.cli.main env)"; printf "%s\\n" "$CTX_ROOT" "$CTX_PATH" "$PATH"'
    )
    environ = {"CTX_ROOT": str(root), "PATH": f"/bin:{root}/bin:/usr/bin"}
    done = subprocess.run(["sh", "-c", script], env=environ, capture_output=True, text=True, check=True)
    home = f"{root}/home/{os.getuid()}"
    assert done.stdout.splitlines() == [str(root), f"{root}/tool:{home}/tool", f"{root}/bin:/bin:/usr/bin"]


def test_env_leaves_a_path_alone_that_finds_the_program_of_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # bash remembers a program that it found in the mount, and looks for it there even after ctx umount
    for name in ("lib/ctx", "bin/ctx", "other/ctx"):
        (tmp_path / name).parent.mkdir()
    (tmp_path / "lib/ctx").touch(0o755)
    (tmp_path / "other/ctx").touch(0o755)
    (tmp_path / "bin/ctx").symlink_to("../lib/ctx")
    root = tmp_path / "ctx"
    (root / "bin").mkdir(parents=True)
    (root / "bin/ctx").symlink_to(tmp_path / "lib/ctx")
    for first, path in ((tmp_path / "bin", ""), (tmp_path / "other", f"{root}/bin:")):
        monkeypatch.setenv("PATH", f"{root}/bin:{first}:{tmp_path}/bin")
        assert program.main(["--root", str(root), "env"]) == 0
        assert f"export PATH={path}{first}:{tmp_path}/bin\n" in capsys.readouterr().out


def test_starting_costs_no_library_of_the_daemon() -> None:
    code = (
        "import sys; from cortexfs.cli.main import main; main(['status', '--root', '/nowhere']);"
        "print(sorted({'trio', 'pyfuse3', 'msgspec', 'importlib.metadata', 'json'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_question_is_answered_or_its_error_raised() -> None:
    assert ask(lambda: b"yes", 5) == b"yes"
    with pytest.raises(FileNotFoundError):
        ask(lambda: os.readlink("/no/such").encode(), 5)


def test_a_question_that_hangs_is_left() -> None:
    with pytest.raises(TimeoutError):
        ask(lambda: os.read(os.pipe()[0], 1), 0.05)


def test_an_answer_is_bounded() -> None:
    assert len(ask(lambda: bytes(2 * MAX_ANSWER), 5)) == MAX_ANSWER


def on_terminal(*words: str, root: Path, **environ: str) -> str:
    """Returns the output of a command on a terminal."""
    program = [sys.executable, "-m", "cortexfs.cli.main", *words]
    return written_by(program, **{"CTX_ROOT": str(root), "TERM": "xterm", **environ})


def written_by(program: list[str], **environ: str) -> str:
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    process = subprocess.Popen(program, env=environ, stdout=follower)
    os.close(follower)
    text = b""
    try:
        while part := os.read(leader, 4096):
            text += part
    except OSError:  # EIO: the last process on the terminal is gone
        pass
    finally:
        os.close(leader)
        process.wait()
    return text.decode()


def test_colour_is_for_terminals(root: Path) -> None:
    # no-color.org: "when present and not an empty string ... prevents the addition of ANSI color"
    assert "\x1b[32mready" in on_terminal("ls", root=root)
    assert "\x1b" not in on_terminal("ls", root=root, NO_COLOR="1")
    assert "\x1b" not in on_terminal("ls", root=root, TERM="dumb")
    assert "\x1b" not in ctx("ls", root=root).stdout


def test_a_table_that_is_read_aloud_is_whole() -> None:
    # commands.md: "`TERM=dumb` is for screen readers ... no line is cut, and a cell without a value is `-`"
    program = "from cortexfs.cli import output; output.table(('a', 'b', 'c'), [('x', '', 'y' * 200)])"
    assert written_by([sys.executable, "-c", program], TERM="dumb").split()[3:] == ["x", "-", "y" * 200]
    assert written_by([sys.executable, "-c", program], TERM="xterm").split()[3:] == ["x", "y" * 73 + "…"]


def test_what_says_why_is_never_cut() -> None:
    program = f"from cortexfs.cli import output; output.table(('a', 'why'), [('x', '{'y ' * 100}z')])"
    assert written_by([sys.executable, "-c", program], TERM="xterm").endswith("y z\r\n")


def test_foreign_text_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("a", "b"), [("x\x1b[2J", "\u202ey")])
    assert capsys.readouterr().out.splitlines()[1] == "x\\x1b[2J  \\u202ey"


def test_the_page_has_every_command_and_check() -> None:
    # abi.md 8.6
    page = (Path(program.__file__).parents[2] / "docs" / "commands.md").read_text()
    rows = dict(re.findall(r"^\| `ctx (\w+)[^`]*` \| (.*) \|$", page, re.MULTILINE))
    assert rows == {name: summary for name, (_, summary) in parser.COMMANDS.items()}
    listed = " ".join(page.split()).partition("The checks: ")[2].partition(". ")[0]
    assert listed.split(", ") == list(checks.CHECKS)


def options(of: argparse.ArgumentParser) -> Iterator[str]:
    """Yields the long options of a command and of its verbs, without those that help hides."""
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from options(verb)
        elif action.help != argparse.SUPPRESS:
            yield from (option for option in action.option_strings if option.startswith("--"))


@pytest.mark.parametrize("command", EVERY)
def test_the_page_has_every_option(command: str) -> None:
    page = (Path(program.__file__).parents[2] / "docs" / "commands.md").read_text()
    known = set(re.findall(r"--[a-z-]+", page))
    assert set(options(parser.of_command(command))) - known == set()
