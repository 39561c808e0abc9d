"""The decision about a plugin, and the running daemon's answer to it.

Rules: whoever says --replace lets a plugin take the names that it takes then, and no others: those that the
daemon tells are kept as the decision. Without a daemon, the consent is to the files that lie there, whatever
names they take.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from cortexfs import config
from cortexfs.cli import mounts, reload
from cortexfs.core.errors import Fault
from cortexfs.state import directories

_CONSENT = "--replace"  # in what the daemon says of a plugin that needs it
_MEND = "; to take that name"


class Outcome(NamedTuple):
    said: str  # of the daemon, for a person
    refused: str = ""  # the plugin, and why
    taken: tuple[str, ...] | None = None  # names of others; None: no daemon has told

    @property
    def is_taken(self) -> bool:
        """It is refused as it has the name of another's."""
        return _CONSENT in self.refused

    @property
    def why(self) -> str:
        """Of such a refusal, without the command that is for a plugin that stays installed."""
        return self.refused.partition(_MEND)[0]


def choose(where: directories.Places, given: str | None, name: str, choice: config.Choice | None) -> Outcome:
    """Write the choice down and tell the daemon. Consent becomes the names that the daemon tells."""
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
    """A new plugin has names of others, and nobody said that it may: the daemon is to forget it."""
    config.choose(where.config, name, False)
    reload.told(given)
    raise Fault("EEXIST", f"{name} is not enabled: {outcome.refused}")


def kept(where: directories.Places, given: str | None, name: str, *, is_same: bool) -> config.Choice:
    """The choice for the next copy of a plugin, whose files are the same or not: enabled, with the names that
    it has taken so far."""
    before = config.choices(where.config).get(name) or True
    if before != config.REPLACE or is_same:
        return before
    try:
        taken = mounts.taken(mounts.facts(mounts.status_text(mounts.answering(given)))).get(name, "")
    except Fault:
        return True
    return tuple(taken.split()) or True
