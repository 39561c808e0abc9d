"""The question to a model: the input of any client, in the one form that every driver reads.

    {"messages":[{"role":"user","content":[{"type":"text","text":"what is this?"},
                 {"type":"image","media_type":"image/png","data":"iVBOR..."}]}],
     "system":"be terse", "schema":{...}, "tools":[{"name","description","schema"}], "temperature":0}

The structs of messages have this form in JSON, too, so that an agent's messages are an input for its model.

Rules: a wrong field is EINVAL with its path. Images and files come as base64 or as a URL for the provider
to read: no code here touches a file. An unknown field is a parameter, and is passed on unchanged.
This file must never know the format of a provider's requests.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Message
from cortexfs.core.talk.requests import Input

MAX_TOOLS = 1000
MAX_PARAMETERS = 100

# Fields of a provider's request that a caller may not set.
RESERVED = ("model", "stream", "stream_options", "n", "response_format", "functions", "input_file")

_DATA_URL = re.compile(r"data:([A-Za-z0-9.+/-]+)?(?:;[A-Za-z0-9=-]+)*;base64,")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,64}")


class PromptText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class PromptMedia(msgspec.Struct, frozen=True, omit_defaults=True, rename={"kind": "type"}):
    """An image or a file: base64, or a URL."""

    kind: Literal["image", "file"]
    media_type: str = ""
    data: str = ""
    url: str = ""
    name: str = ""

    @property
    def data_url(self) -> str:
        return self.url or f"data:{self.media_type};base64,{self.data}"


Part: TypeAlias = PromptText | PromptMedia


class PastCall(msgspec.Struct, frozen=True):
    """A call that the model asked for earlier."""

    call: str
    name: str
    input: Any = {}


ROLES = ("system", "developer", "user", "assistant", "tool")


class PromptMessage(
    msgspec.Struct, frozen=True, omit_defaults=True, rename={"parts": "content", "calls": "tool_calls"}
):
    role: Literal["user", "assistant", "tool"]
    parts: tuple[Part, ...] = ()
    calls: tuple[PastCall, ...] = ()  # of an assistant's message
    call: str = ""  # of a tool's message: the id of the call that it answers
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, PromptText))


class ToolOffer(msgspec.Struct, frozen=True):
    name: str
    description: str
    schema: dict[str, Any]


class ModelInput(msgspec.Struct, frozen=True):
    said: tuple[PromptMessage, ...]
    system: str = ""
    tools: tuple[ToolOffer, ...] = ()
    tool_choice: str = ""  # "", auto, none, required, or a tool's name
    schema: dict[str, Any] | None = None
    parameters: dict[str, Any] = {}
    effort: str | None = None
    is_complete: bool = False  # the messages are the whole conversation: nothing comes before them


class _Call(msgspec.Struct):
    call: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    function: dict[str, Any] | None = None


class _Turn(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_Call] = []
    call: str | None = None
    tool_call_id: str | None = None
    is_error: bool = False


class _Tool(msgspec.Struct):
    name: str
    description: str = ""
    schema: dict[str, Any] | None = None
    input_schema: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None


class _Fields(msgspec.Struct):
    messages: list[_Turn] | None = None
    content: str | list[dict[str, Any]] | None = None
    input: Any = None
    task: Any = None
    system: str = ""
    tools: list[dict[str, Any]] = []
    tool_choice: str = ""
    schema: dict[str, Any] | None = None
    effort: Literal["auto", "low", "medium", "high", "xhigh"] | None = None
    role: str | None = None  # {"role":"user","content":...} is a short form of one message


def model_input(value: Input, history: Sequence[Message] = (), system: str = "") -> ModelInput:
    """Returns the question after the messages of the history. `system` is used if the question has no system
    prompt. Raises EINVAL for a wrong shape."""
    before = tuple(filter(None, map(remembered, history)))
    if isinstance(value, str):
        return ModelInput(said=(*before, PromptMessage("user", (PromptText(value),))), system=system)
    fields: _Fields = jsontext.converted(value, _Fields)
    own, messages = _conversation(fields)
    if not any(each.parts or each.calls for each in messages):
        raise Fault("EINVAL", "the prompt is empty; messages, input or task must hold something")
    is_complete = any(each.role == "assistant" for each in messages)
    return ModelInput(
        said=messages if is_complete else (*before, *messages),
        system=own or system,
        tools=tuple(_tool(tool, f"tools[{n}]") for n, tool in enumerate(fields.tools[: MAX_TOOLS + 1])),
        tool_choice=_choice(fields),
        schema=fields.schema,
        parameters=_parameters(value),
        effort=fields.effort,
        is_complete=is_complete,
    )


def _conversation(fields: _Fields) -> tuple[str, tuple[PromptMessage, ...]]:
    if fields.messages is None:
        content = fields.content
        if content is None:
            value = fields.task if fields.input is None else fields.input
            content = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return fields.system, (PromptMessage("user", _parts(content, "content")),)
    systems = [fields.system] if fields.system else []
    messages = []
    for number, turn in enumerate(fields.messages):
        path = f"messages[{number}]"
        if turn.role not in ROLES:
            raise Fault("EINVAL", f"{path}.role: {turn.role!r} is not one of {', '.join(ROLES)}")
        parts = _parts(turn.content, f"{path}.content")
        if turn.role in ("system", "developer"):
            systems.append("".join(part.text for part in parts if isinstance(part, PromptText)))
        else:
            messages.append(_message(turn, parts, path))
    return "\n\n".join(systems), tuple(messages)


def _message(turn: _Turn, parts: tuple[Part, ...], path: str) -> PromptMessage:
    assert turn.role not in ("system", "developer")
    call = turn.call or turn.tool_call_id or ""
    if turn.role == "tool" and not call:
        raise Fault("EINVAL", f"{path}.call: a tool's message needs the id of the call that it answers")
    calls = tuple(_past_call(each, f"{path}.tool_calls[{n}]") for n, each in enumerate(turn.tool_calls))
    return PromptMessage(turn.role, parts, calls, call, turn.is_error)  # type: ignore[arg-type]


def _past_call(call: _Call, path: str) -> PastCall:
    """Reads a call in the form of our frames, or in OpenAI's."""
    function = call.function or {}
    name, input_ = call.name or function.get("name"), call.input
    if input_ is None and isinstance(text := function.get("arguments"), str):
        input_ = jsontext.decode(text, f"{path}.function.arguments") if text.strip() else {}
    if not isinstance(name, str) or not (call.call or call.id):
        raise Fault("EINVAL", f"{path}: a tool call needs call (its id), name and input")
    return PastCall(call.call or call.id or "", name, {} if input_ is None else input_)


