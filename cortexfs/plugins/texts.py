"""The skills and prompts of plugins: texts for models, by their names.

    notes/review     the skill skills/review.md of the plugin notes, or skills/review/SKILL.md with all files
                     beside it; or the plugin's prompt prompts/review.md

Main path: `judged` checks the files of a plugin that is tried, and `of_plugin` makes the texts of an enabled
one. `PluginTexts` has the texts of all enabled plugins, and the content of `.texts` in the root of the
mount, a JSON object a line.

Rules: no part of a text is run, and no text gives a permission. An agent reads its skill from the file; here
only the head is read. A prompt is sent whole, as its reader may not be able to open our paths. A file that is
too long, or no text, is left out.
This file must never know the skills of an agent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from cortexfs.core import names
from cortexfs.core.safe_text import one_line

SKILL, PROMPT = "skill", "prompt"
FOLDERS = {SKILL: "skills", PROMPT: "prompts"}
PAGE = "SKILL.md"  # the main file of a skill that is a folder
ENDS = (".md", ".txt")
MAX_FILE = 256 << 10
MAX_TOLD = 1 << 20  # characters of all prompts of one plugin
MAX_TEXTS = 1000  # of one plugin
MAX_ABOUT = 300  # characters of a description
_HEAD = re.compile(r"---\n(.*?)\n---(?:\n|\Z)(.*)", re.DOTALL)
# A description goes on in lines that are indented.
_ABOUT = re.compile(r"^description:[ \t]*(.*(?:\n[ \t]+.*|\n(?=[ \t]*\n))*)", re.MULTILINE)
_BLOCK = re.compile(r"[|>][-+1-9]{0,2}[ \t]*(?:#.*)?(?:\n|\Z)")
_ESCAPED = re.compile(r"\\(?:\n[ \t]*|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t"}


class PluginText(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: str  # SKILL or PROMPT
    name: str  # plugin/name
    description: str
    path: str = ""  # the page of a skill
    place: str = ""  # the file or folder of a skill
    text: str = ""  # the text of a prompt


class PluginTexts:
    def __init__(self) -> None:
        self._skills: dict[str, PluginText] = {}
        self._lines = b""

    def apply(self, found: Iterable[PluginText]) -> None:
        """Serve these texts from now on."""
        known = list(found)
        self._skills = {text.name: text for text in known if text.kind == SKILL}
        self._lines = b"".join(msgspec.json.encode(text) + b"\n" for text in known)

    def lines(self) -> bytes:
        return self._lines

    def skill(self, name: str) -> PluginText | None:
        return self._skills.get(name)


class _Found(NamedTuple):
    name: str
    path: str  # of its file or folder
    page: str  # the path of its text
    fault: str  # the reason why it is left out


def of_plugin(plugin: str, files: Mapping[str, bytes], place: Path) -> tuple[PluginText, ...]:
    """Returns the texts of a plugin with these files, of which a copy lies at `place`."""
    texts: list[PluginText] = []
    room = MAX_TOLD
    for kind in FOLDERS:
        for entry in _found(files, kind):
            if entry.fault:
                continue
            name, text = f"{plugin}/{entry.name}", files[entry.page].decode()
            about, rest = _parted(text)
            if kind == SKILL:
                texts.append(PluginText(kind, name, about, str(place / entry.page), str(place / entry.path)))
            elif (room := room - len(text)) >= 0:
                texts.append(PluginText(kind, name, about, text=rest))
    return tuple(texts[:MAX_TEXTS])


def judged(files: Mapping[str, bytes], kind: str) -> tuple[list[str], list[str]]:
    """Returns the names of a plugin's texts of a kind, and a sentence for each file that is left out."""
    every = list(_found(files, kind))
    wrong = [f"{entry.path} is no {kind}: {entry.fault}" for entry in every if entry.fault]
    return [entry.name for entry in every if not entry.fault], wrong


def _found(files: Mapping[str, bytes], kind: str) -> Iterator[_Found]:
    folder = FOLDERS[kind]
    paths = [path.split("/") for path in files if path.startswith(f"{folder}/")]
    for leaf in sorted({parts[1] for parts in paths}):
        is_folder = [folder, leaf] not in paths
        stem, end = os.path.splitext(leaf)
        if (kind == PROMPT and is_folder) or not (is_folder or end in ENDS):
            continue  # another file beside the texts
        page = f"{folder}/{leaf}/{PAGE}" if is_folder else f"{folder}/{leaf}"
        name = stem if end in ENDS else leaf
        fault = names.fault_of(name) or _fault(files.get(page))
        yield _Found(name, f"{folder}/{leaf}", page, fault)


def _fault(page: bytes | None) -> str:
    if page is None:
        return f"it has no {PAGE}"
    if not page:
        return "its text is empty"
    if len(page) > MAX_FILE:
        return f"its text is over {MAX_FILE >> 10} KiB"
    try:
        page.decode()
    except UnicodeDecodeError:
        return "its text is not UTF-8"
    return ""


def _parted(text: str) -> tuple[str, str]:
    """Returns the description in a text's head, or else its first line, and the text without its head."""
    head = _HEAD.fullmatch(text)
    rest = head[2] if head else text
    about = _ABOUT.search(head[1]) if head else None
    first = next((line.strip("# \t") for line in rest.splitlines() if line.strip("# \t")), "")
    return one_line((_scalar(about[1]) if about else "") or first)[:MAX_ABOUT], rest


def _scalar(value: str) -> str:
    """Returns the words of a text in YAML: plain, quoted or a block, of one line or of several."""
    if block := _BLOCK.match(value):
        return value[block.end() :].strip()
    value = value.strip()
    quote = value[:1]
    if quote not in ("'", '"') or len(value) < 2 or not value.endswith(quote):
        return value.strip("\"' ")
    if quote == "'":
        return value[1:-1].replace("''", "'")
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]) if found[1] else "", value[1:-1])
