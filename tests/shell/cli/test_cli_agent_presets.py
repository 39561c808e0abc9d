"""`ctx agent new`: presets, and the refusal of models and tools that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortexfs.agents import defaults, records
from cortexfs.cli.main import main
from tests.shell.cli import test_cli_agent
from tests.shell.cli.test_cli_agent import made, new

state, root = test_cli_agent.state, test_cli_agent.root


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "openai/gpt-6"], "there is no model openai/gpt-6"),
        (
            ["--model", "openai/gpt-5", "--tools", "fs.raed"],
            "there is no tool fs.raed; did you mean fs.read?",
        ),
    ],
)
def test_what_is_not_there_is_refused(
    words: list[str], said: str, root: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # issue: "`agent new` refuses unknown tools and models unless `--anyway`"
    assert main(["agent", "new", "coder", *words]) == 2
    assert said in (told := capsys.readouterr().err)
    assert "to make the agent without it, say --anyway" in told
    assert not records.load(state).broken
    assert main(["agent", "new", "coder", *words, "--anyway"]) == 0
    assert made(state, "coder")


def test_a_preset_has_tools_and_a_prompt_for_its_work(root: Path, state: Path) -> None:
    # issue: "`ctx agent new coder --preset code|read|chat` has a view, tools and approvals that fit"
    for name in ("read", "code", "chat"):
        assert new(name, "--preset", name) == 0
    tools = {name: set(made(state, name).extra["tools"].split()) for name in ("read", "code", "chat")}
    assert (tools["read"], tools["chat"]) == (set(defaults.BASE_TOOLS), set())
    # issue 16: "its model is offered shell.exec alone (and what is named besides)"; abi.md 7.7
    assert tools["code"] == {"shell.exec"}
    allowed = {line.split()[2] for line in made(state, "code").extra["policy"].splitlines()}
    wanted = (*defaults.BASE_TOOLS, "fs.write", "fs.replace", "shell.exec")
    assert allowed == {"model:main", *(f"tool:{name}" for name in wanted)}
    assert made(state, "code").extra["env"] == "CTX_AGENT_STEPS=64\nCTX_OUTPUT=text\n"
    assert len({made(state, name).extra["system.md"] for name in tools}) == 3
    assert {made(state, name).extra["approval"] for name in tools} == {"auto"}
    assert new("own", "--preset", "code", "--tools", "fs.read") == 0
    assert made(state, "own").extra["tools"] == "shell.exec\nfs.read\n"
    assert new("allowed", "--preset", "code", "--allow", "text.word_count") == 0
    assert made(state, "allowed").extra["tools"] == "shell.exec\n"
    assert "allow allowed_t tool:text.word_count execute" in made(state, "allowed").extra["policy"]
    assert new("shut", "--allow", "fs.read") == 2
