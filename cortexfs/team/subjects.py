"""The subjects of a team, and those that a machine may publish and subscribe to, which the server enforces.

    ctx.call.TO.FROM.CLASS.NAME     a call
    ctx.run.TO.FROM.RUN             a piece of one, either way
    ctx.dir.MACHINE.CLASS.NAME      what a machine exports; the stream DIRECTORY keeps the last of each
    ctx.live.MACHINE                it is there, and so busy
    ctx.log.MACHINE.USER.CLASS.OBJECT.SESSION    a piece of a session; the stream LOGS keeps all
    ctx.said.MACHINE                there is more in that stream
    ctx.join.TOKEN, ctx.joined.TOKEN    a machine that joins, and its answer

Rules: as FROM and MACHINE, a machine may publish only its own name. Only the machine TO may subscribe to its
TO. A machine may not make streams or consumers: these can send their contents to any subject.
"""

from __future__ import annotations

from cortexfs.team.nats_wire import token

DIRECTORY = "CTX_DIRECTORY"
DIRECT = f"$JS.API.DIRECT.GET.{DIRECTORY}"
PURGE = f"$JS.API.STREAM.PURGE.{DIRECTORY}"
LOGS = "SESSIONS"
LOG_GET = f"$JS.API.DIRECT.GET.{LOGS}"
LOG_INFO = f"$JS.API.STREAM.INFO.{LOGS}"
SAID = "ctx.said.*"
ENTRIES = "ctx.dir.>"
LIVES = "ctx.live.*"
JOINS = "ctx.join.*"


def call(to: str, from_: str, class_: str, name: str) -> str:
    return f"ctx.call.{to}.{from_}.{class_}.{token(name)}"


def calls(to: str) -> str:
    return f"ctx.call.{to}.*.*.*"  # no more tokens: the server can be made to publish on any subject


def runs(to: str) -> str:
    return f"ctx.run.{to}.*.*"


def run(to: str, from_: str, run_: str) -> str:
    return f"ctx.run.{to}.{from_}.{run_}"


def entry(machine: str, class_: str, name: str) -> str:
    return f"ctx.dir.{machine}.{class_}.{token(name)}"


def live(machine: str) -> str:
    return f"ctx.live.{machine}"


def said(machine: str) -> str:
    return f"ctx.said.{machine}"


def inbox(machine: str) -> str:
    return f"_INBOX.{machine}"


def join(token_: str) -> str:
    return f"ctx.join.{token_}"


def joined(token_: str) -> str:
    return f"ctx.joined.{token_}"


def said_by(machine: str) -> list[str]:
    return [
        f"ctx.call.*.{machine}.*.*",
        f"ctx.run.*.{machine}.*",
        f"ctx.dir.{machine}.*.*",
        live(machine),
        DIRECT,
        f"ctx.log.{machine}.*.*.*.*",
        said(machine),
        LOG_GET,
        LOG_INFO,
    ]


def heard_by(machine: str) -> list[str]:
    return [calls(machine), runs(machine), ENTRIES, LIVES, SAID, f"{inbox(machine)}.>"]


# Additional subjects of the machine that began the team, which has all keys in any case.
SAID_BY_FIRST = ["$JS.API.STREAM.CREATE.*", "$JS.API.STREAM.UPDATE.*", "ctx.joined.*", PURGE]
HEARD_BY_FIRST = [JOINS]
