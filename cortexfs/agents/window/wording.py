"""The words for a model about its calls: outputs of tools, failures and refusals.

    <tool_output tool="fs.read" call="c1" trust="untrusted">
    ...
    </tool_output>

Rules: a tool's text stands between these marks and nowhere else, and cannot contain them: a `<` that would
begin one becomes `&lt;`. A text that is too long is cut in its middle. The number of missing bytes and the
path of the whole stand in the mark, where no tool writes.
This file must never know who ran the tool, or which model reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cortexfs.core.jsontext import clipped, shown
from cortexfs.core.talk.refusals import DENIED, GO_ON, MARK

MAX_OUTPUT = 16 << 10  # bytes of UTF-8 of one output that a model gets
LINE = 40  # the most of these bytes for the line about the missing part
MAX_ATTRIBUTE = 64

# Text that a reader might take for a mark of ours: also in capitals, with blanks, and after wide forms of <.
_MARK = re.compile(r"[<\uff1c\ufe64](?=[\W_]{0,64}tool[\W_]{0,64}output)", re.IGNORECASE)
_PLAIN = re.compile(r"[^A-Za-z0-9._+-]", re.ASCII)
_QUOTED = re.compile(r'["<>&\x00-\x1f\x7f]')


def bounded(text: str, limit: int = MAX_OUTPUT) -> str:
    """Returns the text, or its beginning and its end with a line about the missing part in between. The
    result has at most `limit` bytes, so that it is not cut again."""
    return _cut(text, limit)[0]


def _cut(text: str, limit: int) -> tuple[str, int]:
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return data.decode(), 0
    half = max(0, limit - LINE) // 2
    head = data[:half].decode(errors="ignore")
    tail = data[len(data) - half :].decode(errors="ignore")
    gap = len(data) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[... {gap} bytes left out ...]\n{tail}", gap


def is_long(output: str) -> bool:
    """Returns True if a model does not get all of an output."""
    return len(output) > MAX_OUTPUT or len(output.encode(errors="replace")) > MAX_OUTPUT


def result(name: str, call: str, output: str, missing: int = 0, path: str = "") -> str:
    """Returns a tool's output in words. `missing` more bytes were not kept; the file `path` has the kept
    ones."""
    body, gap = _cut(output, MAX_OUTPUT)
    notes = {
        "tool": _plain(name),
        "call": _plain(call),
        "trust": "untrusted",
        "left_out": f"{gap} bytes" if gap else "",
        "whole": _QUOTED.sub("_", path) if gap else "",
        "not_kept": f"{missing} bytes" if missing else "",
    }
    return _marked(body, notes)


def failed(code: str, message: str) -> str:
    """Returns the words about a failed call, marked as untrusted: they may be the tool's own."""
    return _marked(bounded(message), {"error": _plain(code), "trust": "untrusted"})


def unknown(name: str, known: str) -> str:
    return f"There is no tool {_harmless(shown(name))}. There are: {known}."


def hidden(tools: Mapping[str, str]) -> str:
    """Returns a notice for a person about the tools that the model of an agent is not offered."""
    reasons = "; ".join(f"{name}: {why}" for name, why in tools.items())
    return f"The agent's model does not get all of its tools. {reasons}"


def malformed(why: str) -> str:
    return f"Your reply was not understood: {_sentence(why)} Reply again, in the form that you were told."


def denied(reason: str) -> str:
    """Returns the words about a call that policy, a plugin or a person refused."""
    return f"{DENIED} {_sentence(reason)} {GO_ON}"


def shortened(text: str, limit: int) -> str:
    """Returns such words for a later question with less room. Their marks stay."""
    if len(text.encode(errors="replace")) <= limit:
        return text
    first, newline, rest = text.partition("\n")
    if not (newline and first.startswith(f"<{MARK}") and rest.endswith(f"\n</{MARK}>")):
        return bounded(text, limit)
    body = rest.removesuffix(f"\n</{MARK}>")
    return f"{first}\n{_harmless(bounded(body, limit))}\n</{MARK}>"


def _marked(body: str, notes: dict[str, str]) -> str:
    attributes = " ".join(f'{key}="{value}"' for key, value in notes.items() if value)
    return f"<{MARK} {attributes}>\n{_harmless(body)}\n</{MARK}>"


def _harmless(text: str) -> str:
    return _MARK.sub("&lt;", text)


def _plain(text: str) -> str:
    return _PLAIN.sub("_", text)[:MAX_ATTRIBUTE] or "_"


def _sentence(text: str) -> str:
    text = _harmless(clipped(text.strip()))
    return text if text.endswith((".", "!", "?")) else f"{text}."
