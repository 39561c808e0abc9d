"""`ctx log` on a real mount: it finds and removes entries, and hides them from other users."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted

ECHO = "debug/echo"


@pytest.fixture(scope="module")
def own(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        say(ctx, "first", "how do I migrate postgres")
        say(ctx, "second", "a haiku about autumn")
        yield ctx


def say(ctx: Ctx, session: str, text: str, object_: str = ECHO, scope: str = "private") -> None:
    ctx.ctx("send", object_, "--session", session, "--scope", scope, "--", text)


def logged(ctx: Ctx, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ctx.ctx("log", *words, "--json").stdout)
    return found


def questions(ctx: Ctx, *words: str) -> list[str]:
    return [row["question"] for row in logged(ctx, *words)]


def test_what_was_asked_is_listed_and_found(own: Ctx) -> None:
    # abi.md 8.16
    assert set(questions(own)) >= {"how do I migrate postgres", "a haiku about autumn"}
    assert questions(own, "-q", "postgres migr") == ["how do I migrate postgres"]
    assert questions(own, "-q", "postgres", "--model", "debug/echo", "--since", "1h") == questions(
        own, "-q", "postgres"
    )
    assert questions(own, "-q", "postgres", "--model", "gpt") == []
    assert questions(own, "--agent", "coder") == []
    assert len(questions(own, "-n", "1")) == 1
    listed = own.ctx("log").stdout.splitlines()
    assert listed[0].split() == ["ID", "ASKED", "OF", "QUESTION"]
    assert any("a haiku about autumn" in line for line in listed)


def test_an_alias_is_the_model_that_it_means(own: Ctx) -> None:
    (own.root / "model" / "mine").symlink_to("debug/echo")
    try:
        assert questions(own, "-q", "haiku", "--model", "mine") == ["a haiku about autumn"]
    finally:
        (own.root / "model" / "mine").unlink()


def test_a_question_is_shown_whole(own: Ctx) -> None:
    # docs/ask.md: "`show` prints a question and its whole answer, with its tokens and what they cost"
    say(own, "long", "word " * 3000 + "end")
    [row] = logged(own, "-q", "word end")
    (own.config / "prices.toml").write_text('[models."debug/*"]\ninput = 1000\noutput = 3000\n')
    try:
        shown = own.ctx("log", "show", row["id"][:6]).stdout
        assert "session long, ok, 3,001 tokens in, 3,001 out, 12.0040 USD" in shown
        assert shown.rstrip().endswith("word end")
        assert shown.count("word") == 6000
        whole = json.loads(own.ctx("log", "show", row["id"], "--json").stdout)
        assert whole["cost"] == pytest.approx(12.004)
    finally:
        (own.config / "prices.toml").unlink()
    assert "USD" not in own.ctx("log", "show", row["id"]).stdout  # abi.md 8.13


@pytest.mark.parametrize("how", ["log rm", "session rm", "session gc", "rm -r"])
def test_what_was_removed_is_gone(own: Ctx, how: str) -> None:
    # abi.md 8.17
    script = "debug/script"  # no other question of this file goes to it
    say(own, "gone", json.dumps([{"message": "a sphygmomanometer"}]), script)
    say(own, "kept", json.dumps([{"message": "something else"}]), script)
    [row] = logged(own, "-q", "sphygmo")
    assert any(b"sphygmomanometer" in data for data in indexes(own))
    match how:
        case "log rm":
            own.ctx("log", "rm", row["id"], "--yes")
        case "session rm":
            own.ctx("session", "rm", script, "gone", "--yes")
        case "session gc":
            own.ctx("session", "gc", script, "--keep", "1")
        case _:
            shutil.rmtree(own.root / f"home/{os.getuid()}/model/{script}.d/session/gone")
            own.ctx("log")
    assert not any(b"sphygmomanometer" in data for data in indexes(own))
    assert logged(own, "-q", "sphygmo") == []
    assert logged(own, "-q", "something else")


def test_shared_sessions_are_in_it(own: Ctx) -> None:
    # abi.md 8.16, 8.17
    say(own, "both", "a private pangolin")
    say(own, "both", "a shared pangolin", scope="shared")
    assert questions(own, "-q", "pangolin") == ["a shared pangolin", "a private pangolin"]
    shared, private = logged(own, "-q", "pangolin")
    assert (shared["space"], private["space"]) == ("shared", "private")
    listed = own.ctx("log", "-q", "pangolin").stdout
    assert "debug/echo, shared  a shared pangolin" in listed
    assert "shared session both" in own.ctx("log", "show", shared["id"]).stdout
    own.ctx("log", "rm", shared["id"], "--yes")
    assert questions(own, "-q", "pangolin") == ["a private pangolin"]
    assert not any(b"shared pangolin" in data for data in indexes(own))


def indexes(ctx: Ctx) -> list[bytes]:
    return [path.read_bytes() for path in (ctx.base / "cache" / "cortexfs").iterdir()]


def test_nothing_is_removed_unasked_or_twice(own: Ctx) -> None:
    say(own, "asked", "do not remove me")
    [row] = logged(own, "-q", "remove me")
    refused = own.ctx("log", "rm", row["id"], check=False)
    assert (refused.returncode, "say --yes" in refused.stderr) == (2, True)
    assert logged(own, "-q", "remove me") == [row]
    missing = own.ctx("log", "show", "nosuch", check=False)
    assert (missing.returncode, "there is no 'nosuch' in the log" in missing.stderr) == (1, True)


def test_off_and_on(own: Ctx) -> None:
    # abi.md 8.14
    assert "keeps nothing" in own.ctx("log", "off").stderr
    assert (own.config / "log.off").exists()
    assert "keeps its questions" in own.ctx("log", "on").stderr
    assert not (own.config / "log.off").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-n", "-1"), "-n cannot be negative"),
        (("--since", "soon"), "'soon' is no time"),
        (("--since", "9999999d"), "is no time"),
        (("shwo", "x"), "is unknown"),
    ],
)
def test_a_wrong_word_is_a_sentence(own: Ctx, words: tuple[str, ...], why: str) -> None:
    done = own.ctx("log", *words, check=False)
    assert done.returncode == 2
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1


# Attacks.


def test_what_a_model_says_cannot_steer_a_terminal(own: Ctx) -> None:
    # docs/attacks.md: no text steers a terminal
    say(own, "steer", "evil \x1b[2J\x1b]0;owned\x07 \u202eright")
    [row] = logged(own, "-q", "evil")
    assert "\x1b" not in own.ctx("log").stdout
    words = f"{own.python} -I -m cortexfs.cli.main log show {row['id']}"
    seen = own.run(["script", "-qec", words, "/dev/null"]).stdout
    assert "\\x1b[2J" in seen
    assert "\x1b[2J" not in seen
    assert "\x1b]0;" not in seen


@pytest.mark.skipif(os.geteuid() != 0, reason="asks as another user, which only root can")
def test_another_users_log_is_not_to_be_seen(own: Ctx) -> None:
    # abi.md 8.16, 8.17
    cache = own.base / "theirs"
    cache.mkdir()
    os.chown(cache, NOBODY, NOBODY)
    theirs = {"XDG_CACHE_HOME": str(cache), "HOME": str(cache), "CTX_CONFIG": str(cache)}

    def ctx(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return own.run(
            [str(own.python), "-I", "-m", "cortexfs.cli.main", *words], uid=NOBODY, env=theirs | more
        )

    say(own, "mine", "a secret of mine")
    assert ctx("send", ECHO, "a secret of theirs").returncode == 0
    assert "a secret of theirs" in ctx("log").stdout
    assert "of mine" not in ctx("log", "-n", "0").stdout
    assert logged(own, "-q", "secret theirs") == []
    assert not any(b"secret of theirs" in data for data in indexes(own))
    [row] = logged(own, "-q", "secret mine")
    for verb in ("show", "rm"):
        refused = ctx("log", verb, row["run"])
        assert (refused.returncode, "there is no" in refused.stderr) == (1, True)
    # Pointed at the index of another user, a command fails and leaves that index alone.
    before = indexes(own)
    refused = ctx("log", XDG_CACHE_HOME=str(own.base / "cache"))
    assert refused.returncode == 13
    assert indexes(own) == before


def test_ids_and_verbs_are_completed(own: Ctx) -> None:
    say(own, "complete", "complete me")
    [row] = logged(own, "-q", "complete me")
    assert row["id"] in own.ctx("complete", "--", "ctx", "log", "show", row["id"][:3]).stdout.split()
    assert own.ctx("complete", "--", "ctx", "log", "o").stdout.split() == ["off", "on"]
