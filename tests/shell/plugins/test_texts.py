"""The skills and prompts of a plugin's folder, and files that are neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortexfs.plugins import texts
from cortexfs.plugins.texts import PluginTexts, of_plugin

FOLDED = "Reviews a change. Use it for diffs. And more."


def test_what_is_too_long_or_no_text_is_left_out() -> None:
    # abi.md 11.40, 11.41
    files = {
        "skills/a.md": "# A\n",
        "skills/long.md": "x" * (texts.MAX_FILE + 1),
        "skills/empty.md": "",
        "skills/no page/notes.md": "x",
        "skills/b c.md": "x",
        "skills/folder/README.md": "no SKILL.md here",
        "skills/whole/SKILL.md": "# Whole\n",
        "prompts/p.txt": "---\nname: p\n---\nBody\n",
        "prompts/folder/SKILL.md": "x",
        **{f"prompts/q{n}.md": "y" * texts.MAX_FILE for n in range(5)},
    }
    data = {path: text.encode() for path, text in files.items()} | {"prompts/bytes.md": b"\xff"}
    found = of_plugin("notes", data, Path("/copy"))
    skills = [(one.name, one.path, one.place) for one in found if one.kind == texts.SKILL]
    assert skills == [
        ("notes/a", "/copy/skills/a.md", "/copy/skills/a.md"),
        ("notes/whole", "/copy/skills/whole/SKILL.md", "/copy/skills/whole"),
    ]
    prompts = [one for one in found if one.kind == texts.PROMPT]
    assert [one.name for one in prompts] == [f"notes/{name}" for name in ("p", "q0", "q1", "q2")]
    assert (prompts[0].description, prompts[0].text) == ("Body", "Body\n")
    assert of_plugin("none", {}, Path("/copy")) == ()


def test_a_head_speaks_in_one_line() -> None:
    # a description is untrusted input
    head = texts._parted("---\ndescription: a\x1b[31m b\r c\n---\nrest")
    assert (head[1], [mark for mark in ("\x1b", "\r", "\n") if mark in head[0]]) == ("rest", [])


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("description: Reviews a change.", "Reviews a change."),
        ("description: 'It''s \"so\"'", 'It\'s "so"'),
        (r'description: "a \"b\" \\ c\nd"', 'a "b" \\ c d'),
        ("description: >\n  Reviews a change.\n  Use it for diffs.\n\n  And more.\nname: x", FOLDED),
        ("description: >-\n    Reviews a change.\n    Use it for diffs. And more.", FOLDED),
        ("description: |2+ # kept\n  Reviews a change.\n  Use it for diffs.\n\n\n  And more.\n\n", FOLDED),
        ("description: Reviews a change.\n  Use it for diffs.\n  And more.\nname: x", FOLDED),
        ('description: "Reviews a change.\n  Use it for \\\n  diffs.\n\n  And more."\nname: x', FOLDED),
        ("description: 'Reviews a change.\n  Use it for diffs. And\n  more.'", FOLDED),
        ("description:\n  Reviews a change.\n  Use it for diffs. And more.\nname: x", FOLDED),
        ("description: >\nname: x", "Title"),
        ("description:\nname: x", "Title"),
        ('description: "it\nname: x', "it"),
    ],
)
def test_a_description_may_have_lines(written: str, told: str) -> None:
    # abi.md 11.43
    assert texts._parted(f"---\nname: a\n{written}\n---\n# Title\n")[0] == told


def test_a_skill_of_a_name_is_found() -> None:
    known = PluginTexts()
    assert (known.lines(), known.skill("notes/a")) == (b"", None)
    known.apply([texts.PluginText(texts.SKILL, "notes/a", "A", "/p", "/p")])
    assert known.skill("notes/a") is not None
    assert known.lines().endswith(b"\n")
