"""The table of `.d/`: the control files of each class, their content and their format.

One row a file, in the order of abi.md 3. A row with a check is writable (0644); all others are
read-only. Written bytes become a value only by `judge`.
This file must never know who writes, or where values are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from typing import TypeAlias

import msgspec

from cortexfs.core import value_formats
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Effect
from cortexfs.core.manifest import own_script
from cortexfs.core.policy import rules
from cortexfs.core.registry import Object

MAX_VALUE = 64 << 10  # enough, as controls are for people to read

_SPACE = re.compile(r"[\s%]|^-$")

Render: TypeAlias = Callable[[Object], str]


class Control(msgspec.Struct, frozen=True):
    name: str
    render: Render  # returns the default value
    check: value_formats.Check | None = None  # None: read-only
    holds: bool = False  # a written value counts until another is written, also after a removal of the file


def _log(_object: Object) -> str:
    raise AssertionError("a log is not rendered")


def _extra(key: str, default: str = "") -> Render:
    return lambda object_: object_.extra.get(key, default)


def _flags(object_: Object) -> str:
    words = ("emits_progress", "emits_observer_text", "background_safe")
    found = [word for word in words if getattr(object_.capabilities, word)]
    if object_.dry_run_flag:
        found += ["dry_run_flag", *(["dry_run_trusted"] if object_.is_trusted else [])]
    return "\n".join(found)


def _effect(effect: Effect) -> str:
    # White space would split a target into two fields, so it is escaped as in a URL; so is -, which is none.
    target = _SPACE.sub(lambda match: "".join(f"%{b:02X}" for b in match[0].encode()), effect.target) or "-"
    return f"{effect.kind} {target} {effect.reversibility} {effect.confirmation} {effect.dry_run}"


def _effects(object_: Object) -> str:
    return "\n".join(map(_effect, object_.capabilities.effects))


def seconds(value: float) -> str:
    """Returns seconds as a decimal number, without trailing zeroes."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _timeout(object_: Object) -> str:
    return "" if object_.timeout is None else seconds(object_.timeout)


# The rows of several classes.
_POLICY = Control("policy", _extra("policy"), rules.parse, holds=True)
_STATUS, _ORIGIN = (Control(name, attrgetter(name)) for name in ("status", "origin"))
_LOG = Control("log", _log)

CONTROLS: dict[str, tuple[Control, ...]] = {
    "tool": (
        Control("name", attrgetter("name")),
        Control("description", attrgetter("description")),
        Control("schema", lambda object_: object_.schema.decode()),
        Control("cap", _flags),
        Control("effects", _effects),
        Control("timeout", _timeout),
        _POLICY,
        _STATUS,
        _LOG,
        _ORIGIN,
        Control(own_script.CONTROL, lambda object_: "", own_script.check),
    ),
    "model": (
        Control("id", lambda object_: object_.extra.get("id", object_.name)),
        Control("driver", _extra("driver"), value_formats.driver),
        Control("cap", _extra("cap")),
        Control(
            "effort", _extra("effort", "auto"), value_formats.one_of("auto", "low", "medium", "high", "xhigh")
        ),
        Control("default", _extra("default"), value_formats.parameters),
        Control("fallback", _extra("fallback"), value_formats.fallback),
        Control("limit", _extra("limit", "unknown")),
        Control("session", _extra("session", "none")),
        _POLICY,
        _STATUS,
        _LOG,
        _ORIGIN,
    ),
    "agent": (
        Control("owner", _extra("owner")),
        Control("uid", _extra("uid")),
        Control("gid", _extra("gid")),
        Control("groups", _extra("groups"), value_formats.gids),
        Control("label", _extra("label"), value_formats.label),
        Control("iso", _extra("iso", "shared")),
        Control("parent", _extra("parent")),
        Control("life", _extra("life", "owned")),
        Control("root", _extra("root")),
        Control("cwd", _extra("cwd", "/"), value_formats.absolute_path),
        Control("env", _extra("env"), value_formats.key_values),
        Control("path", _extra("path"), value_formats.absolute_paths),
        Control("mount", _extra("mount"), value_formats.path_mounts),
        Control("model", _extra("model"), value_formats.model_name),
        Control("window", _extra("window", "auto"), value_formats.window),
        Control("system.md", _extra("system.md"), value_formats.anything),
        Control("tools", _extra("tools"), value_formats.tool_names),
        Control("skills", _extra("skills"), value_formats.skill_names),
        Control("approval", _extra("approval", "auto"), value_formats.one_of("auto", "ask")),
        _POLICY,
        _STATUS,
        Control("pid", _extra("pid")),
        _LOG,
        Control("meta.json", _extra("meta.json", "{}")),
        Control("cap", _extra("cap")),
        _ORIGIN,
    ),
}
LOG = "log"
RESET = b"reset\n"  # written to a control that holds, it restores the default
BY_NAME = {(class_, control.name): control for class_, rows in CONTROLS.items() for control in rows}


def find(class_: str, name: str) -> Control | None:
    return BY_NAME.get((class_, name))


# The controls of another machine's agent. Its policy and tools can be read only there. `cap` lists the
# abilities of its model, which a client here cannot read from the model.
_ELSEWHERE = ("cap", "status", "log", "origin")


def has(object_: Object, name: str) -> bool:
    """Returns True if an object has a control of this name. Only tools in homes have `script`. Objects in
    homes have no control `session`, as that is their folder of sessions."""
    if (object_.class_, name) not in BY_NAME:
        return False
    if object_.class_ == "agent" and (object_.plugin is not None or name in ("cap", "origin")):
        return object_.plugin is not None and name in _ELSEWHERE
    if name == own_script.CONTROL:
        return object_.home is not None
    return name != "session" or object_.home is None


def line_ended(text: str) -> bytes:
    """Returns text as a control file shows it. An empty value is an empty file."""
    return (text if not text or text.endswith("\n") else text + "\n").encode("utf-8", "replace")


def judge(control: Control, data: bytes) -> bytes:
    """Returns the value of written bytes, or RESET. Raises a Fault if they are no value of this control."""
    if control.check is None:
        raise Fault("EROFS", f"{control.name} is read-only")
    if len(data) > MAX_VALUE:
        raise Fault("EFBIG", f"{control.name} holds at most {MAX_VALUE >> 10} KiB")
    if control.holds and data.strip() == RESET.strip():
        return RESET
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Fault("EINVAL", f"{control.name} is UTF-8 text; byte {error.start} is not") from None
    if "\0" in text:
        raise Fault("EINVAL", f"{control.name} is text; byte {data.index(0)} is NUL")
    value = line_ended(text)
    control.check(value.decode())
    return value
