"""The model of an agent is told the names and files of the agent's skills."""

from __future__ import annotations

import trio

from cortexfs.plugins.texts import SKILL, PluginText
from tests.shell.agent_runs import Played, run
from tests.shell.agents.test_agent_view import Model, output

PAGE = "/p/skills/review/SKILL.md"
REVIEW = PluginText(SKILL, "notes/review", "Reviews a change.", PAGE, "/p/skills/review")


class Skilled(Played):
    def skill(self, name: str) -> PluginText | None:
        return REVIEW if name == REVIEW.name else None


def test_its_model_knows_their_names_and_files_and_not_their_texts() -> None:
    # abi.md 11.40
    model = Model()
    trio.run(run, Skilled(model, output, skills="notes/review\nother/gone\n"))
    assert (
        "Skills: if one fits the task, first read its file with fs.read, and do as the file says.\n"
        "- notes/review: Reviews a change. (/p/skills/review/SKILL.md)\n"
        "- other/gone: its plugin is not loaded now\n"
    ) in f"{model.system}\n"
    trio.run(run, Skilled(other := Model(), output))
    assert "Skills" not in other.system
