"""The level of harm that a call of a tool may do, from the tool's effects and the administrator's settings.

    allow < review < require_confirmation < block

The administrator's settings are in policy.toml:

    mode = "balanced"
    deny = ["deploy.*"]

    [tools."git.push"]
    require_confirmation = true

Rules: the level is the highest that any source gives; nothing lowers a floor. An unknown kind,
reversibility or confirmation of an effect requires confirmation. Of a call's input only the paths matter.
They are compared by whole components and words, as "session" somewhere in a text does no harm. Every key of
policy.toml has a default, and an unknown key is refused.
This file must never know who calls, or the decision that follows from a level (core/policy/confirming.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from cortexfs.core import tomltext
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Effect

FILE = "policy.toml"

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Mode: TypeAlias = Literal["strict", "balanced", "open"]
LevelWord: TypeAlias = Literal["allow", "review", "require_confirmation", "block"]


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one tool."""

    tool_risk: Share | None = None
    file_sensitivity: Share | None = None
    blast_radius: Share | None = None
    irreversibility: Share | None = None
    require_confirmation: bool = False
    block: bool = False
    allow_background: bool = False


class RiskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Mode = "balanced"
    auto_approve_up_to: LevelWord | None = None  # instead of a mode
    allow: tuple[str, ...] = ()  # patterns of names; empty: all
    deny: tuple[str, ...] = ()
    tools: dict[str, Profile] = {}

    @property
    def names_tools(self) -> bool:
        """Returns True if the settings depend on names of tools, and not on effects alone."""
        return bool(self.allow or self.deny or self.tools)


DEFAULT = RiskSettings()


class Level(IntEnum):
    ALLOW = 0
    REVIEW = 1
    REQUIRE_CONFIRMATION = 2
    BLOCK = 3

    @property
    def word(self) -> str:
        return self.name.lower()


ALLOW, REVIEW, REQUIRE_CONFIRMATION, BLOCK = Level
LEVELS = {level.word: level for level in Level}
# The highest level that each mode approves by itself.
MODES = {"strict": ALLOW, "balanced": REVIEW, "open": REQUIRE_CONFIRMATION}

# By the kind of an effect: its floor, which is the lowest level for it, and a phrase for a tool with it.
KINDS = {
    "read_file": (ALLOW, "reads files"),
    "introspect_runtime": (ALLOW, "inspects this program"),
    "network_request": (REVIEW, "uses the network"),
    "persist_memory": (REVIEW, "keeps what it learns"),
    "generate_media": (REVIEW, "makes media"),
    "write_file": (REQUIRE_CONFIRMATION, "changes files"),
    "run_process": (REQUIRE_CONFIRMATION, "runs a program"),
    "send_message": (REQUIRE_CONFIRMATION, "sends messages"),
    "publish_content": (REQUIRE_CONFIRMATION, "publishes"),
    "schedule_task": (REQUIRE_CONFIRMATION, "schedules work"),
    "delegate_work": (REQUIRE_CONFIRMATION, "gives work to an agent"),
    "read_secret": (BLOCK, "reads secrets"),
    "delete_file": (BLOCK, "deletes files"),
    "spend_money": (BLOCK, "spends money"),
    "deploy": (BLOCK, "deploys"),
    "modify_credential": (BLOCK, "changes credentials"),
}
FLOORS = {kind: level for kind, (level, _) in KINDS.items()}
HARMLESS_WORDS = {
    "reversibility": ("reversible", "partially_reversible"),
    "confirmation": ("never", "on_risk"),
}


class Axes(NamedTuple):
    """The numbers, each from 0 to 1, from which a level is estimated beside the floors of effects."""

    tool_risk: float
    file_sensitivity: float
    blast_radius: float
    irreversibility: float


WEIGHTS = Axes(0.3, 0.2, 0.3, 0.2)
BUILTIN = Axes(0.1, 0.1, 0.1, 0.1)
UNKNOWN = Axes(0.9, 0.1, 0.6, 0.5)  # a plugin's tool: nothing vouches for the effects that it declares
SENSITIVE = 0.9
DEPTH_FACTOR = 1.3  # for each level of nesting, as nested runs are less likely to be watched
THRESHOLDS = ((0.2, ALLOW), (0.5, REVIEW), (0.8, REQUIRE_CONFIRMATION))

_SENSITIVE = re.compile(
    r"\.env(?:rc)?(?![a-z0-9])|(?<![a-z0-9])"
    r"(?:credentials?|secrets?|passwords?|tokens?|private_key|id_rsa)(?![a-z0-9])",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"[\s'\"=;|&<>()]+")
