"""The session of a question: a new one, a named one, or the last one.

Rules: a file of the user's state names the session of the last question, for `ctx ask -c` alone. It is
written once a question was accepted, and may disappear at any time. Tools are offered by an agent of the
user's home (tools.py), which has the session's name. The name and the tools suffice to go on.
This file must never know the question.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from cortexfs.chat import sessions
from cortexfs.core.errors import Fault
from cortexfs.core.names import check_session
from cortexfs.state import believed, directories, whole_files

FILE = "ask.json"
START = "ask-"
MAX_FILE = 1 << 20


class LastQuestion(msgspec.Struct, frozen=True):
    """The session that `-c` goes on with. If it has tools, `object` is the model that used them."""

    root: str
    object: str
    session: str
    tools: tuple[str, ...] = ()
    system: str = ""


def new_session() -> str:
    return f"{START}{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"


def chosen(name: str | None) -> str:
    return new_session() if name is None else check_session(name)


def last(root: str) -> LastQuestion:
    """Returns this user's last question on this mount. Raises ENOENT if it or its session is gone."""
    data = believed.whole(_path(), MAX_FILE, "question")
    with contextlib.suppress(msgspec.MsgspecError):
        found = msgspec.json.decode(data or b"", type=LastQuestion)
        holder = agent_of(found.session) if found.tools else found.object
        if found.root == root and sessions.place(root, holder, "private", found.session).exists():
            return found
    raise Fault(
        "ENOENT", "there is no question to go on with here; ask without -c, or name one: --session NAME"
    )


def remember(question: LastQuestion) -> None:
    """Keep the question for `-c`. If it cannot be written, `-c` finds nothing."""
    with contextlib.suppress(OSError, Fault):
        path = _path()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        whole_files.replace(path, [msgspec.json.encode(question)], 0o600, durable=False)


def agent_of(session: str) -> str:
    """Returns the agent of the user's home that offers tools in a session."""
    name = session if session.startswith(START) else START + session
    return f"agent/{name[:64]}"


def _path() -> Path:
    return directories.places(os.environ, os.getuid()).state / FILE
