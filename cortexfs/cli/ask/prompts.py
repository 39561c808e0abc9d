"""The prompts of plugins and of MCP servers, as templates of a question: -t PLUGIN/PROMPT, and
-t SERVER.PROMPT -p ARGUMENT=VALUE.

Rules: the mount sends the whole text of a plugin's prompt, so no path that a plugin chose is opened here. It
is text with variables, and nothing else: a plugin does not choose attachments, or the model. The tree lists a
server's prompts, as the server reported them. The server makes each prompt in a run of SERVER.mcp, which the
mount allows or denies. It is text for a model, and no template: a dollar in it stays a dollar.
This file must never know the question.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from cortexfs.cli import mounts, texts
from cortexfs.cli.ask import template
from cortexfs.cli.ask.template import AskOptions
from cortexfs.cli.bounded import ask
from cortexfs.core import mcp_session, names
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE, nearest
from cortexfs.core.mcp_session import OBJECT, ListedPrompt

SECONDS = 1.0  # the time that a list waits for a mount
_END = f".{OBJECT}"
T = TypeVar("T")


class _Content(msgspec.Struct):
    type: str = ""
    text: str = ""
    data: str = ""
    uri: str = ""
    mimeType: str = ""
    resource: _Content | None = None
    blob: str = ""


class _Said(msgspec.Struct):
    role: Literal["user", "assistant"]
    content: _Content


class _Prompt(msgspec.Struct):
    messages: list[_Said]


class _Completion(msgspec.Struct):
    values: list[str] = []


class _Completed(msgspec.Struct):
    completion: _Completion


class _Schema(msgspec.Struct):
    prompts: list[ListedPrompt] = []


def load(name: str, given: str | None, values: dict[str, str]) -> tuple[AskOptions, dict[str, str]]:
    """Returns a template of the user, or a prompt of a plugin or an MCP server, and the variables that are
    still to be filled in."""
    if name in template.known():
        return template.load(name), values
    if (made := _of_server(name, given, values)) is not None:
        return made, {}
    return (_of_plugin(name, given) if "/" in name else template.load(name)), values


def descriptions(given: str | None) -> dict[str, str]:
    """Returns the descriptions of all prompts by name; none if no mount answers at once."""
    told = {name: one.description for name, one in of_plugins(given).items()}
    for name, one in of_servers(given).items():
        usage = " ".join(f"-p {each}=..." for each in one.required)
        told[name] = f"{one.description} {usage}".strip()
    return told


# Of plugins.


def _of_plugin(name: str, given: str | None) -> AskOptions:
    plugin, _, prompt = name.partition("/")
    if names.fault_of(plugin) or names.fault_of(prompt):
        names.check(name)
    there = texts.listed(mounts.answering(given), texts.PROMPT)
    if name not in there:
        hint = nearest(name, there) or "; see: ctx ask --templates"
        raise Fault("ENOENT", f"no plugin of this mount has a prompt {name!r}{hint}")
    return AskOptions(prompt=there[name].text)


def of_plugins(given: str | None) -> dict[str, ListedPrompt]:
    try:
        found = texts.listed(mounts.root(given), texts.PROMPT, SECONDS)
    except Fault:
        return {}
    return {name: AskOptions(prompt=one.text).listed(name, one.description) for name, one in found.items()}


# Of MCP servers.


def _of_server(name: str, given: str | None, values: Mapping[str, str]) -> AskOptions | None:
    """Returns the prompt made with these arguments, or None if the part before the first dot is no server."""
    server, _, prompt = name.partition(".")
    if not prompt or names.fault_of(server):
        return None
    root = mounts.answering(given)
    if not os.path.exists(f"{root}/tool/{server}{_END}"):
        return None
    known = {one.name: one for one in _listed(root, server, mounts.ANSWER_SECONDS)}
    if prompt not in known:
        hint = nearest(prompt, known) or "; see: ctx ask --templates"
        raise Fault("ENOENT", f"the MCP server {server} has no prompt {prompt!r}{hint}")
    _check(known[prompt], values)
    asked = {"name": prompt, "arguments": dict(values)}
    said = _asked(f"{root}/tool/{server}{_END}", mcp_session.GET_PROMPT, asked, _Prompt)
    return _options(said.messages)


def completions(
    name: str, given: str | None, argument: Mapping[str, str], values: Mapping[str, str]
) -> list[str]:
    """Returns the server's proposals for an argument (`name` and `value`); none if the server has none."""
    server, _, prompt = name.partition(".")
    asked: dict[str, Any] = {"ref": {"type": "ref/prompt", "name": prompt}, "argument": dict(argument)}
    asked |= {"context": {"arguments": dict(values)}} if values else {}
    object_ = f"{mounts.answering(given)}/tool/{server}{_END}"
    return _asked(object_, mcp_session.COMPLETE, asked, _Completed).completion.values


def of_servers(given: str | None) -> dict[str, ListedPrompt]:
    try:
        root = mounts.root(given)
        names = ask(lambda: "\n".join(os.listdir(f"{root}/tool")).encode(), SECONDS).decode().splitlines()
    except (Fault, OSError):
        return {}
    servers = sorted(name.removesuffix(_END) for name in names if name.endswith(_END))
    return {
        f"{server}.{one.name}": replace(one, name=f"{server}.{one.name}")
        for server in servers
        for one in _listed(root, server, SECONDS)
    }


def _listed(root: str, server: str, seconds: float) -> list[ListedPrompt]:
    try:
        data = ask(Path(f"{root}/tool/{server}{_END}.d/schema").read_bytes, seconds)
        return msgspec.json.decode(data, type=_Schema).prompts
    except (Fault, OSError, *UNREADABLE):
        return []


def _check(prompt: ListedPrompt, values: Mapping[str, str]) -> None:
    wanted = (*prompt.required, *prompt.optional)
    if unknown := sorted(values.keys() - set(wanted)):
        raise Fault("EINVAL", f"-p {unknown[0]}: there is no such argument{nearest(unknown[0], wanted)}")
    if missing := [one for one in prompt.required if one not in values]:
        raise Fault("EINVAL", f"{missing[0]} has no value; say -p {missing[0]}=VALUE")


def _asked(object_: str, method: str, params: Mapping[str, Any], kind: type[T]) -> T:
    from cortexfs.client import run, text  # a slow import that only making a prompt needs

    asked = msgspec.json.encode({"method": method, "params": params})
    said = text(run(object_, input=asked))
    try:
        return msgspec.json.decode(said, type=kind)
    except UNREADABLE as error:
        raise Fault("EPROTO", f"{object_} sent an answer to {method} that is not valid: {error}") from None


def _options(said: list[_Said]) -> AskOptions:
    """Returns options: the last message asks, with the person's own text. Earlier messages go before it."""
    texts = [(one.role, _text(one.content)) for one in said]
    files = tuple(file for one in said if (file := _file(one.content)))
    if not any(role == "assistant" for role, _ in texts):
        texts = [("user", "\n\n".join(text for _, text in texts if text))]
    last = texts.pop()[1] if texts and texts[-1][0] == "user" else ""
    before = tuple({"role": role, "content": text} for role, text in texts)
    return AskOptions(prompt=last.replace("$", "$$"), attachments=files, before=before)


def _text(content: _Content) -> str:
    if content.resource is not None:
        return content.resource.text
    return content.uri if content.type == "resource_link" else content.text


def _file(content: _Content) -> str:
    """Returns a picture, sound or file of the message, as an attachment."""
    part = content.resource or content
    data = part.blob or part.data
    return f"data:{part.mimeType or 'application/octet-stream'};base64,{data}" if data else ""
