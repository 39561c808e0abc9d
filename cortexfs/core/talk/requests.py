"""The requests of a client on a `.sock` (abi.md 5): one JSON object a line, with its kind in `op`.

Rules: whatever a line holds, a typed request or a refusal comes out. Unknown fields are ignored. null
is no value: a field without a value must be left out. A refusal names the request if its `id` can be
read. The field order here is the order on the wire.
This file must never know the state of a session, or who asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from cortexfs.core import frames, jsontext, names
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE

MAX_ID = 256  # characters of an id, which is kept as long as its session, and repeated in frames
# Bytes of an edited input: it is logged as JSON within JSON, which at most doubles it, and a line has 1 MiB.
MAX_EDITED = 256 << 10
MAX_CWD = 4095  # bytes: PATH_MAX of Linux, without the NUL; no longer path can exist
# Bytes of memory for a value, by its first character or the comma before it: measured with CPython 3.11.
WEIGHTS = {b"{": 240, b"[": 96, b",": 72}
Scope = Literal["private", "shared", "temp"]
Decision = Literal["allow_once", "allow_session", "deny"]
Input: TypeAlias = str | dict[str, Any]


class Request(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="op", kw_only=True):
    """A request. `id` is the client's own name for it, which answers repeat."""

    id: str | None = None


class Send(Request, frozen=True, tag="send", kw_only=True):
    session: str = "default"
    scope: Scope = "private"
    cwd: str | None = None
    input: Input


class Resume(Request, frozen=True, tag="resume", kw_only=True):
    session: str = "default"
    scope: Scope = "private"
    after: str | None = None


class Cancel(Request, frozen=True, tag="cancel", kw_only=True):
    """Cancel a run. `id` is that of the run, or of the send: a waiting message shows no run yet."""

    id: str


class Approve(Request, frozen=True, tag="approve", kw_only=True):
    """Decide about a call. `input` replaces the model's input of the call."""

    run: str
    call: str
    decision: Decision
    input: dict[str, Any] | None = None


class Respond(Request, frozen=True, tag="answer", kw_only=True):
    """Answer a question. `content` is the filled form; without it the question is declined."""

    run: str
    question: str
    content: dict[str, Any] | None = None


class Ping(Request, frozen=True, tag="ping", kw_only=True):
    pass


class Take(Request, frozen=True, tag="take", kw_only=True):
    """Move a session of the team to this machine. `force` does so even if the machine that has it is up."""

    session: str
    force: bool = False


AnyRequest: TypeAlias = Send | Resume | Cancel | Approve | Respond | Ping | Take
Refusal: TypeAlias = frames.Error

REQUESTS = {str(each.__struct_config__.tag): each for each in get_args(AnyRequest)}


class Verdict(NamedTuple):
    """The outcome of an approval: the decision, perhaps an input in place of the model's, and the reason. The
    reason names the user who decided, or why no user could. For a tool's question, `input` is the answer."""

    decision: Decision
    input: dict[str, Any] | None
    reason: str


class SessionKey(NamedTuple):
    """The key of a session. Each owner has sessions of their own under any name."""

    scope: Scope
    owner: int  # private: the peer's uid; temp: the connection, with which the session ends; shared: 0
    session: str

    @classmethod
    def of(cls, request: Send | Resume, uid: int, connection: int) -> SessionKey:
        owner = {"private": uid, "shared": 0, "temp": connection}[request.scope]
        return cls(request.scope, owner, request.session)


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _Turn(msgspec.Struct):
    role: str
    content: str | list[_Part] | None = None  # None: the assistant only called tools


class _Object(msgspec.Struct):
    messages: list[_Turn] | None = None
    content: str | list[_Part] | None = None


class _Named(msgspec.Struct):
    id: Any = None


_encoder = msgspec.json.Encoder()
_id_decoder = msgspec.json.Decoder(_Named)
_CHOICES = {"scope": get_args(Scope), "decision": get_args(Decision)}


def encode(request: AnyRequest) -> bytes:
    """Returns the line of a request. Raises EMSGSIZE if it does not fit into one line."""
    line = _encoder.encode(request) + b"\n"
    if len(line) > frames.MAX_LINE:
        raise Fault("EMSGSIZE", f"the request is over {frames.MAX_LINE} bytes; send less at a time")
    return line


def decode(line: bytes | None) -> AnyRequest | Refusal:
    """Returns the request of a line, or a refusal. None stands for a line that was too long to be kept."""
    if line is None:
        return refusal(Fault("EMSGSIZE", f"the line is over {frames.MAX_LINE} bytes; it was dropped"))
    try:
        return _request(jsontext.decode(line, "the line"))
    except Fault as fault:
        return refusal(fault, _id_in(line))


