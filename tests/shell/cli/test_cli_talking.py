"""send, resume, cancel, ping, session and the chat in a pipe, against a socket without a daemon."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.cli import parser
from cortexfs.cli.shell import complete
from cortexfs.cli.talk.session import age, size
from cortexfs.core.safe_text import counted
from tests.shell.cli_sessions import Sessions
from tests.shell.cli_tree import ctx, plant
from tests.shell.client_server import Served, served

GPT = "model/openai/gpt-5"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return plant(tmp_path / "ctx")


@pytest.fixture
def server(root: Path) -> Iterator[Served]:
    """A server that echoes each message."""
    with served(root / f"{GPT}.sock") as server:
        yield server


@pytest.fixture
def sessions(root: Path) -> Sessions:
    return Sessions(root, GPT)


def frames(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


# send


def test_send_prints_frames_for_programs(server: Served, root: Path) -> None:
    # abi.md 4.18
    done = ctx("send", "openai/gpt-5", "hello", "you", root=root)
    said = frames(done.stdout)
    assert [frame["type"] for frame in said] == [
        "start",
        "message",
        "delta",
        "delta",
        "message",
        "usage",
        "done",
    ]
    assert list(said[0])[:4] == ["type", "id", "run", "request"]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("environ", [{}, {"CTX_OUTPUT": "text"}])
def test_send_prints_text_for_people(server: Served, root: Path, environ: dict[str, str]) -> None:
    # abi.md 4.18
    option = [] if environ else ["--output", "text"]
    done = ctx("send", GPT, *option, "hello", root=root, **environ)
    assert (done.stdout, done.returncode) == ("hello\n", 0)


@pytest.mark.parametrize(
    ("words", "input", "said"),
    [
        (["a", "b"], "", "a b"),
        ([], "from a pipe\n", "from a pipe"),
        (["look:", "-"], "piped\n", "look:\n\npiped"),
        (["--", "--session"], "", "--session"),
        (['{"task":"an object"}'], "", "an object"),
        ([], '{"messages":[{"role":"user","content":"one"}]}', "one"),
    ],
)
def test_what_counts_as_text_is_as_for_exec(
    server: Served, root: Path, words: list[str], input: str, said: str
) -> None:
    # abi.md 4.3
    done = ctx("send", GPT, "--session", "s", *words, root=root, input=input)
    message = frames(done.stdout)[1]
    assert message["content"] == [{"type": "text", "text": said}]


def test_options_may_stand_anywhere(server: Served, root: Path) -> None:
    done = ctx("send", "--session", "one", GPT, "a", "--id", "m7", "b", root=root)
    assert frames(done.stdout)[0]["request"] == "m7"
    assert [key.session for key in server.world.sessions] == ["one"]


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["fs.read", "x"], 2, "tool/fs.read is a tool, and tools hold no conversations; see: ctx run"),
        (["openai/gpt-4", "x"], 1, "there is no object 'openai/gpt-4'; did you mean openai/gpt-5?"),
        ([GPT], 2, "the prompt is empty"),
        ([GPT, "x", "--output", "xml"], 2, "'xml' is unknown; it can be jsonl, text"),
        ([GPT, "x", "--scope", "mine"], 2, "'mine' is unknown; it can be private, shared"),
        ([GPT, "x" * 120_000, "x" * 120_000, *["y" * 120_000] * 8], 2, "over 1048576 bytes"),
        ([GPT, "x", "--session", "../x"], 2, "the name '../x' may hold only"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    server: Served, root: Path, words: list[str], status: int, sentence: str
) -> None:
    # abi.md 4.23
    done = ctx("send", *words, root=root, CTX_OUTPUT="text")
    assert (done.returncode, done.stdout) == (status, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["run", "send"])
def test_an_unknown_output_is_refused(server: Served, root: Path, command: str) -> None:
    # docs/config.md: "`text` or `jsonl`, for objects, `ctx send` and `resume`"
    done = ctx(command, GPT, "x", root=root, CTX_OUTPUT="xml")
    said = f"ctx {command}: CTX_OUTPUT is 'xml'; it can be jsonl or text\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_an_approval_of_an_unknown_tool_is_warned_of(server: Served, root: Path) -> None:
    words = ["--approve", "fs.raed", "--approve", "fs.*", "--approve", "nix"]
    done = ctx("send", GPT, "x", *words, root=root, CTX_OUTPUT="text")
    unknown = "no tool of this mount has that name"
    assert (done.returncode, done.stderr.splitlines()) == (
        0,
        [
            f"warning: --approve fs.raed: {unknown}; did you mean fs.read?",
            f"warning: --approve nix: {unknown}; see: ctx ls tool",
        ],
    )


@pytest.mark.parametrize("output", ["jsonl", "text", "json"])
def test_a_lost_connection_is_told_in_the_form_that_was_asked_for(root: Path, output: str) -> None:
    # abi.md 4.20
    with served(root / f"{GPT}.sock", echo=False) as server:
        words = ["--root", str(root), "send", GPT, "x", "--output", output]
        if output == "json":  # ask.md: "`--json` prints one object at the end"
            words[2:] = ["ask", "-m", GPT, "--json", "x"]
        sending = subprocess.Popen(
            [sys.executable, "-m", "cortexfs.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        server.until_active()
        server.hang_up()
        said, complaint = sending.communicate()
    assert sending.returncode == 69
    if output != "jsonl":
        assert "is lost" in complaint
        assert not said or json.loads(said)["status"] == 69
        assert (output == "json") == bool(said)
    else:
        assert [(frame["type"], frame.get("code")) for frame in frames(said)][-2:] == [
            ("error", "EHOSTDOWN"),
            ("done", "EHOSTDOWN"),
        ]
        assert complaint == ""


def test_an_output_that_does_not_exist_is_refused(server: Served, root: Path) -> None:
    done = ctx("send", GPT, "x", root=root, CTX_OUTPUT="xml")
    assert done.returncode == 2
    assert "CTX_OUTPUT is 'xml'" in done.stderr


def test_an_object_whose_socket_nobody_serves(root: Path) -> None:
    # abi.md 5.5
    done = ctx("send", GPT, "x", root=root)
    assert done.returncode == 1
    assert "does not exist: no such object, or it has no conversations" in done.stderr


# resume, cancel, ping


def test_resume_ends_where_the_log_ended(server: Served, root: Path, sessions: Sessions) -> None:
    # commands.md: "It ends when it has printed the event that was the newest one"
    first = ctx("send", GPT, "one", root=root).stdout
    log = sessions.add("default", 1) / "events.jsonl"
    log.write_text(first)
    done = ctx("resume", GPT, root=root)
    assert (done.stdout, done.returncode) == (first, 0)
    after = ctx("resume", GPT, "--after", "3", root=root)
    assert after.stdout.splitlines() == first.splitlines()[3:]
    assert ctx("resume", GPT, "--after", "6", root=root).stdout == ""
    text = ctx("resume", GPT, "--output", "text", root=root)
    assert text.stdout == "> one\none\n"
    unknown = ctx("resume", GPT, "--after", "x", root=root)
    assert unknown.returncode == 2
    assert 'no event "x"' in unknown.stderr
    # commands.md: "An ID that the session does not know is refused, with exit status 2"
    later = ctx("resume", GPT, "--after", "7", root=root)
    assert (later.returncode, later.stdout) == (2, "")
    assert "no event '7'" in later.stderr


def test_resume_of_an_empty_session_says_so(server: Served, root: Path) -> None:
    # abi.md 5.19
    done = ctx("resume", GPT, "--session", "none", root=root)
    assert (done.stdout, done.returncode) == ("", 0)
    assert done.stderr == "the session 'none' of openai/gpt-5 is empty\n"


def test_cancel_of_what_is_not_there_or_over(server: Served, root: Path) -> None:
    # abi.md 5.27
    assert ctx("cancel", GPT, "nothing", root=root).returncode == 1
    run = str(frames(ctx("send", GPT, "x", root=root).stdout)[0]["run"])
    done = ctx("cancel", GPT, run, root=root)
    assert done.returncode == 1
    assert "is over" in done.stderr


def test_cancel_ends_a_run(root: Path) -> None:
    with served(root / f"{GPT}.sock", echo=False) as server:
        program = [sys.executable, "-m", "cortexfs.cli.main", "--root", str(root), "send", GPT, "x"]
        sending = subprocess.Popen([*program, "--id", "m7"], stdout=subprocess.PIPE, text=True)
        assert sending.stdout
        sending.stdout.readline()
        done = ctx("cancel", GPT, "m7", root=root)
        assert (done.returncode, done.stderr) == (0, "cancelled m7\n")
        assert '"cancelled"' in sending.stdout.read().splitlines()[-1]
        assert sending.wait() == 130
        sending.stdout.close()
        assert server.accepted == 2


def test_ping(server: Served, root: Path) -> None:
    assert "openai/gpt-5 answers in " in ctx("ping", GPT, root=root).stdout
    assert "answered 3 times" in ctx("ping", GPT, "--count", "3", root=root).stdout
    said = json.loads(ctx("ping", GPT, "--count", "2", "--json", root=root).stdout)
    assert said["object"] == GPT
    assert 0 < said["ms"]["least"] <= said["ms"]["mean"] <= said["ms"]["most"]
    assert ctx("ping", GPT, "--count", "0", root=root).returncode == 2


# the chat in a pipe


def test_a_pipe_is_one_message(server: Served, root: Path) -> None:
    # commands.md: "what is read up to its end is one message, and the answer is printed as text"
    done = ctx("chat", GPT, root=root, input="hello\nyou \x1b[1m\n")
    assert (done.stdout, done.stderr, done.returncode) == ("helloyou\x1b[1m\n", "", 0)
    assert len(server.world.sessions) == 1
    assert ctx("chat", GPT, root=root, input="").stdout == ""


def test_a_message_that_is_too_long_is_refused(server: Served, root: Path) -> None:
    done = ctx("chat", GPT, root=root, input="x" * (1 << 21))
    assert done.returncode == 2
    assert "1 MiB" in done.stderr


@pytest.mark.parametrize("command", [["send", GPT, "x"], ["chat", GPT], ["resume", GPT], ["run", GPT]])
def test_nothing_but_a_chat_on_a_terminal_pays_for_it(
    server: Served, root: Path, command: list[str], tmp_path: Path
) -> None:
    # design.md: "Nothing but `ctx chat` on a terminal imports them"
    for name in ("prompt_toolkit", "rich", "markdown_it"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    done = ctx(*command, root=root, input="x", PYTHONPATH=str(tmp_path))
    assert "imported" not in done.stderr
    assert done.returncode == (7 if command[0] == "run" else 0)


# session


def test_sessions_are_listed(root: Path, sessions: Sessions) -> None:
    sessions.add("old", time.time() - 3 * 86400)
    sessions.add("new", time.time(), state="active")
    done = ctx("session", "list", root=root)
    head, new, old = (line.split() for line in done.stdout.splitlines())
    assert head == ["OBJECT", "SESSION", "STATE", "UPDATED", "MESSAGES", "SIZE"]
    assert new[:3] == [GPT, "new", "active"]
    assert old[:6] == [GPT, "old", "done", "3", "d", "ago"]
    rows = json.loads(ctx("session", "list", "model/main", "--json", root=root).stdout)
    assert [row["session"] for row in rows] == ["new", "old"]
    assert rows[0]["path"] == str(sessions.folder / "new")
    none = ctx("session", "list", "--scope", "shared", root=root)
    assert (none.stdout, none.stderr) == ("", "there are no shared sessions\n")


def test_a_session_is_shown(root: Path, sessions: Sessions) -> None:
    sessions.add("one", time.time(), said="first\nsecond")
    done = ctx("session", "show", GPT, "one", root=root)
    assert done.stdout.splitlines()[1:] == ["cwd: /work", "", "> first", "> second", "", "first", "second"]
    said = json.loads(ctx("session", "show", GPT, "one", "--json", root=root).stdout)
    assert said["meta"]["last"] == "5"
    assert [message["role"] for message in said["messages"]] == ["user", "assistant"]
    missing = ctx("session", "show", GPT, "two", root=root)
    assert missing.returncode == 1
    assert "see: ctx session list model/openai/gpt-5" in missing.stderr


def test_a_session_of_no_object_cannot_be_taken(root: Path) -> None:
    done = ctx("session", "take", "agent/nobody", "plan+laptop", root=root)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ctx session: there is no object 'agent/nobody'; see: ctx ls\n"


@pytest.mark.parametrize(("count", "said"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_counts(count: int, said: str) -> None:
    assert counted(count, "run") == said


def test_a_session_is_removed_when_that_is_meant(root: Path, sessions: Sessions) -> None:
    # commands.md: "`rm` asks on a terminal and needs `--yes` elsewhere"
    place = sessions.add("one", time.time())
    refused = ctx("session", "rm", GPT, "one", root=root)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert place.exists()
    done = ctx("session", "rm", GPT, "one", "--yes", root=root)
    assert done.returncode == 0
    assert "with 2 messages" in done.stderr
    assert not place.exists()


def test_gc_says_what_goes_and_lets_it_go(root: Path, sessions: Sessions) -> None:
    now = time.time()
    for days, name in enumerate(("today", "yesterday", "older", "oldest")):
        sessions.add(name, now - days * 86400)
    assert ctx("session", "gc", root=root).returncode == 2
    assert ctx("session", "gc", "--keep", "-1", root=root).returncode == 2
    dry = ctx("session", "gc", "--older-than", "1.5", "--dry-run", root=root)
    assert dry.stdout.splitlines() == [f"{GPT} older", f"{GPT} oldest"]
    assert "2 sessions would be removed" in dry.stderr
    assert len(sessions.left()) == 4
    ctx("session", "gc", "model/main", "--keep", "3", root=root)
    assert sessions.left() == ["older", "today", "yesterday"]
    rows = json.loads(ctx("session", "gc", "--older-than", "0", "--json", root=root).stdout)
    assert [row["session"] for row in rows] == ["yesterday", "older"]
    assert sessions.left() == ["today"]


def test_sessions_complete(root: Path, sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    # commands.md: "the names of sessions too"
    monkeypatch.setenv("CTX_ROOT", str(root))
    sessions.add("fix-it", 200)
    sessions.add("other", 100)
    for line in (
        "send model/main --session f",
        "session show openai/gpt-5 f",
        "chat openai/gpt-5 --session f",
        "ask -m openai/gpt-5 --session f",
        "ask --session f",
    ):
        assert complete.candidates(["ctx", *line.split()]) == ["fix-it"], line
    assert complete.candidates(["ctx", "send", "model/main", "--scope", ""]) == ["private", "shared", "temp"]
    assert complete.candidates(["ctx", "session", ""]) == ["list", "show", "rm", "rename", "take", "gc"]
    assert complete.candidates(["ctx", "ping", "openai"]) == ["openai/gpt-5"]
    assert complete.candidates(["ctx", "chat", ""]) == ["main", "openai/gpt-5"]  # tools hold no conversations


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB"), (5 << 50, "5120.0 TiB")],
)
def test_sizes(count: int, said: str) -> None:
    assert size(count) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0 s ago"), (0.5, "0 s ago"), (119, "1 min ago"), (7200, "2 h ago"), (1e6, "11 d ago")],
)
def test_ages(seconds: float, said: str) -> None:
    assert age(seconds) == said


def test_the_chat_alone_is_with_the_main_model() -> None:
    # issue 14: "`ctx chat` alone means model/main"
    assert parser.of_command("chat").parse_args([]).object == "model/main"
