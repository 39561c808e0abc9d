"""The format google: Gemini by Google's OpenAI-compatible endpoint.

Google's own SDK needs asyncio, so its other format speaks for it; what differs is here.
This file must never know connections.
"""

from __future__ import annotations

from typing import Any

from cortexfs.models import openai_chat
from cortexfs.models.asked import Asked
from cortexfs.models.format import Format
from cortexfs.models.model import Model
from cortexfs.models.toolnames import renaming

MOST = "high"  # effort; there is no more


def request(model: Model, asked: Asked) -> dict[str, Any]:
    body = openai_chat.request(model, asked)
    if body.get("reasoning_effort") == "xhigh":
        body["reasoning_effort"] = MOST
    return body


FORMAT = renaming(Format(request, openai_chat.Reader))
