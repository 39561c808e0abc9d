"""The format google: Gemini by Google's OpenAI-compatible endpoint.

Google's own SDK needs asyncio, so its other format speaks for it; what differs is here.
This file must never know connections.
"""

from __future__ import annotations

from typing import Any

from cortexfs.models.ask.model import ModelEntry
from cortexfs.models.ask.question import ModelInput
from cortexfs.models.formats import openai_chat
from cortexfs.models.formats.format import Format

MOST = "high"  # effort; there is no more


def request(model: ModelEntry, asked: ModelInput) -> dict[str, Any]:
    body = openai_chat.request(model, asked)
    if body.get("reasoning_effort") == "xhigh":
        body["reasoning_effort"] = MOST
    return body


FORMAT = Format(request, openai_chat.ChatReader)
