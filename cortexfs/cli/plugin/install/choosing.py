"""The decision about a plugin, and the running daemon's answer to it.

Rules: --replace lets a plugin take the names that it takes at that time, and no others: the names that the
daemon reports are kept as the decision. Without a daemon, the consent is to the present files, and to any
names that they take.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from cortexfs import config
from cortexfs.cli import mounts, reload
from cortexfs.core.errors import Fault
from cortexfs.state import directories

_CONSENT = "--replace"  # in the daemon's text about a plugin that needs consent
_MEND = "; to take that name"


class Outcome(NamedTuple):
    said: str  # the daemon's sentence, for a person
    refused: str = ""  # the plugin, and why
    taken: tuple[str, ...] | None = None  # names of others that it took; None: no daemon has answered

    @property
    def is_taken(self) -> bool:
        """Returns True if the plugin is refused because it has the name of another object."""
        return _CONSENT in self.refused

    @property
    def why(self) -> str:
        """Returns the reason of such a refusal, without the advice for a plugin that stays installed."""
        return self.refused.partition(_MEND)[0]


def choose(where: directories.Places, given: str | None, name: str, choice: config.Choice | None) -> Outcome:
    """Write the choice down and tell the daemon. Consent becomes the names that the daemon reports."""
    config.choose(where.config, name, choice)
    heard: list[dict[str, list[str]]] = []

    def outcome(facts: dict[str, list[str]]) -> str | None:
        heard.append(facts)
        if refused := mounts.broken(facts, "plugin").get(name):
            return f"it does not load: {refused}"
        wrong = mounts.wrong(facts).get(name)
        return f"some of its tools cannot be called: {wrong}" if wrong else None

    said = reload.told(given, outcome)
    if not heard:
        return Outcome(said)
    refused = mounts.broken(heard[0], "plugin").get(name, "")
    taken = tuple(mounts.taken(heard[0]).get(name, "").split())
    if choice == config.REPLACE and not refused:
        config.choose(where.config, name, taken or True)
        said += f"; it takes names of others: {', '.join(taken)}" if taken else ""
    return Outcome(said, refused, taken)


def leave_disabled(where: directories.Places, given: str | None, name: str, outcome: Outcome) -> NoReturn:
    """Disable a new plugin that needs names of others without consent: the daemon is to forget it."""
    config.choose(where.config, name, False)
    reload.told(given)
    raise Fault("EEXIST", f"{name} is not enabled: {outcome.refused}")


def kept(where: directories.Places, given: str | None, name: str, *, is_same: bool) -> config.Choice:
    """Returns the choice for the next copy of a plugin: enabled, with the names that it has taken so far. If
    the files are the same, a consent to all names stays."""
    before = config.choices(where.config).get(name) or True
    if before != config.REPLACE or is_same:
        return before
    try:
        taken = mounts.taken(mounts.facts(mounts.status_text(mounts.answering(given)))).get(name, "")
    except Fault:
        return True
    return tuple(taken.split()) or True
