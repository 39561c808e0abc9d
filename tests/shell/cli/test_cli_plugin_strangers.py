"""`ctx plugin` with plugins written for the original: its words, its versions, and everything as a path."""

from __future__ import annotations

import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.cli.main import main
from cortexfs.state import directories
from tests.shell import plugin_commands
from tests.shell.plugin_commands import Said, edit, hello

places, said = plugin_commands.places, plugin_commands.said
ALL = '"tools"]\nfile_write = ["**"]\n[sandbox]\nwritable_paths = ["**"'


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Makes standard input a terminal. Yields the descriptor that takes a person's typing."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        yield ours
    os.close(ours)


def test_everything_is_accepted_shown_and_asked_for(places: directories.Places, said: Said) -> None:
    # abi.md 11.37
    edit(hello(Path("hello")), '"tools"]', ALL + "]")
    review = said.ok("review", "hello")
    assert "    - write files: ** (everything that its caller may)\n" in review
    assert "    - writes: everything that its caller may, as its caller: not limited\n" in review
    assert "    - sandbox.writable_paths = **: not limited\n" in review
    said.ok("test", "hello")
    status, _, err = said("install", "hello")
    assert (status, (places.state / "plugins/hello").exists()) == (13, False)
    assert "hello asks to write every file that its callers may (**); to allow that, say --yes" in err
    assert said.ok("install", "hello", "--yes").startswith("installed hello 0.1.0, ")
    said.ok("install", "hello")  # asks for no more than the installed copy


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("\n", 13)])
def test_a_person_says_yes_to_everything(
    places: directories.Places, said: Said, typed: int, answer: str, status: int
) -> None:
    # abi.md 11.37
    edit(hello(Path("hello")), '"tools"]', ALL + "]")
    os.write(typed, answer.encode())
    assert said("install", "hello")[0] == status
    assert (places.state / "plugins/hello").exists() == (status == 0)


def test_everything_beside_a_claim_leaves_the_rest_of_it(places: directories.Places, said: Said) -> None:
    # abi.md 11.37
    edit(hello(Path("hello")), '"tools"]', ALL + ']\nfilesystem = "plugin_only"')
    review = said.ok("review", "hello")
    assert "    - runs: /usr, /bin, /sbin, /lib, /lib64, its own folder: held by Landlock\n" in review
    assert "    - writes: everything that its caller may, as its caller: not limited\n" in review


def test_all_that_is_wrong_is_said_at_once_by_each(places: directories.Places, said: Said) -> None:
    # abi.md 11.38
    folder = hello(Path("hello"), '[sandbox]\nuid_drop = true\nnetwork = "allowlist"\n')
    edit(folder, "= {}", '= {}\nmax_output_bytes = 0\ninherit_env = ["API_KEY"]')
    faults = (
        "sandbox.network=allowlist is not enforced by this runtime",
        "uid_drop is not enforced by this runtime",
        "max_output_bytes is 0",
        "inherit_env names API_KEY",
    )
    for command in ("review", "test", "install"):
        status, out, err = said(command, "hello")
        assert [fault for fault in faults if fault not in out + err] == []
        assert status == (0 if command == "review" else 1)
    assert "plugin 'hello' fails 4 checks, and is not installed; see: ctx plugin test" in err
    assert not places.state.exists()


def test_a_version_of_the_originals_documentation_is_accepted(places: directories.Places, said: Said) -> None:
    # abi.md 11.34
    edit(hello(Path("hello")), "1.6.0", "1.6.14")
    assert "- cortex_version: it was made for 1.6.14; it runs, as the ABI is the same" in said.ok(
        "review", "hello"
    )
    assert "warning: cortex_version: it was made for 1.6.14; it runs" in said.ok("install", "hello")


def test_keygen_makes_the_folders_of_its_file(said: Said, places: directories.Places) -> None:
    # issue: "keygen makes the folders of its file"
    said.ok("keygen", "keys/mine/plugins.key")
    assert Path("keys/mine/plugins.key").stat().st_mode & 0o777 == 0o600
    assert Path("keys/mine").stat().st_mode & 0o077 == 0


