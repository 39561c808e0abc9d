"""The skills and prompts of plugins: texts for models, by the names under which they are given.

    notes/review     the skill skills/review.md of the plugin notes, or skills/review/SKILL.md and all beside
                     it; or its prompt prompts/review.md

Main path: `judged` looks at a plugin that is tried, and `of_plugin` at a copy of one. `PluginTexts` has those
of all plugins that are enabled, and the text of `.texts` in the root of the mount, a JSON object a line.

Rules: nothing of a text runs, and none allows anything. A skill is read by the agent that has it, from its
file; here only its head is looked at. A prompt is told whole, as its reader may not know whose paths these
are. What is too long, or no text, is left out.
This file must never know which agent has which skill.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.safe_text import one_line
from cortexfs.state import believed

SKILL, PROMPT = "skill", "prompt"
FOLDERS = {SKILL: "skills", PROMPT: "prompts"}
PAGE = "SKILL.md"  # of a skill that is a folder
ENDS = (".md", ".txt")
MAX_FILE = 256 << 10
MAX_TOLD = 1 << 20  # of all prompts of one plugin
MAX_TEXTS = 1000  # of one plugin
MAX_ABOUT = 300  # characters of a description
_HEAD = re.compile(r"---\n(.*?)\n---(?:\n|\Z)(.*)", re.DOTALL)
# With the lines that go on with it, which are indented.
_ABOUT = re.compile(r"^description:[ \t]*(.*(?:\n[ \t]+.*|\n(?=[ \t]*\n))*)", re.MULTILINE)
_BLOCK = re.compile(r"[|>][-+1-9]{0,2}[ \t]*(?:#.*)?(?:\n|\Z)")
_ESCAPED = re.compile(r"\\(?:\n[ \t]*|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t"}


class PluginText(msgspec.Struct, frozen=True, omit_defaults=True):
    kind: str  # SKILL or PROMPT
    name: str  # plugin/name
    description: str
    path: str = ""  # of a skill: its page
    place: str = ""  # and its file or folder
    text: str = ""  # of a prompt


class PluginTexts:
    def __init__(self) -> None:
        self._skills: dict[str, PluginText] = {}
        self._told = b""

    def apply(self, found: Iterable[PluginText]) -> None:
        """Have these from now on."""
        known = list(found)
        self._skills = {one.name: one for one in known if one.kind == SKILL}
        self._told = b"".join(msgspec.json.encode(one) + b"\n" for one in known)

    def told(self) -> bytes:
        return self._told

    def skill(self, name: str) -> PluginText | None:
        return self._skills.get(name)


def of_plugin(plugin: str, place: Path) -> tuple[PluginText, ...]:
    """Those of a plugin whose files lie at `place`."""
    found = [*_skills(plugin, place / FOLDERS[SKILL]), *_prompts(plugin, place / FOLDERS[PROMPT])]
    return tuple(found[:MAX_TEXTS])


def judged(files: Mapping[str, bytes], kind: str) -> tuple[list[str], list[str]]:
    """Returns the names of a kind that files of a plugin have, and a sentence for each that is left out."""
    folder = FOLDERS[kind]
    paths = [path.split("/") for path in files if path.startswith(f"{folder}/")]
    found, wrong = [], []
    for leaf in sorted({parts[1] for parts in paths}):
        is_folder = [folder, leaf] not in paths
        stem, end = os.path.splitext(leaf)
        if (kind == PROMPT and is_folder) or not (is_folder or end in ENDS):
            continue  # it lies beside them
        page = f"{folder}/{leaf}/{PAGE}" if is_folder else f"{folder}/{leaf}"
        name = stem if end in ENDS else leaf
        if why := names.fault_of(name) or _fault(files.get(page)):
            wrong.append(f"{folder}/{leaf} is no {kind}: {why}")
        else:
            found.append(name)
    return found, wrong


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


def _skills(plugin: str, folder: Path) -> Iterator[PluginText]:
    for name, path in _named(folder):
        page = path / PAGE if path.is_dir() else path
        if (text := _text(page)) is not None:
            yield PluginText(SKILL, f"{plugin}/{name}", _parted(text)[0], str(page), str(path))


def _prompts(plugin: str, folder: Path) -> Iterator[PluginText]:
    room = MAX_TOLD
    for name, path in _named(folder):
        if path.is_file() and (text := _text(path)) is not None and (room := room - len(text)) >= 0:
            about, rest = _parted(text)
            yield PluginText(PROMPT, f"{plugin}/{name}", about, text=rest)


def _named(folder: Path) -> Iterator[tuple[str, Path]]:
    for leaf in sorted(os.listdir(folder)) if folder.is_dir() else ():
        stem, end = os.path.splitext(leaf)
        name = stem if end in ENDS else leaf
        if (end in ENDS or (folder / leaf).is_dir()) and names.fault_of(name) is None:
            yield name, folder / leaf


def _text(path: Path) -> str | None:
    try:
        data = believed.whole(path, MAX_FILE, "text")
        return data.decode() if data else None
    except (Fault, UnicodeDecodeError):
        return None


def _parted(text: str) -> tuple[str, str]:
    """The description that a text's head gives, or else its first line, and the text without its head."""
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
