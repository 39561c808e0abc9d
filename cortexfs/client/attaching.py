"""Turns a file (a text, a picture or a PDF) into parts of a message to a model.

    can = abilities(root, path)          the words of the `.d/cap` of an object's model
    parts(name, data, can)               a file of that name with these bytes, if that model takes it

Rules: the bytes decide the type of a file; its name does not. A file that the model cannot take, or that is
too large for a message, is refused before anything is sent. Its name is a part too, as logs keep only text.
This file must never know why a file is attached, or how it was read.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Collection
from typing import Any

from cortexfs.client.media import mime_of
from cortexfs.client.results import Failed
from cortexfs.core import frames
from cortexfs.core.errors import os_faults

MOST = frames.MAX_LINE * 3 // 4 - (16 << 10)  # bytes that a line holds as base64, with room for some text
_PICTURE, _PDF = ("image", "vision"), ("file", "pdf_input")
# By media type: the `type` of the part of a message, and the ability that the model needs.
_KINDS = {
    "image/png": _PICTURE,
    "image/jpeg": _PICTURE,
    "image/gif": _PICTURE,
    "image/webp": _PICTURE,
    "application/pdf": _PDF,
}
_NAMED = {"image": "pictures", "file": "PDFs"}


def abilities(root: str, path: str) -> list[str]:
    """Returns the words of an object's `.d/cap`. For an agent of this machine, returns those of its model."""
    with os_faults(f"the abilities of {path} cannot be read"):
        path = os.path.realpath(path)
        if os.path.basename(os.path.dirname(path)) == "agent" and not os.path.exists(f"{path}.d/cap"):
            with open(f"{path}.d/model") as model:
                path = os.path.realpath(f"{root}/model/{model.read().strip()}")
        with open(f"{path}.d/cap") as cap:
            return cap.read().split()


def parts(name: str, data: bytes, can: Collection[str]) -> list[dict[str, Any]]:
    """Returns the parts of a message for this file. Raises EMSGSIZE or EINVAL if there can be none."""
    if len(data) > MOST:
        raise Failed(
            "EMSGSIZE", f"{name} has {len(data):,} bytes, over the limit of {MOST:,}; make it smaller"
        )
    media_type = mime_of(data)
    if media_type in _KINDS:
        kind, ability = _KINDS[media_type]
        if ability not in can:
            mend = f"choose a model whose .d/cap has {ability}, or declare it: docs/models.md"
            raise Failed("EINVAL", f"{name}: this model takes no {_NAMED[kind]}; {mend}")
        media = {"type": kind, "media_type": media_type, "data": base64.b64encode(data).decode()}
        return [_text(f"\n\n[{name}]"), media | ({"name": name} if kind == "file" else {})]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise Failed("EINVAL", f"{name} is not text, a picture (PNG, JPEG, GIF, WebP) or a PDF")
    fence = "```"
    while fence in text:
        fence += "`"
    return [_text(f"\n\n{name}:\n{fence}\n{text.removesuffix(chr(10))}\n{fence}\n")]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
