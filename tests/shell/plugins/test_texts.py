"""The skills and prompts of a plugin's folder, and what is none."""

from __future__ import annotations

import os
from pathlib import Path

from cortexfs.plugins import texts
from cortexfs.plugins.texts import PluginTexts, of_plugin
from tests.mounted.plugins import written


def test_what_is_too_long_or_no_text_is_left_out(tmp_path: Path) -> None:
    # abi.md 11.40, 11.41
    written(
        tmp_path,
        {
            "skills/a.md": "# A\n",
            "skills/long.md": "x" * (texts.MAX_FILE + 1),
            "skills/empty.md": "",
            "skills/no page/notes.md": "x",
            "skills/b c.md": "x",
            "skills/folder/README.md": "no SKILL.md here",
            "prompts/p.txt": "---\nname: p\n---\nBody\n",
            **{f"prompts/q{n}.md": "y" * texts.MAX_FILE for n in range(5)},
        },
    )
    (tmp_path / "prompts/bytes.md").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "prompts/pipe.md")
    found = of_plugin("notes", tmp_path)
    assert [one.name for one in found if one.kind == texts.SKILL] == ["notes/a"]
    prompts = [one for one in found if one.kind == texts.PROMPT]
    assert [one.name for one in prompts] == [f"notes/{name}" for name in ("p", "q0", "q1", "q2")]
    assert (prompts[0].description, prompts[0].text) == ("Body", "Body\n")
    assert of_plugin("none", tmp_path / "none") == ()


def test_a_head_speaks_in_one_line() -> None:
    # a description is a stranger's word
    head = texts._parted("---\ndescription: a\x1b[31m b\r c\n---\nrest")
    assert (head[1], [mark for mark in ("\x1b", "\r", "\n") if mark in head[0]]) == ("rest", [])


def test_a_skill_of_a_name_is_found() -> None:
    known = PluginTexts()
    assert (known.told(), known.skill("notes/a")) == (b"", None)
    known.apply([texts.PluginText(texts.SKILL, "notes/a", "A", "/p", "/p")])
    assert known.skill("notes/a") is not None
    assert known.told().endswith(b"\n")
