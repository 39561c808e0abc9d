"""The text of an input, for drivers that want no more than its newest text.

Rules: of an object, `messages` and `content` are taken as sockets take them; `input` and `task` may hold
any JSON, which is its own text.
This file must never know who asks, or how the input came.
"""

from __future__ import annotations

import msgspec

from cortexfs.core.talk.requests import Input, said


def text_of(value: Input) -> str:
    """The text of a prompt, or of the newest message of the user; EINVAL where its shape is wrong."""
    if isinstance(value, str):
        return value
    if "messages" in value or "content" in value:
        return "".join(part.text for part in said(value))
    held = value.get("input", value.get("task", ""))
    return held if isinstance(held, str) else msgspec.json.encode(held).decode()