def refusal(fault: Fault, request: str | None = None) -> Refusal:
    """Returns the answer for a fault. No other code makes answers of faults."""
    return frames.Error(request=request, code=fault.code, message=jsontext.clipped(fault.message))


def newest_text(value: Input) -> list[frames.Text]:
    """Returns the text of the newest message in an input, for the log as the user's message. Raises EINVAL
    for a field of another shape, which checked requests do not have."""
    if isinstance(value, str):
        return [frames.Text(value)]
    shape = _converted(value, _Object)
    content = shape.content
    if shape.messages:
        turns = [turn for turn in shape.messages if turn.role == "user"] or shape.messages
        content = turns[-1].content
    if isinstance(content, str):
        return [frames.Text(content)]
    return [frames.Text(part.text) for part in content or [] if part.type == "text"]


def _request(value: Any) -> AnyRequest:
    if not isinstance(value, dict):
        raise Fault("EINVAL", f"the line: expected an object, got {jsontext.type_name(value)}")
    op = value.get("op")
    if not isinstance(op, str) or op not in REQUESTS:
        raise Fault("EINVAL", f"op: expected one of {', '.join(REQUESTS)}; got {jsontext.shown(op)}")
    for field in REQUESTS[op].__struct_fields__:
        if field in value and value[field] is None:
            raise Fault("EINVAL", f"{field}: is null; leave it out instead")
    request: AnyRequest = _converted(value, REQUESTS[op])
    for field in REQUESTS[op].__struct_fields__:
        if field in value and field in _CHECKS:
            _CHECKS[field](field, value[field])
    if isinstance(request, Send):
        _check_input("input", request.input)
    elif isinstance(request, Approve) and request.input is not None:
        check_edited(request.input, request.decision)
    elif isinstance(request, Respond) and request.content is not None:
        check_content(request.content)
    return request


def _converted(value: Any, type_: Any, root: str = "") -> Any:
    return jsontext.converted(value, type_, root, "the line", _CHOICES)


def _check_id(field: str, value: str) -> None:
    if len(value) > MAX_ID:
        raise Fault("EINVAL", f"{field}: is longer than {MAX_ID} characters")


def _check_session(field: str, value: str) -> None:
    if fault := names.fault_of_session(value):
        raise Fault("EINVAL", f"{field}: the name {jsontext.shown(value)} {fault}")


def _check_cwd(field: str, value: str) -> None:
    if not value.startswith("/") or "\0" in value:
        raise Fault("EINVAL", f"{field}: {jsontext.shown(value)} is not an absolute path")
    if len(value.encode()) > MAX_CWD:
        raise Fault("EINVAL", f"{field}: is longer than {MAX_CWD} bytes")


def _check_input(field: str, value: Input) -> None:
    if isinstance(value, str):
        if not value.strip():
            raise _empty(field)
        return
    if "messages" not in value and "content" not in value:
        raise Fault("EINVAL", f"{field}: expected a string, or an object with messages or content")
    shape: _Object = _converted(value, _Object, field)
    content = shape.content or []
    parts = (
        content.strip() if isinstance(content, str) else [p for p in content if p.type != "text" or p.text]
    )
    if not shape.messages and not parts:
        raise _empty(field)


def _empty(field: str) -> Fault:
    return Fault("EINVAL", f"{field}: is empty; say something")


def check_edited(value: dict[str, Any], decision: Decision = "allow_once") -> None:
    """Raises EINVAL or EMSGSIZE for an input that cannot replace the model's."""
    if decision != "allow_once":
        raise Fault("EINVAL", f"input: goes with allow_once alone, not with {decision}; leave it out")
    if len(_encoder.encode(value)) > MAX_EDITED:
        raise Fault("EMSGSIZE", f"input: is over {MAX_EDITED >> 10} KiB as JSON; deny the call instead")


def check_content(value: dict[str, Any]) -> None:
    if len(_encoder.encode(value)) > MAX_EDITED:
        raise Fault("EMSGSIZE", f"content: is over {MAX_EDITED >> 10} KiB as JSON; send less")


_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "id": _check_id,
    "run": _check_id,
    "call": _check_id,
    "question": _check_id,
    "session": _check_session,
    "cwd": _check_cwd,
}


def _id_in(line: bytes) -> str | None:
    """Returns the `id` of a refused request, or None if it cannot be read."""
    try:
        found = _id_decoder.decode(line).id
    except UNREADABLE:
        return None
    return found if isinstance(found, str) and len(found) <= MAX_ID else None


def weight(value: Input) -> int:
    """Returns about how many bytes of memory an input takes: a MiB of brackets takes some 20 MiB."""
    data = msgspec.json.encode(value)
    if isinstance(value, str):
        return len(data)
    return len(data) + sum(data.count(mark) * each for mark, each in WEIGHTS.items())
