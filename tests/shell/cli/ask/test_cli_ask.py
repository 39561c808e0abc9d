"""`ctx ask` against a socket without a daemon: its messages, its output, and its refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.cli.shell import complete
from cortexfs.core import frames
from tests.shell.cli_tree import ctx, plant
from tests.shell.client_server import Served, served

GPT = "model/openai/gpt-5"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plant(tmp_path / "ctx")


@pytest.fixture
def server(root: Path) -> Iterator[Served]:
    with served(root / f"{GPT}.sock") as server:
        yield server


def said_to(server: Served) -> str:
    """Returns the text of the user's message in the newest log."""
    log = [*server.world.logs.values()][-1]
    heard = [frames.decode(event.line) for event in log]
    return next(
        one.content[0].text for one in heard if isinstance(one, frames.Message) and one.role == "user"
    )


@pytest.mark.parametrize(
    ("words", "input", "said"),
    [
        (["a", "b"], "", "a b"),
        ([], "from a pipe\n", "from a pipe"),
        (["look:"], "piped\n\n", "look:\n\npiped"),
        (["-m", GPT, "a"], "", "a"),
        (["a", "--model", "openai/gpt-5", "b"], "", "a b"),
        (["--", "-x"], "", "-x"),
    ],
)
def test_the_text_is_words_and_what_is_piped_in(
    server: Served, root: Path, words: list[str], input: str, said: str
) -> None:
    # abi.md 8.22
    done = ctx("ask", *words, root=root, input=input)
    assert (done.stderr, done.returncode) == ("", 0)
    assert said_to(server) == said


def test_each_question_has_a_session_of_its_own(server: Served, root: Path) -> None:
    # abi.md 8.22
    ctx("ask", "one", root=root)
    ctx("ask", "two", root=root)
    ctx("ask", "--session", "mine", "three", root=root)
    first, second, third = (key.session for key in server.world.sessions)
    assert first != second
    assert first.startswith("ask-")
    assert third == "mine"


def test_what_keeps_nothing_is_a_temp_session(server: Served, root: Path, tmp_path: Path) -> None:
    # abi.md 8.14, 8.23
    ctx("ask", "--no-log", "one", root=root, CTX_CONFIG=str(tmp_path))
    (tmp_path / "log.off").touch()
    ctx("ask", "two", root=root, CTX_CONFIG=str(tmp_path))
    assert [key.scope for key in server.world.sessions] == ["temp", "temp"]
    done = ctx("ask", "-c", "three", root=root, CTX_CONFIG=str(tmp_path))
    assert (done.returncode, "keeps no sessions" in done.stderr) == (2, True)


def test_json_has_the_answer_and_what_it_took(server: Served, root: Path, tmp_path: Path) -> None:
    # abi.md 8.13, 8.27
    (tmp_path / "prices.toml").write_text('[models."openai/*"]\ninput = 1000000\noutput = 0\n')
    done = ctx("ask", "--json", "-u", "hello", root=root, CTX_CONFIG=str(tmp_path))
    said = json.loads(done.stdout)
    assert (said["object"], said["answer"], said["status"]) == (GPT, "hello", 0)
    assert said["cost"] == said["input_tokens"] > 0
    assert (
        done.stderr
        == f"{said['input_tokens']} tokens in, {said['output_tokens']} out; {said['cost']:.4f} USD\n"
    )


def test_a_template_is_saved_listed_and_used(server: Served, root: Path) -> None:
    # abi.md 8.24
    saved = ctx("ask", "--save", "fr", "-p", "language=French", "into $language:", root=root)
    assert (saved.returncode, saved.stdout) == (0, "")
    assert not server.accepted
    ctx("ask", "-t", "fr", "-p", "language=Danish", root=root, input="hi")
    assert said_to(server) == "into Danish:\n\nhi"
    listed = ctx("ask", "--templates", root=root)
    assert listed.stdout.splitlines()[1].split() == ["fr", "-", "into", "$language:"]
    assert json.loads(ctx("ask", "--templates", "--json", root=root).stdout)[0]["template"] == "fr"
    assert ctx("ask", "-t", "fr", "-x", root=root).returncode == 1


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        ([], 2, "there is no question; say it, or pipe it in"),
        (["-m", "openai/gpt-4", "x"], 1, "there is no object 'openai/gpt-4'; did you mean"),
        (["-m", "fs.read", "x"], 2, "tool/fs.read is a tool"),
        (["-p", "a=b", "x"], 2, "-p sets a variable of a template"),
        (["-o", "temperature", "x"], 2, "-o temperature: say KEY=VALUE"),
        (["-o", "messages=[]", "x"], 2, "-o messages: is no option of a model"),
        (["--schema", "name thing", "x"], 2, "--schema:"),
        (["--schema", "none.json", "x"], 1, "none.json"),
        (["--session", "../x", "x"], 2, "the name '../x'"),
        (["-t", "../x", "x"], 2, "the name '../x'"),
        (["-t", "none", "x"], 1, "there is no template 'none'"),
        (["-T", "fs.raed", "x"], 1, "there is no tool 'fs.raed'; did you mean fs.read?"),
        (["-c", "x"], 1, "there is no question to go on with"),
        (["-c", "--no-log", "x"], 2, "keeps no sessions"),
        (["--save", "x", "-a", "-"], 2, "a template cannot keep standard input"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    server: Served, root: Path, words: list[str], status: int, sentence: str
) -> None:
    # abi.md 4.23
    done = ctx("ask", *words, root=root)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1), done.stderr
    assert sentence in done.stderr
    assert server.accepted == 0


def test_completion_knows_templates_models_and_tools(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CTX_ROOT", str(root))
    monkeypatch.setenv("HOME", str(root.parent))
    monkeypatch.delenv("CTX_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(root.parent / "config"))
    monkeypatch.setattr("os.getuid", lambda: 1000)
    (root.parent / "config/cortexfs/templates").mkdir(parents=True)
    (root.parent / "config/cortexfs/templates/fr.toml").touch()
    assert complete.candidates(["ctx", "ask", "-t", ""]) == ["fr"]
    assert complete.candidates(["ctx", "ask", "-m", "op"]) == ["openai/gpt-5"]
    assert complete.candidates(["ctx", "ask", "-T", "fs"]) == ["fs.read"]
    assert "--schema" in complete.candidates(["ctx", "ask", "--s"])
