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
from cortexfs.cli.parser import check_known
from cortexfs.core import mcp_session, names
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE, nearest
from cortexfs.core.mcp_session import OBJECT, ListedPrompt

SECONDS = 1.0  # the time that a list waits for a mount
_END = f".{OBJECT}"
_MEND = "see: ctx ask --templates"
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


def load(name: str, root_option: str | None, values: dict[str, str]) -> tuple[AskOptions, dict[str, str]]:
    """Returns a template of the user, or a prompt of a plugin or an MCP server, and the variables that are
    still to be filled in."""
    if name in template.known():
        return template.load(name), values
    if (prompt := _of_server(name, root_option, values)) is not None:
        return prompt, {}
    return (_of_plugin(name, root_option) if "/" in name else template.load(name)), values


def descriptions(root_option: str | None) -> dict[str, str]:
    """Returns the descriptions of all prompts by name; none if no mount answers at once."""
    found = {name: prompt.description for name, prompt in of_plugins(root_option).items()}
    for name, prompt in of_servers(root_option).items():
        usage = " ".join(f"-p {each}=..." for each in prompt.required)
        found[name] = f"{prompt.description} {usage}".strip()
    return found


# Of plugins.


def _of_plugin(name: str, root_option: str | None) -> AskOptions:
    plugin, _, prompt = name.partition("/")
    if names.fault_of(plugin) or names.fault_of(prompt):
        names.check(name)
    texts_by_name = texts.listed(mounts.answering(root_option), texts.PROMPT)
    check_known(name, texts_by_name, f"no plugin of this mount has a prompt {name!r}", _MEND)
    return AskOptions(prompt=texts_by_name[name].text)


def of_plugins(root_option: str | None) -> dict[str, ListedPrompt]:
    try:
        found = texts.listed(mounts.root(root_option), texts.PROMPT, SECONDS)
    except Fault:
        return {}
    return {
        name: AskOptions(prompt=prompt.text).listed(name, prompt.description)
        for name, prompt in found.items()
    }


# Of MCP servers.


def _of_server(name: str, root_option: str | None, values: Mapping[str, str]) -> AskOptions | None:
    """Returns the prompt made with these arguments, or None if the part before the first dot is no server."""
    server, _, prompt = name.partition(".")
    if not prompt or names.fault_of(server):
        return None
    root = mounts.answering(root_option)
    if not os.path.exists(f"{root}/tool/{server}{_END}"):
        return None
    known = {row.name: row for row in _listed(root, server, mounts.ANSWER_SECONDS)}
    check_known(prompt, known, f"the MCP server {server} has no prompt {prompt!r}", _MEND)
    _check(known[prompt], values)
    params = {"name": prompt, "arguments": dict(values)}
    answer = _answer(f"{root}/tool/{server}{_END}", mcp_session.GET_PROMPT, params, _Prompt)
    return _options(answer.messages)


def completions(
    name: str, root_option: str | None, argument: Mapping[str, str], values: Mapping[str, str]
) -> list[str]:
    """Returns the server's proposals for an argument (`name` and `value`); none if the server has none."""
    server, _, prompt = name.partition(".")
    params: dict[str, Any] = {"ref": {"type": "ref/prompt", "name": prompt}, "argument": dict(argument)}
    params |= {"context": {"arguments": dict(values)}} if values else {}
    object_ = f"{mounts.answering(root_option)}/tool/{server}{_END}"
    return _answer(object_, mcp_session.COMPLETE, params, _Completed).completion.values


def of_servers(root_option: str | None) -> dict[str, ListedPrompt]:
    try:
        root = mounts.root(root_option)
        names = ask(lambda: "\n".join(os.listdir(f"{root}/tool")).encode(), SECONDS).decode().splitlines()
    except (Fault, OSError):
        return {}
    servers = sorted(name.removesuffix(_END) for name in names if name.endswith(_END))
    return {
        f"{server}.{prompt.name}": replace(prompt, name=f"{server}.{prompt.name}")
        for server in servers
        for prompt in _listed(root, server, SECONDS)
    }


def _listed(root: str, server: str, seconds: float) -> list[ListedPrompt]:
    try:
        data = ask(Path(f"{root}/tool/{server}{_END}.d/schema").read_bytes, seconds)
        return msgspec.json.decode(data, type=_Schema).prompts
    except (Fault, OSError, *UNREADABLE):
        return []


def _check(prompt: ListedPrompt, values: Mapping[str, str]) -> None:
    arguments = (*prompt.required, *prompt.optional)
    if unknown := sorted(values.keys() - set(arguments)):
        raise Fault("EINVAL", f"-p {unknown[0]}: there is no such argument{nearest(unknown[0], arguments)}")
    if missing := [argument for argument in prompt.required if argument not in values]:
        raise Fault("EINVAL", f"{missing[0]} has no value; say -p {missing[0]}=VALUE")


def _answer(object_: str, method: str, params: Mapping[str, Any], kind: type[T]) -> T:
    from cortexfs.client import run, text  # a slow import that only making a prompt needs

    request = msgspec.json.encode({"method": method, "params": params})
    output = text(run(object_, input=request))
    try:
        return msgspec.json.decode(output, type=kind)
    except UNREADABLE as error:
        raise Fault("EPROTO", f"{object_} sent an answer to {method} that is not valid: {error}") from None


def _options(messages: list[_Said]) -> AskOptions:
    """Returns options: the last message asks, with the person's own text. Earlier messages go before it."""
    texts = [(message.role, _text(message.content)) for message in messages]
    files = tuple(file for message in messages if (file := _file(message.content)))
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
