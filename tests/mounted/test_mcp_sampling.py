"""An MCP server that asks an agent for a model's answer or for its roots, and how far policy lets it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import agent, call, decisions, results, run, say, script, working
from tests.mounted.ctx_mount import NOBODY, Answer, Ctx, mounted
from tests.mounted.mcp_places import command, declare, quiet, tool_is

ASKING = Path(__file__).parent / "mcp_asking.py"
SAMPLE, ROOTS = "allow {0}_t tool:asking.mcp sample\n", "allow {0}_t tool:asking.mcp roots\n"
ECHO = "allow {0}_t model:debug/echo use\n"
ANSWER = json.dumps([{"delta": "hello"}])  # a prompt that debug/script answers with "hello"


@pytest.fixture(scope="module")
def place(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        shutil.copy(ASKING, ctx.work)
        (ctx.config / "policy.toml").write_text('mode = "open"\n')
        declare(ctx, "asking", command(str(quiet(ctx, python)), "-I", str(ctx.work / ASKING.name)))
        tool_is(ctx, "asking.sample")
        yield ctx


def let(ctx: Ctx, path: str, *lines: str) -> None:
    """Add lines to the agent's policy."""
    more = "".join(lines).format(path.removeprefix("agent/"))
    ctx.put(f"{path}.d/policy", ctx.text(f"{path}.d/policy") + more)


def told(ctx: Ctx, path: str, tool: str, **input: object) -> Answer:
    return run(ctx, path, script(call(tool, **input), say("x")))


def text_of(answer: Answer) -> str:
    return str(results(answer.frames)[-1]["output"])


def test_a_server_samples_nothing_without_a_line(place: Ctx) -> None:
    # abi.md 7.11
    with agent(place, "plain", "asking.*") as path:
        assert json.loads(text_of(told(place, path, "asking.declared"))).keys() == {"elicitation"}
        assert "no policy line allows sampling" in text_of(told(place, path, "asking.sample"))
        assert "as no policy line allows it" in text_of(told(place, path, "asking.roots"))
        let(place, path, ROOTS)
        assert "no policy line allows sampling" in text_of(told(place, path, "asking.sample"))


def test_a_person_is_no_agent_with_a_line(place: Ctx) -> None:
    assert "no policy line allows sampling" in place.call("asking.sample", "{}").output


def test_a_server_samples_where_policy_lets_it(place: Ctx) -> None:
    # abi.md 7.11
    with agent(place, "lender", "asking.*") as path:
        let(place, path, SAMPLE, ECHO)
        declared = json.loads(text_of(told(place, path, "asking.declared")))
        assert declared.keys() == {"elicitation", "sampling"}
        answer = told(place, path, "asking.sample", prompt=ANSWER)
        assert text_of(answer) == "debug/script says: hello"
        asked = next(one for one in answer.frames if one.get("name") == "asking.mcp")
        assert asked["parent"] == next(one["call"] for one in answer.frames if one["type"] == "tool_call")
        assert asked["input"]["model"] == "debug/script"
        assert asked["input"]["system"] == "You are a server's model."
        assert asked["input"]["messages"][0]["content"] == [{"type": "text", "text": ANSWER}]
        rule = f"{path}.d/policy:{len(place.text(f'{path}.d/policy').splitlines()) - 1}"
        (decision,) = (one for one in decisions(answer.frames) if one["name"] == "asking.mcp")
        assert (decision["decision"], decision["rule"]) == ("allow", rule)


def test_a_hint_chooses_among_the_models_of_its_agent(place: Ctx) -> None:
    with agent(place, "chooser", "asking.*") as path:
        let(place, path, SAMPLE)
        own = text_of(told(place, path, "asking.sample", prompt=ANSWER, hint="echo"))
        assert own == "debug/script says: hello"  # its policy has no line for debug/echo
        let(place, path, ECHO)
        assert text_of(told(place, path, "asking.sample", prompt="a", hint="Echo")) == "debug/echo says: a"


def test_what_was_taken_away_is_gone(place: Ctx) -> None:
    with agent(place, "former", "asking.*") as path:
        before = place.text(f"{path}.d/policy")
        let(place, path, SAMPLE, ECHO)
        assert text_of(told(place, path, "asking.sample", prompt="a", hint="echo")) == "debug/echo says: a"
        place.put(f"{path}.d/policy", before)
        assert "no policy line allows sampling" in text_of(told(place, path, "asking.sample", prompt="a"))


def test_a_server_that_samples_without_end(place: Ctx) -> None:
    # abi.md 7.11: "at most 8 such answers"
    with agent(place, "looped", "asking.*") as path:
        let(place, path, SAMPLE, ECHO)
        answer = told(place, path, "asking.sample", prompt="a", hint="echo", times=50)
        assert text_of(answer) == "refused after 8: during one call a server may use a model at most 8 times"


def test_a_server_that_samples_with_ten_megabytes(place: Ctx) -> None:
    with agent(place, "flooded", "asking.*") as path:
        let(place, path, SAMPLE, ECHO)
        answer = told(place, path, "asking.sample", prompt="a" * 1000, hint="echo", size=10_000)
        assert text_of(answer) == "refused after 0: the question is over 128 KiB"
        assert text_of(told(place, path, "asking.sample", prompt="a", hint="echo")) == "debug/echo says: a"


def test_a_server_that_wants_a_long_answer(place: Ctx) -> None:
    with agent(place, "brief", "asking.*") as path:
        let(place, path, SAMPLE, ECHO)
        answer = told(place, path, "asking.sample", prompt="a", hint="echo", tokens=10**9)
        asked = next(one for one in answer.frames if one.get("name") == "asking.mcp")
        assert asked["input"]["max_tokens"] == 4096


