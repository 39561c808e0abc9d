"""Skills and prompts of plugins on a real mount: agents get and read skills, and `ctx ask` uses prompts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mounted import plugins
from tests.mounted.agents import agent, call, results, say, script, working
from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.talking import Frame

SKILL = "---\nname: review\ndescription: Reviews a change.\n---\n# Review\nLook at {tests} first.\n"
PROMPT = "---\ndescription: 'Says it in another language'\n---\nSay in $language:\n$input\n"


@pytest.fixture(scope="module")
def ctx(python: Path) -> Iterator[Ctx]:
    with mounted(python, []) as mount:
        made = plugins.program(mount.work / "source", "notes")
        files = {
            "skills/review/SKILL.md": SKILL,
            "skills/review/more.txt": "more\n",
            "skills/tidy.md": "# Tidies up\n",
            "prompts/translate.md": PROMPT,
            "prompts/image.png": "no text",
            "lib/secret.txt": "not a skill\n",
        }
        plugins.written(made, files)
        mount.ctx("plugin", "install", str(made))
        yield mount


def told(ctx: Ctx) -> dict[str, dict[str, str]]:
    rows = map(json.loads, (ctx.root / ".texts").read_text().splitlines())
    return {f"{row['kind']} {row['name']}": row for row in rows}


def said(ctx: Ctx, path: str, calls: list[dict[str, Any]]) -> list[Frame]:
    """Returns the results of an agent's calls; its user allows each call that needs approval."""
    with working(ctx, path, script(*calls, say("done")), scope="temp") as client:
        frames: list[Frame] = []
        while not frames or frames[-1]["type"] != "done":
            frames.append(client.frame())
            if frames[-1]["type"] == "approval":
                asked = frames[-1]
                client.ask("approve", run=asked["run"], call=asked["call"], decision="allow_once")
    return results(frames)


def test_an_agent_reads_the_skills_that_it_is_given_and_no_more_of_a_plugin(ctx: Ctx) -> None:
    # abi.md 11.40
    rows = told(ctx)
    assert rows["skill notes/review"]["description"] == "Reviews a change."
    assert rows["skill notes/tidy"]["description"] == "Tidies up"
    page = Path(rows["skill notes/review"]["path"])
    beside, other = page.with_name("more.txt"), page.parents[1] / "tidy.md"
    paths = [str(each) for each in (page, beside, other, page.parents[2] / "bin")]
    reads = [call("fs.read", path=each) for each in paths]
    with agent(ctx, "reader", "fs.read", "fs.write") as path:
        control = ctx.root / f"{path}.d/skills"
        assert [frame["is_error"] for frame in said(ctx, path, reads)] == [True] * 4
        control.write_text("notes/review\n")
        first, second, *others = said(ctx, path, [*reads, call("fs.write", path=paths[0], content="x")])
        assert "Look at {tests} first." in first["output"]
        assert "more" in second["output"]
        assert [frame["is_error"] for frame in others] == [True] * 3
        assert page.read_text() == SKILL
        for wrong in ("notes", "../notes", "notes/review\nnotes/review"):
            with pytest.raises(OSError, match="Invalid argument"):
                control.write_text(f"{wrong}\n")


def test_an_agent_is_made_with_skills(ctx: Ctx) -> None:
    # docs/agents.md: "`--skill` takes `PLUGIN/SKILL`"
    ctx.ctx("agent", "new", "skilled", "--skill", "notes/review", "--skill", "notes/tidy")
    assert (ctx.root / "agent/skilled.d/skills").read_text() == "notes/review\nnotes/tidy\n"
    ctx.ctx("agent", "rm", "skilled", "--yes")
    done = ctx.ctx("agent", "new", "other", "--skill", "notes", check=False)
    assert (done.returncode, "'notes' is not a skill; write PLUGIN/SKILL" in done.stderr) == (2, True)


def test_a_prompt_of_a_plugin_is_a_template(ctx: Ctx) -> None:
    # abi.md 11.41
    words = ("ask", "-m", "debug/echo", "-t", "notes/translate")
    assert ctx.ctx(*words, "-p", "language=Danish", "good day").stdout == "Say in Danish:\ngood day\n"
    listed = json.loads(ctx.ctx("ask", "--templates", "--json").stdout)
    assert {"template": "notes/translate", "prompt": "Says it in another language"} in listed
    assert [row for row in listed if "image" in row["template"]] == []
    assert "$language has no value" in ctx.ctx(*words, "good day", check=False).stderr
    lost = ctx.ctx("ask", "-t", "notes/translat", "x", check=False)
    assert (
        "no plugin of this mount has a prompt 'notes/translat'; did you mean notes/translate?" in lost.stderr
    )
    completed = ctx.ctx("complete", "--", "ctx", "ask", "-t", "no", check=False).stdout
    assert "notes/translate" in completed.splitlines()


def test_what_is_disabled_is_given_to_nobody(ctx: Ctx) -> None:
    # abi.md 11.40, 11.41
    ctx.ctx("plugin", "disable", "notes")
    try:
        assert told(ctx) == {}
        assert ctx.ctx("ask", "-t", "notes/translate", "x", check=False).returncode != 0
    finally:
        ctx.ctx("plugin", "enable", "notes")


def test_a_plugin_of_texts_alone_is_one(ctx: Ctx) -> None:
    # abi.md 11.40: the copy of a plugin without tools stays
    folder = plugins.written(
        ctx.work / "words",
        {
            "manifest.toml": 'name = "words"\nversion = "1.0"\ndescription = "d"\ncortex_version = "1.6.0"\n'
            '[capabilities]\nprovides = ["skills", "prompts"]\n',
            "skills/spell.md": "Spell it.\n",
        },
    )
    ctx.ctx("plugin", "install", str(folder))
    ctx.ctx("plugin", "enable", "words")  # one more reload, which removes unused copies
    assert Path(told(ctx)["skill words/spell"]["path"]).read_text() == "Spell it.\n"
