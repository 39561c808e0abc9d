"""The drivers there are, and which of them answers for a model.

A model's `.d/driver` is one word, or lines `exec=`, `socket=`, `agent=` and `default=`, each a comma list
by priority. The first name that is in DRIVERS answers.

Rules: what a driver may do wrong ends here, as a Fault; a cancellation goes through.
This file must never know sockets, sessions or runners.
"""

from __future__ import annotations

import logging

from cortexfs.core.errors import Fault
from cortexfs.models import debug
from cortexfs.models.driver import Driver, Turn

DRIVERS: dict[str, Driver] = {
    "debug.echo": debug.echo,
    "debug.script": debug.script,
}

log = logging.getLogger("cortexfs")


def named(control: str, use: str) -> list[str]:
    """The names that the text of `.d/driver` has for a use (exec, socket, agent), by priority."""
    rows = [line.partition("=") for line in control.split("\n") if line]
    by_use = {key: value for key, equals, value in rows if equals}
    plain = [key for key, equals, _ in rows if not equals]
    listed = [*by_use.get(use, "").split(","), *by_use.get("default", "").split(","), *plain]
    return [name for name in dict.fromkeys(listed) if name]


def chosen(model: str, control: str, use: str) -> Driver:
    """The driver that answers for a model; EHOSTDOWN when it has none of those that there are."""
    names = named(control, use)
    for name in names:
        if name in DRIVERS:
            return DRIVERS[name]
    lacking = f"there is no driver {' or '.join(names)}" if names else f"it names no driver for {use}"
    mend = f"write one of {', '.join(DRIVERS)} into its .d/driver, or remove that file"
    raise Fault("EHOSTDOWN", f"{model} cannot answer: {lacking}; {mend}")


async def answered(driver: Driver, turn: Turn) -> Fault | None:
    """Let the driver answer; what went wrong, if anything. The guard of this edge: a driver's bug ends its
    own run and nobody else's."""
    try:
        await driver(turn)
    except Fault as fault:
        return fault
    except Exception:
        log.exception("a driver has a bug")
        return Fault("EPROTO", "the model's driver has failed; the daemon's log says more")
    return None
