"""The grammar of names (abi.md 2), and nothing else.

A name is checked where it enters: plugin load, symlink, mkdir, configuration, session. All names in
the tree have been checked here, so no other code checks them again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from cortexfs.core.errors import Fault

MAX_COMPONENT = 64
_COMPONENT = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._+-]{0,63}", re.ASCII)
_OUTSIDE = re.compile(r"[^a-zA-Z0-9._-]", re.ASCII)  # of a foreign id, as + is for other machines
RESERVED_SUFFIXES = (".sock", ".d")
CLASSES = ("model", "agent", "tool")
REMOTE = "machine:"  # the origin of an object of another machine begins so
INDEX = "index"  # the directory beside the sessions; no session can have its name


def fault_of(name: str) -> str | None:
    """Returns the rule that `name` breaks, as a phrase that completes "the name ...", or None."""
    if not name:
        return "is empty"
    if len(name) > MAX_COMPONENT:
        return f"is longer than {MAX_COMPONENT} characters"
    if name.endswith(RESERVED_SUFFIXES):
        return "ends in .sock or .d, which the tree reserves"
    if not _COMPONENT.fullmatch(name):
        return "may hold only letters, digits and . _ + -, and begins with a letter or digit"
    return None


def check(name: str, fault: Callable[[str], str | None] = fault_of) -> str:
    """Returns `name`. Raises EINVAL with the rule that it breaks."""
    if reason := fault(name):
        raise Fault("EINVAL", f"the name {name!r} {reason}")
    return name


def fault_of_session(name: str) -> str | None:
    """Returns the rule that the name of a session breaks, as `fault_of` does."""
    return "is reserved for the index of the sessions" if name == INDEX else fault_of(name)


def check_session(name: str) -> str:
    """Returns `name` if a session can have it. Raises EINVAL with the rule that it breaks."""
    return check(name, fault_of_session)


def check_object(class_: str, name: str) -> str:
    """Returns an object's whole name: one component, or provider/model. Raises EINVAL if it breaks a rule."""
    parts = name.split("/")
    if class_ == "model" and len(parts) != 2:
        raise Fault("EINVAL", f"the model name {name!r} is not of the form provider/model")
    if class_ != "model" and len(parts) != 1:
        raise Fault("EINVAL", f"the {class_} name {name!r} must be one component, without /")
    for part in parts:
        check(part)
    return name


def check_new(name: str) -> str:
    """Returns a name for a new object of this machine. Raises EINVAL if an object of another may have it."""
    if "+" in name:
        raise Fault("EINVAL", f"the name {name!r} has a +, which is reserved for objects of other machines")
    return name


def clean(text: str) -> str:
    """Returns a foreign id as a component: + and characters outside the grammar become '-' (abi.md 2.6)."""
    text = _OUTSIDE.sub("-", text)[:MAX_COMPONENT].lstrip("._+-")
    while text.endswith(RESERVED_SUFFIXES):
        text = text.rpartition(".")[0]
    return check(text or "unnamed")
