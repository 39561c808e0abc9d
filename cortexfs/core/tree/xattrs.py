"""The read-only extended attributes (abi.md 3.20): user.cortexfs.{kind,name,origin,token_estimate,status}.

Rules: origin and status are of objects, so only their executable and folder have them; an estimate
is of what can be read, so folders have none. Links and sockets have nothing, as the kernel lets only
files and folders have attributes of users (xattr(7)), and a listing must not promise more.
This file must never know who asks.
"""

from __future__ import annotations

import stat

from cortexfs.core.registry import Object
from cortexfs.core.tree.places import CONTROL, EXECUTABLE, FOLDER, Attributes, slot

PREFIX = b"user.cortexfs."
BYTES_PER_TOKEN = 4  # an estimate that needs no tokenizer

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
}


def of(inode: int, attributes: Attributes, object_: Object | None, name: str) -> dict[bytes, bytes]:
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
