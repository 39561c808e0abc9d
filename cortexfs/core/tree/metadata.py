"""The text of an executable object: the shebang, then `# cortexfs.<key>=<value>` lines (abi.md 1.18).

Rules: metadata and never code; one line a key, whatever a description holds; a key without a value
is left out.
This file must never know inodes, or who reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cortexfs.core.registry import Object

MAX_DESCRIPTION = 400  # characters; .d/description has all of it

_COMMON = ("object", "name", "description", "runner", "status", "plugin")
KEYS: dict[str, tuple[str, ...]] = {
    "tool": _COMMON,
    "agent": (*_COMMON, "model"),
    "model": (*_COMMON, "id", "driver", "session", "cap"),
}


def _line(text: str) -> str:
    """Any text as one line of words; lists become comma lists through their newlines."""
    return " ".join(text.split())[:MAX_DESCRIPTION]


def render(object_: Object, shebang: bytes, control: Callable[[str], str]) -> bytes:
    """`control` gives the value of one of the object's control files."""
    known: Mapping[str, str] = {
        "object": object_.class_,
        "name": object_.name,
        "description": object_.description,
        "runner": shebang.removeprefix(b"#!").strip().decode("utf-8", "replace"),
        "status": object_.status,
        "plugin": object_.origin,
    }
    lines = [shebang.rstrip(b"\n").decode("utf-8", "surrogateescape")]
    for key in KEYS[object_.class_]:
        value = _line(known[key] if key in known else ",".join(control(key).split()))
        if value:
            lines.append(f"# cortexfs.{key}={value}")
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
