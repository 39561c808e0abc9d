"""text.word_count: the tool of the SDK's quick start."""

from __future__ import annotations

from typing import Annotated

from cortexfs.sdk import tool


@tool(
    name="text.word_count",
    background_safe=True,
    description="""\
Count the words of a text, that is what white space separates, and return "N words".
Use it when the text is at hand; it reads no files. Do not use it to count tokens, lines or characters.""",
)
def word_count(text: Annotated[str, "The text."]) -> str:
    return f"{len(text.split())} words"