def _parts(content: str | list[dict[str, Any]] | None, path: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (PromptText(content),) if content else ()
    return tuple(_part(part, f"{path}[{number}]") for number, part in enumerate(content or ()))


def _part(part: dict[str, Any], path: str) -> Part:
    kind = part.get("type")
    reader = _PARTS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise Fault("EINVAL", f"{path}.type: expected text, image or file; got {jsontext.shown(kind)}")
    return reader(part, path)


def _text_part(part: dict[str, Any], path: str) -> Part:
    return PromptText(_string(part, "text", path))


def _media_part(part: dict[str, Any], path: str) -> Part:
    kind: Literal["image", "file"] = "image" if part["type"] == "image" else "file"
    if "path" in part:
        mend = "send its bytes in base64 as data"
        raise Fault("EINVAL", f"{path}.path: a model cannot read your files; {mend}")
    name = _string(part, "name", path, "")
    if "url" in part:
        return _linked(kind, _string(part, "url", path), name, f"{path}.url")
    media_type = _string(part, "media_type", path, "" if kind == "image" else "application/pdf")
    if "/" not in media_type:
        raise Fault("EINVAL", f"{path}.media_type: expected a media type such as image/png")
    data = _string(part, "data", path)
    _check_base64(data, 0, f"{path}.data")
    return PromptMedia(kind, media_type, data, "", name)


def _image_url(part: dict[str, Any], path: str) -> Part:
    """Reads an image in the form of OpenAI's chat."""
    value = part.get("image_url")
    url = value.get("url") if isinstance(value, dict) else value
    return _linked("image", _string({"url": url}, "url", path), "", f"{path}.image_url.url")


def _linked(kind: Literal["image", "file"], url: str, name: str, path: str) -> Part:
    if found := _DATA_URL.match(url):
        _check_base64(url, found.end(), path)
        return PromptMedia(kind, found[1] or "application/octet-stream", url[found.end() :], "", name)
    if not url.startswith(("https://", "http://")):
        raise Fault("EINVAL", f"{path}: expected an http or https address, or a data: URL in base64")
    return PromptMedia(kind, "", "", url, name)


_PARTS = {
    "text": _text_part,
    "input_text": _text_part,
    "image": _media_part,
    "file": _media_part,
    "image_url": _image_url,
}


def _check_base64(text: str, start: int, path: str) -> None:
    try:
        binascii.a2b_base64(text[start:].encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError) as problem:
        raise Fault("EINVAL", f"{path}: is not base64: {str(problem)[:100]}") from None


def _string(part: dict[str, Any], field: str, path: str, default: str | None = None) -> str:
    value = part.get(field, default)
    if not isinstance(value, str):
        raise Fault("EINVAL", f"{path}.{field}: expected a string, got {jsontext.type_name(value)}")
    return value


def _tool(offer: dict[str, Any], path: str) -> ToolOffer:
    """Reads a tool in our form, or in that of a vendor."""
    function = offer.get("function")
    tool: _Tool = jsontext.converted(function if isinstance(function, dict) else offer, _Tool, path)
    if not _TOOL_NAME.fullmatch(tool.name):
        raise Fault("EINVAL", f"{path}.name: {jsontext.shown(tool.name)} is not a valid name of a tool")
    schema = tool.schema or tool.input_schema or tool.parameters or {"type": "object", "properties": {}}
    return ToolOffer(tool.name, tool.description, schema)


def _choice(fields: _Fields) -> str:
    if len(fields.tools) > MAX_TOOLS:
        raise Fault("EINVAL", f"tools: {len(fields.tools)} are over the limit of {MAX_TOOLS}")
    return fields.tool_choice


def _parameters(value: dict[str, Any]) -> dict[str, Any]:
    own = set(_Fields.__struct_fields__)
    parameters = {key: each for key, each in value.items() if key not in own}
    for key in parameters:
        if key in RESERVED:
            raise Fault("EINVAL", f"{key}: cannot be set here; see docs/models.md, Input")
    if len(parameters) > MAX_PARAMETERS:
        raise Fault(
            "EINVAL", f"the input has {len(parameters)} parameters, over the limit of {MAX_PARAMETERS}"
        )
    return parameters


def remembered(message: Message) -> PromptMessage | None:
    """Returns a message of the log for a request, or None for an empty one, which providers refuse."""
    text = "".join(part.text for part in message.content)
    if message.role not in ("user", "assistant") or not text.strip():
        return None
    return PromptMessage(message.role, (PromptText(text),))  # type: ignore[arg-type]
