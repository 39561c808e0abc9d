"""The facts about an object in its files: the text of its executable, extended attributes, and its line in
`.objects` (abi.md 1.25) and `.allowed`.

The text is the shebang, then `# cortexfs.<key>=<value>` lines (abi.md 1.18). The attributes are read-only
(abi.md 3.20): user.cortexfs.{kind,name,origin,token_estimate,status}.

Rules: the text is metadata and never code. It has one line a key, whatever a description holds, and no key
without a value. Origin and status are facts about objects, so only executables and folders have them as
attributes. The token estimate needs content, so folders have none. Links and sockets have no attributes: the
kernel allows user attributes only for files and folders (xattr(7)), and a listing must not promise more.
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

MAX_DESCRIPTION = 400  # characters; .d/description has the whole text

_COMMON = ("object", "name", "description", "runner", "status", "plugin")
KEYS: dict[str, tuple[str, ...]] = {
    "tool": _COMMON,
    "agent": (*_COMMON, "model"),
    "model": (*_COMMON, "id", "driver", "session", "cap"),
}


def _line(text: str) -> str:
    """Returns any text as one line, cut to MAX_DESCRIPTION."""
    return " ".join(text.split())[:MAX_DESCRIPTION]


def render(object_: Object, shebang: bytes, control: Callable[[str], str]) -> bytes:
    """Returns the text of an executable. `control` returns the value of one of the object's control files."""
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
BYTES_PER_TOKEN = 4  # a rough number, for estimates without a tokenizer

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
}


def xattrs(
    inode: int, attributes: Attributes, object_: Object | None, name: str, refusal: str = ""
) -> dict[bytes, bytes]:
    """Returns the extended attributes of an inode. `object_` is its object, `name` the end of its path."""
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
            values |= {"kind": "control", "name": name} | ({"refusal": refusal} if refusal else {})
    if stat.S_ISREG(attributes.mode):
        values["token_estimate"] = str(-(-attributes.size // BYTES_PER_TOKEN))
    return {PREFIX + key.encode(): value.encode() for key, value in values.items()}


_SENTENCE = re.compile(r"(.*?[.!?])(?: (.*)|$)", re.DOTALL)


def row(object_: Object) -> str:
    """Returns a line of `.allowed`: path, status, origin, first sentence of the description, and its rest. No
    field holds a character that moves a cursor, or ends a field or a line."""
    text = _line(object_.description)
    found = _SENTENCE.match(text)
    parts = (found[1], found[2] or "") if found else (text, "")
    return "\t".join(map(within, (object_.path, _line(object_.status), object_.origin, *parts))) + "\n"


class _Facts(msgspec.Struct):
    """A line of `.objects`."""

    object: str
    status: str
    origin: str
    description: str


def facts(objects: Iterable[Object]) -> bytes:
    rows = (
        _Facts(object_.path, _line(object_.status), object_.origin, _line(object_.description))
        for object_ in objects
    )
    return msgspec.json.Encoder().encode_lines(rows)
