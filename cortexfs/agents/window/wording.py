"""The words for a model about its calls: what tools put out, what failed, what was not allowed.

    <tool_output tool="fs.read" call="c1" trust="untrusted">
    ...
    </tool_output>

Rules: what comes from a tool stands between these marks and nowhere else, and cannot write them itself: a
`<` that would begin one becomes `&lt;`. It is cut in its middle where it is too long; how much is missing and
where the whole is stands in the mark, where no tool writes.
This file must never know who ran the tool, or which model reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cortexfs.core.jsontext import clipped, shown
from cortexfs.core.talk.refusals import DENIED, GO_ON, MARK

MAX_OUTPUT = 16 << 10  # bytes of UTF-8 of one output that a model is given
LINE = 40  # and of those the line about what is not there, at most
MAX_ATTRIBUTE = 64

# What a reader might take for one of our marks: also in capitals, with blanks, and after the wide forms of <.
_MARK = re.compile(r"[<\uff1c\ufe64](?=[\W_]{0,64}tool[\W_]{0,64}output)", re.IGNORECASE)
_PLAIN = re.compile(r"[^A-Za-z0-9._+-]", re.ASCII)
_QUOTED = re.compile(r'["<>&\x00-\x1f\x7f]')


def bounded(text: str, limit: int = MAX_OUTPUT) -> str:
    """The text, or its beginning and its end with a line about what is not there in between. All of it has
    `limit` bytes, so that what was cut is not cut again."""
    return _cut(text, limit)[0]


def _cut(text: str, limit: int) -> tuple[str, int]:
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return data.decode(), 0
    half = max(0, limit - LINE) // 2
    head = data[:half].decode(errors="ignore")
    tail = data[len(data) - half :].decode(errors="ignore")
    left = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[... {left} bytes left out ...]\n{tail}", left


def is_long(output: str) -> bool:
    """Returns True if a model is not given all of it."""
    return len(output) > MAX_OUTPUT or len(output.encode(errors="replace")) > MAX_OUTPUT


def result(name: str, call: str, output: str, missing: int = 0, whole: str = "") -> str:
    """Returns a tool's output in words. `missing` bytes more were not kept; all that was is in the file
    `whole`."""
    body, left = _cut(output, MAX_OUTPUT)
    notes = {
        "tool": _plain(name),
        "call": _plain(call),
        "trust": "untrusted",
        "left_out": f"{left} bytes" if left else "",
        "whole": _QUOTED.sub("_", whole) if left else "",
        "not_kept": f"{missing} bytes" if missing else "",
    }
    return _marked(body, notes)


def failed(code: str, message: str) -> str:
    """A call that failed. What is said of it may be the tool's own words."""
    return _marked(bounded(message), {"error": _plain(code), "trust": "untrusted"})


def unknown(name: str, known: str) -> str:
    return f"There is no tool {_harmless(shown(name))}. There are: {known}."


def hidden(tools: Mapping[str, str]) -> str:
    """For a person: the tools of an agent that its model is not offered, and why."""
    said = "; ".join(f"{name}: {why}" for name, why in tools.items())
    return f"Its model is not offered all of its tools. {said}"


def malformed(why: str) -> str:
    return f"Your reply was not understood: {_sentence(why)} Reply again, in the form that you were told."


def denied(reason: str) -> str:
    """Not allowed, by whomever."""
    return f"{DENIED} {_sentence(reason)} {GO_ON}"


def shortened(text: str, limit: int) -> str:
    """Returns those words for a later question that has less room for them; their marks stay."""
    if len(text.encode(errors="replace")) <= limit:
        return text
    first, newline, rest = text.partition("\n")
    if not (newline and first.startswith(f"<{MARK}") and rest.endswith(f"\n</{MARK}>")):
        return bounded(text, limit)
    body = rest.removesuffix(f"\n</{MARK}>")
    return f"{first}\n{_harmless(bounded(body, limit))}\n</{MARK}>"


def _marked(body: str, notes: dict[str, str]) -> str:
    said = " ".join(f'{key}="{value}"' for key, value in notes.items() if value)
    return f"<{MARK} {said}>\n{_harmless(body)}\n</{MARK}>"


def _harmless(text: str) -> str:
    return _MARK.sub("&lt;", text)


def _plain(text: str) -> str:
    return _PLAIN.sub("_", text)[:MAX_ATTRIBUTE] or "_"


def _sentence(text: str) -> str:
    text = _harmless(clipped(text.strip()))
    return text if text.endswith((".", "!", "?")) else f"{text}."