def decided(place: Ctx, path: str, decision: str, **edited: object) -> tuple[dict[str, object], str]:
    """Returns the question to the user of an agent that asks, and the server's result after this decision."""
    task = script(call("asking.sample", prompt="a", hint="echo"), say("x"))
    with working(place, path, task, scope="temp") as client:
        asked = client.until("approval")[-1]
        client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
        asked = client.until("approval")[-1]
        client.ask("approve", run=asked["run"], call=asked["call"], decision=decision, **edited)
        return asked, str(results(client.until("done", status="ok"))[-1]["output"])


def test_its_user_is_asked_in_a_conversation(place: Ctx) -> None:
    # abi.md 7.11: what a model is to be asked is shown first
    with agent(place, "asker", "asking.*", approval="ask") as path:
        let(place, path, SAMPLE, ECHO)
        asked, said = decided(place, path, "allow_once")
        assert said == "debug/echo says: a"
        assert asked["name"] == "asking.mcp"
        assert asked["effects"] == ["send_message to debug/echo"]
        shown = asked["input"]
        assert isinstance(shown, dict)
        assert shown["messages"][0]["content"] == [{"type": "text", "text": "a"}]
        _, said = decided(place, path, "deny")
        assert said == "refused after 0: the user did not allow it"
        edited = shown | {"messages": [{"role": "user", "content": "b"}]}
        assert decided(place, path, "allow_once", input=edited)[1] == "debug/echo says: b"


def test_another_model_than_the_one_that_was_shown_answers_nothing(place: Ctx) -> None:
    with agent(place, "changer", "asking.*", approval="ask") as path:
        let(place, path, SAMPLE, ECHO)
        asked, _ = decided(place, path, "allow_once")
        other = asked["input"] | {"model": "debug/script"}  # type: ignore[operator]
        said = decided(place, path, "allow_once", input=other)[1]
        assert said == "refused after 0: the user chose another model; a server's question cannot change it"


def test_roots_that_the_user_takes_away_are_not_told(place: Ctx) -> None:
    # abi.md 7.12
    with agent(place, "hider", "asking.*", approval="ask") as path:
        let(place, path, ROOTS)
        task = script(call("asking.roots"), say("x"))
        kept = [{"uri": "file:///some/where"}]
        for edited, told_ in (
            ({}, f'["{place.work.as_uri()}"]'),
            ({"input": {"roots": []}}, "[]"),
            ({"input": {"roots": kept}}, '["file:///some/where"]'),
            ({"input": {"roots": 1}}, "refused: roots: "),
        ):
            with working(place, path, task, scope="temp") as client:
                asked = client.until("approval")[-1]
                client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
                asked = client.until("approval")[-1]
                client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once", **edited)
                said = str(results(client.until("done", status="ok"))[-1]["output"])
                assert said.startswith(told_)


def test_an_answer_without_end_is_none(place: Ctx) -> None:
    # a model that ignores max_tokens; a host takes only a limited amount in one piece
    with agent(place, "endless", "asking.*") as path:
        let(place, path, SAMPLE, ECHO)
        answer = told(place, path, "asking.sample", prompt="a", size=100 << 10, hint="echo")
        assert text_of(answer) == "refused after 0: the model's answer has over 64 Ki characters"
        last = [one for one in results(answer.frames) if one["name"] == "asking.mcp"]
        assert [one["is_error"] for one in last] == [True]


def test_where_nobody_can_be_asked_nothing_is_sampled(place: Ctx) -> None:
    with agent(place, "alone", "asking.*") as path:
        let(place, path, SAMPLE, ECHO)
        (place.config / "policy.toml").write_text('mode = "open"\n[tools."asking.mcp"]\nblock = true\n')
        try:
            refused = text_of(told(place, path, "asking.sample", prompt="a", hint="echo"))
            assert "no policy line allows sampling" in refused
        finally:
            (place.config / "policy.toml").write_text('mode = "open"\n')


def test_roots_are_where_the_agent_works(place: Ctx) -> None:
    # abi.md 7.12
    with agent(place, "rooted", "asking.*") as path:
        let(place, path, ROOTS)
        declared = json.loads(text_of(told(place, path, "asking.declared")))
        assert declared["roots"] == {"listChanged": False}
        assert json.loads(text_of(told(place, path, "asking.roots"))) == [place.work.as_uri()]


def test_roots_of_another_user_are_those_of_that_user(place: Ctx) -> None:
    with agent(place, "shared", "asking.*") as path:
        let(place, path, ROOTS)
        task = script(call("asking.roots"), say("x"))
        ours = run(place, path, task)
        theirs = run(place, path, task, uid=NOBODY, cwd=place.base)
        assert json.loads(text_of(ours)) == [place.work.as_uri()]
        assert json.loads(text_of(theirs)) == [place.base.as_uri()]
        refused = place.call("asking.roots", "{}", uid=NOBODY).output  # the agent's line is not its user's
        assert "as no policy line allows it" in refused


def test_policy_explain_has_a_row_for_each(place: Ctx) -> None:
    with agent(place, "told", "asking.*") as path:
        let(place, path, SAMPLE)
        said = place.ctx("policy", "explain", path, "asking.sample", "--json")
        rows = {row["layer"]: row for row in json.loads(said.stdout)["steps"]}
        assert rows["sampling"]["result"] == "allow"
        assert rows["sampling"]["rule"].startswith(f"{path}.d/policy:")
        assert rows["roots"]["result"] == "deny"
        assert rows["roots"]["why"] == "its policy lacks the line: allow told_t tool:asking.mcp roots"