def test_words_of_the_original_are_understood(places: directories.Places, said: Said) -> None:
    # abi.md 8.30
    assert main(["--new-process-plugin", "hello"]) == 0
    assert main(["--new-python-plugin=other"]) == 0
    assert Path("cortex-plugin-hello/bin/hello").exists()
    assert Path("cortex-plugin-other/lib/other_plugin.py").exists()
    said.ok("install", "cortex-plugin-hello")
    listed = said.ok("ls")
    assert "hello" in listed
    assert said.ok() == listed
    assert said.ok("remove", "hello", "--purge").startswith("removed hello")
    assert said("rmeove", "hello")[2].endswith("did you mean remove?\n") is False


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("lst", "'lst' is unknown; did you mean list?"),
        ("unistall", "'unistall' is unknown; did you mean uninstall"),
    ],
)
def test_what_is_no_word_names_the_right_one(said: Said, words: str, sentence: str) -> None:
    assert sentence in said(words)[2]


def test_an_empty_directory_to_work_in_is_told(places: directories.Places, said: Said) -> None:
    # abi.md 11.9
    folder = hello(Path("hello"))
    edit(folder, 'command = "bin/hello"', 'command = "bin/hello"\nworking_dir = "data"')
    (folder / "data").mkdir()
    status, _, err = said("install", "hello")
    assert status == 1
    assert "it must be a directory with a file in it, as empty directories are not installed" in err
    (folder / "data/README").write_text("data\n")
    said.ok("install", "hello")


# -- test --run


def test_a_call_is_shown_and_asked_for_and_begins_in_an_empty_folder(
    places: directories.Places, said: Said, typed: int
) -> None:
    # abi.md 11.39
    folder = hello(Path("hello"))
    told = Path("called").absolute()
    edit(folder, 'command = "bin/hello"', f'command = "bin/hello"\nenv = {{ TOLD = "{told}" }}')
    edit(folder, "env = {", 'inherit_env = ["CORTEXFS_CWD"]\nenv = {')
    (folder / "bin/hello").write_text('#!/bin/sh\nls -A "$CORTEXFS_CWD" | wc -l > $TOLD\necho \'"hello"\'\n')
    os.write(typed, b"n\n")
    status, out, err = said("test", "hello", "--run")
    assert (status, told.exists(), "ok: its tools were not called" in out) == (0, False, True)
    assert "these calls are for real; they begin in an empty folder:\n  hello {}\n" in err
    os.write(typed, b"y\n")
    assert "ok: tool hello called with {}: hello" in said.ok("test", "hello", "--run")
    assert told.read_text().strip() == "0"


def test_nobody_to_ask_calls_nothing(places: directories.Places, said: Said) -> None:
    # abi.md 11.39
    hello(Path("hello"))
    status, _, err = said("test", "hello", "--run")
    assert (status, err.endswith("there is no terminal to ask on; say --yes\n")) == (2, True)


def test_an_answer_to_an_input_that_was_made_up_is_an_answer(places: directories.Places, said: Said) -> None:
    # abi.md 11.39: media come in their own frame, and EINVAL is the tool's answer to the input
    said.ok("new", "looks", "looks", "--template", "python")
    (module,) = Path("looks/lib").glob("*.py")
    module.write_text(
        "from cortexfs.sdk import Attachment, InvalidInput, ToolResult, tool\n"
        '@tool(name="looks")\ndef looks(path: str) -> str:\n    """Look."""\n'
        '    raise InvalidInput(f"no {path} here")\n'
        '@tool(name="draws")\ndef draws() -> ToolResult:\n    """Draw."""\n'
        '    return ToolResult("drawn", (Attachment("image", "image/png", "/a"),) * 2)\n'
        "plugin = [looks, draws]\n"
    )
    out = said.ok("test", "looks", "--run", "--yes")
    assert 'ok: tool looks called with {"path":"example"}: EINVAL: no example here' in out
    assert "ok: tool draws called with {}: drawn" in out


def test_a_library_that_does_not_load_is_not_installed(places: directories.Places, said: Said) -> None:
    # abi.md 11.26
    said.ok("new", "looks", "looks", "--template", "python")
    (module,) = Path("looks/lib").glob("*.py")
    module.write_text("raise ImportError('no pen')\n")
    status, _, err = said("install", "looks")
    assert status == 2
    assert "plugin 'looks' fails the check \"loading\": " in err
    assert "no pen" in err
    assert not (places.state / "plugins/looks").exists()