# Longer than any command line. Longer strings are text and not searched, nor are those over MAX_STRINGS.
MAX_LINE = 4096
MAX_STRINGS = 1000


class RatedTool(NamedTuple):
    """The facts about a tool."""

    name: str
    effects: tuple[Effect, ...] = ()
    builtin: bool = False
    background_safe: bool = False
    dry_run_flag: bool = False  # it has opted in to dry runs
    trusted: bool = False  # its publisher is trusted


class Circumstances(NamedTuple):
    """The facts about one call."""

    words: tuple[str, ...] = ()  # words_of its input
    depth: int = 0  # the number of runs in which it is nested
    background: bool = False
    protected: tuple[str, ...] = ()  # absolute paths that belong to the daemon


class RiskSource(NamedTuple):
    """A level, and a phrase for its cause."""

    level: Level
    why: str
    does: str = ""  # the cause, in words for a person who is asked: "changes files"


CALM = Circumstances()


def assess(tool: RatedTool, settings: RiskSettings = DEFAULT, call: Circumstances = CALM) -> RiskSource:
    """Returns the first source that gives the highest level."""
    return max(_sources(tool, settings, call), key=lambda source: source.level)


def causes(tool: RatedTool, settings: RiskSettings, call: Circumstances) -> str:
    """Returns all causes of the highest level, for a person: "changes files and runs a program"."""
    found = [*_sources(tool, settings, call)]
    level = max(source.level for source in found)
    phrases = dict.fromkeys(each.does for each in found if each.level == level and each.does)
    return " and ".join(phrases) or f"is a call of {tool.name}"


def _sources(tool: RatedTool, settings: RiskSettings, call: Circumstances) -> Iterator[RiskSource]:
    return (source for look in SOURCES for source in look(tool, settings, call))


def floor(effect: Effect) -> RiskSource:
    """Returns the lowest level for this effect, with its cause."""
    unknown = (REQUIRE_CONFIRMATION, f"has the unknown effect {effect.kind}")
    level, phrase = KINDS.get(effect.kind, unknown)
    target = f" on {effect.target}" if effect.target else ""
    why = f"it {phrase} ({effect.kind}{target} is {level.word})"
    if effect.kind not in KINDS:
        why = f"the effect {effect.kind} is unknown"
    phrase += f" ({effect.target})" if effect.target not in ("", "*") else ""
    for field, harmless in HARMLESS_WORDS.items():
        word = getattr(effect, field)
        if word not in harmless and level < REQUIRE_CONFIRMATION:
            why = f"{effect.kind}{target} is declared with {field} {word}"
            return RiskSource(REQUIRE_CONFIRMATION, why, f"{phrase}, with {field} {word}")
    return RiskSource(level, why, phrase)


def score(axes: Axes, depth: int = 0) -> float:
    """Returns one number for four: their weighted average, times the highest of them."""
    factor = DEPTH_FACTOR**depth
    risk, sensitivity, radius, irreversible = axes
    shares = (
        min(risk * factor, 1.0),
        sensitivity,
        min(radius * factor, 1.0),
        min(irreversible * factor, 1.0),
    )
    return max(shares) * sum(weight * share for weight, share in zip(WEIGHTS, shares, strict=True))


def level_of(number: float) -> Level:
    return next((level for below, level in THRESHOLDS if number < below), BLOCK)


def axes_of(tool: RatedTool, profile: Profile | None, words: Sequence[str] = ()) -> Axes:
    axes = BUILTIN if tool.builtin else UNKNOWN
    if profile:
        values = {name: getattr(profile, name) for name in Axes._fields}
        axes = axes._replace(**{name: value for name, value in values.items() if value is not None})
    if any(map(is_sensitive, words)):
        axes = axes._replace(file_sensitivity=max(SENSITIVE, axes.file_sensitivity))
    return axes


def is_sensitive(word: str) -> bool:
    """Returns True if a path looks like a secret's, as .env and auth.token do, and tokenizer.py does not."""
    return _SENSITIVE.search(word) is not None


def is_inside(word: str, roots: Sequence[str]) -> bool:
    """Returns True if an absolute path is one of `roots`, or inside of one."""
    if not word.startswith("/"):
        return False
    path = components(word)
    return any(path[: len(root)] == root for root in map(components, roots))


def components(path: str) -> tuple[str, ...]:
    """Returns the names in an absolute path. `..` removes the name before it, as links are not followed."""
    names: list[str] = []
    for name in path.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return tuple(names)


def words_of(value: Any) -> tuple[str, ...]:
    """Returns the words of an input that may be paths: those of its strings of one line."""
    lines = [line for line, _ in zip(_strings(value), range(MAX_STRINGS), strict=False)]
    return tuple(word for line in lines for word in _BETWEEN.split(line) if word)


