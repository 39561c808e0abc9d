"""The note on a cut answer, and the text of a `tool_result` for an agent's call that failed or was denied.

    <tool_output error="ENOENT" trust="untrusted">        failed; the text between the marks is the tool's
    This call is not allowed: ...                         denied, by policy or by a person

A call that was denied to a helper is told in a note of agent.run, whose source no other tool can have.

Rules: only the run itself writes these words in a result with `is_error`, so no tool can imitate a denial.
This file must never know who reads.
"""

from __future__ import annotations

import re

from cortexfs.core.frames import Observer, ToolResult

DENIED = "This call is not allowed:"
GO_ON = "Do not try it again. Go on without it, or say what you could not do."
MARK = "tool_output"
HELPERS = "tool/agent.run: denied"  # the source of such a note; its content is the tool and the reason
CUT, REPEATED = "the answer was cut at max_tokens", "the model repeated itself, so its answer was ended"
EARLY = (CUT, REPEATED)  # progress that tells whoever reads, in a pipe too, that an answer is not whole

_FAILED = re.compile(rf'<{MARK} error="([A-Z0-9]+)"[^>\n]*>\n')
_MARKS = re.compile(rf"</?{MARK}[^>\n]*>\n?")


def is_denied(frame: ToolResult) -> bool:
    return frame.is_error and frame.output.startswith(DENIED)


def denied_to_helper(frame: Observer) -> str:
    """Returns the words about a call that was denied to a helper. Other notes give an empty text."""
    return f"denied to a helper: {frame.content}" if frame.source == HELPERS else ""


def sentence(frame: ToolResult) -> str:
    """Returns the failure for a person: the code and the reason, without the marks."""
    if is_denied(frame):
        return f"denied: {frame.output.removeprefix(DENIED).removesuffix(GO_ON).strip()}"
    return _MARKS.sub("", _FAILED.sub(lambda found: f"{found[1]}: ", frame.output, count=1))
