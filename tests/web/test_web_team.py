"""An agent of another machine on the page (abi.md 14.24)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted.agents import agent, call, say, script
from tests.team.machines import Machine, need_server, team
from tests.web import acting
from tests.web.acting import answer, log, question
from tests.web.browsing import person, web


@pytest.fixture
def machines(python: Path) -> Iterator[dict[str, Machine]]:
    need_server()
    with team(python, "laptop", "box") as found:
        yield found


def test_it_answers_and_asks_on_the_page(browser: Any, machines: dict[str, Machine]) -> None:
    laptop, box = machines["laptop"], machines["box"]
    with agent(box.ctx, "coder") as path:
        box.team("export", path, "--to", "root@laptop", "--as", "root")
        laptop.sees("agent/coder+box")
        with web(laptop.ctx) as page, person(browser, page.link) as tab:
            tab.get_by_role("link", name="Talk", exact=True).click()
            tab.get_by_label("With").select_option(label="coder+box")
            tab.get_by_label("Name").fill("far")
            tab.get_by_label("Works in").fill(str(box.ctx.work))
            tab.get_by_role("button", name="Begin").click()
            made = box.ctx.work / "made"
            acting.say(tab, script(call("fs.write", path="made", content="x"), say("well done")))
            question(tab, "fs.write").get_by_role("button", name="Allow", exact=True).click()
            answer(tab).get_by_text("well done").wait_for()
            assert made.read_text() == "x"
            tab.reload()
            log(tab).get_by_text("well done").first.wait_for()
            assert tab.faults == []