def _strings(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str) and len(item) <= MAX_LINE and "\n" not in item:
            yield item
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def effects_of(text: str) -> tuple[Effect, ...]:
    """Returns the effects in the text of a `.d/effects`. Raises EINVAL for a line that is no effect."""
    return tuple(_effect(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line)


def _effect(number: int, words: list[str]) -> Effect:
    if len(words) != 5:
        raise Fault(
            "EINVAL", f"line {number}: an effect needs kind, target, reversibility, confirmation, dry_run"
        )
    kind, target, reversibility, confirmation, dry_run = words
    return Effect(kind, reversibility, confirmation, dry_run, "" if target == "-" else unquote(target))


# The administrator's settings.


def decode(text: str) -> RiskSettings:
    """Returns the settings of policy.toml. Raises EINVAL with the key that is wrong."""
    table = tomltext.table(text.encode(), FILE)
    tools = table.pop("tools", {})
    if not isinstance(tools, dict):
        raise Fault("EINVAL", f"{FILE}: tools must hold tables, such as [tools.NAME]")
    profiles = {
        name: tomltext.converted(profile, Profile, FILE, f"tools.{name}") for name, profile in tools.items()
    }
    settings = msgspec.structs.replace(tomltext.converted(table, RiskSettings, FILE), tools=profiles)
    for pattern in (*settings.allow, *settings.deny):
        if not pattern or pattern.count("*") > 1:
            raise Fault("EINVAL", f"{FILE}: {pattern!r} is not a pattern; write a name with at most one *")
    return settings


def matches(pattern: str, name: str) -> bool:
    """Returns True if `name` matches the pattern, in which one `*` may stand for any text."""
    before, star, after = pattern.partition("*")
    if not star:
        return name == pattern
    return len(name) >= len(before) + len(after) and name.startswith(before) and name.endswith(after)


# The sources of levels.


def _base(tool: RatedTool, settings: RiskSettings, call: Circumstances) -> Iterator[RiskSource]:
    profile = settings.tools.get(tool.name)
    number = score(axes_of(tool, profile, call.words), call.depth)
    origin = "built in" if tool.builtin else "a plugin's"
    word = next(filter(is_sensitive, call.words), "")
    mention = f", called with {word}" if word else ""
    nested = f", {call.depth} runs deep" if call.depth else ""
    why = f"{tool.name} is {origin}{mention}{nested}, which scores {number:.3f}"
    phrase = f"names {word}, which may be secret" if word else "" if tool.builtin else "is a plugin's"
    yield RiskSource(level_of(number), why, phrase)


def _floors(tool: RatedTool, settings: RiskSettings, call: Circumstances) -> Iterator[RiskSource]:
    yield from map(floor, tool.effects)


def _lists(tool: RatedTool, settings: RiskSettings, call: Circumstances) -> Iterator[RiskSource]:
    if pattern := next((each for each in settings.deny if matches(each, tool.name)), None):
        yield RiskSource(BLOCK, f"policy.toml denies {pattern}")
    if settings.allow and not any(matches(each, tool.name) for each in settings.allow):
        yield RiskSource(
            BLOCK, f"policy.toml allows {', '.join(settings.allow)}, and {tool.name} is not among them"
        )


def _profile(tool: RatedTool, settings: RiskSettings, call: Circumstances) -> Iterator[RiskSource]:
    profile = settings.tools.get(tool.name, Profile())
    if profile.block:
        yield RiskSource(BLOCK, f"policy.toml blocks {tool.name}")
    if profile.require_confirmation:
        why = f"policy.toml requires confirmation of {tool.name}"
        yield RiskSource(REQUIRE_CONFIRMATION, why, "must be confirmed, as policy.toml requires")


def _background(tool: RatedTool, settings: RiskSettings, call: Circumstances) -> Iterator[RiskSource]:
    allowed = tool.background_safe or settings.tools.get(tool.name, Profile()).allow_background
    if call.background and not allowed:
        yield RiskSource(BLOCK, f"{tool.name} is neither background_safe nor allowed in the background")


def _protected(tool: RatedTool, settings: RiskSettings, call: Circumstances) -> Iterator[RiskSource]:
    if word := next((word for word in call.words if is_inside(word, call.protected)), None):
        yield RiskSource(BLOCK, f"{word} belongs to the daemon")


SOURCES: tuple[Callable[[RatedTool, RiskSettings, Circumstances], Iterator[RiskSource]], ...] = (
    _floors,  # first, as it gives the best cause where several sources give the same level
    _lists,
    _profile,
    _background,
    _protected,
    _base,
)
