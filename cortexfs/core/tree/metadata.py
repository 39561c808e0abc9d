"""The facts that an object's files bear: the text of its executable, extended attributes, and its line in
`.objects` (abi.md 1.25) and `.allowed`.

The text is the shebang, then `# cortexfs.<key>=<value>` lines (abi.md 1.18). The attributes are read-only
(abi.md 3.20): user.cortexfs.{kind,name,origin,token_estimate,status}.

Rules: metadata and never code; one line a key, whatever a description holds; a key without a value is left
out. Origin and status are of objects, so only their executable and folder have them as attributes; an
estimate is of what can be read, so folders have none. Links and sockets have nothing, as the kernel lets only
files and folders have attributes of users (xattr(7)), and a listing must not promise more.
This file must never know who reads.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterable, Mapping

import msgspec

from cortexfs.core.registry import Object
from cortexfs.core.safe_text import within
from cortexfs.core.tree.places import CONTROL, EXECUTABLE, FOLDER, Attributes, slot

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


PREFIX = b"user.cortexfs."
BYTES_PER_TOKEN = 4  # an estimate that needs no tokenizer

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
}


def xattrs(inode: int, attributes: Attributes, object_: Object | None, name: str) -> dict[bytes, bytes]:
    """`object_` is the one that the inode belongs to, `name` the last component of its path."""
    kind, at = _KINDS.get(stat.S_IFMT(attributes.mode)), slot(inode)
    if kind is None:
        return {}
    values = {"kind": kind, "name": name or "/"}
    if object_:
        values["name"] = object_.name
        if at in (EXECUTABLE, FOLDER):
            values |= {"kind": object_.class_ if at == EXECUTABLE else kind}
            values |= {"origin": object_.origin, "status": object_.status}
        elif at >= CONTROL:
            values |= {"kind": "control", "name": name}
    if stat.S_ISREG(attributes.mode):
        values["token_estimate"] = str(-(-attributes.size // BYTES_PER_TOKEN))
    return {PREFIX + key.encode(): value.encode() for key, value in values.items()}


_SENTENCE = re.compile(r"(.*?[.!?])(?: (.*)|$)", re.DOTALL)


def row(object_: Object) -> str:
    """A line of `.allowed`: path, status, origin, the first sentence of the description and its rest. None of
    them holds what moves a cursor, or ends a field or a line."""
    said = _line(object_.description)
    found = _SENTENCE.match(said)
    parts = (found[1], found[2] or "") if found else (said, "")
    return "\t".join(map(within, (object_.path, _line(object_.status), object_.origin, *parts))) + "\n"


class _Facts(msgspec.Struct):
    """A line of `.objects`."""

    object: str
    status: str
    origin: str
    description: str


def facts(objects: Iterable[Object]) -> bytes:
    rows = (_Facts(one.path, _line(one.status), one.origin, _line(one.description)) for one in objects)
    return msgspec.json.Encoder().encode_lines(rows)
