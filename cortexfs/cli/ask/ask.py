"""`ctx ask`: one question to a model or an agent, and its answer.

Main path: `run` completes the options (template.py), reads the attachments (attach.py) and chooses the
session (place.py). The exchange of `ctx send` carries the question, and answer.py prints its frames.

Rules: every fault of a question that can be known is raised before it is sent. A question that is not kept is
asked in a temp session, which is in the daemon's memory alone and ends with the connection.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from cortexfs.chat.commands import ChatPlace
from cortexfs.chat.state import Talk
from cortexfs.cli import kept, mounts, objects, output, progress, talking
from cortexfs.cli.ask import answer, attach, place, prompts, template
from cortexfs.cli.ask.answer import Answer
from cortexfs.cli.ask.place import LastQuestion
from cortexfs.cli.ask.template import AskOptions
from cortexfs.cli.parser import FAIL_ON_DENIED_FLAG, Command, arg, flag
from cortexfs.cli.talk.send import APPROVE, carry_out, warn_of_unknown
from cortexfs.client import Failed, attaching, new_id
from cortexfs.core.errors import EXIT_OK, Fault, exit_status
from cortexfs.core.talk.requests import Input, Scope
from cortexfs.models.ask.model import parameters

REPEATED: Any = {"action": "append", "default": []}
# Fields of an input that are not options of a model.
FIELDS = ("content", "input", "messages", "role", "schema", "system", "task", "tool_choice", "tools")


def run(options: argparse.Namespace) -> int:
    if options.templates:
        return _list(options)
    request, values = _request(options), _pairs("-p", options.param)
    if options.template:
        found, values = prompts.load(options.template, options.root, values)
        request = found.under(request)
    if options.save:
        return _save(options, request, values)
    if values and not options.template:
        raise Fault("EINVAL", "-p sets a variable of a template; name the template with -t")
    root = mounts.answering(options.root)
    keeps, goes_on = kept.is_on() and not options.no_log, getattr(options, "continue")
    if not keeps and (goes_on or options.session):
        raise Fault("EINVAL", "--no-log (or ctx log off) keeps no sessions; leave out -c and --session")
    before = place.last(root) if goes_on else None
    if before:
        request = _continued(request, before)
    request = request.filled(values, _question(options.text, request.attachments))
    session = before.session if before else place.session_of(options.session)
    with _place(root, request, session, "private" if keeps else "temp") as (where, model):
        warn_of_unknown(root, options.approve)
        question = LastQuestion(root, model.whole, session, request.tools, request.system)
        return _ask(options, request, where, model, question if keeps else None)


def _request(options: argparse.Namespace) -> AskOptions:
    """Returns the options of the command line that a template may also have."""
    pairs = _pairs("-o", options.option)
    if wrong := sorted(pairs.keys() & set(FIELDS)):
        raise Fault("EINVAL", f"-o {wrong[0]}: is no option of a model; see: ctx ask --help")
    schema = options.schema
    if schema and (os.path.isfile(schema) or schema.endswith(".json")):
        schema = attach.file(schema).decode(errors="replace")
    if schema:
        from cortexfs.models.ask.structured import Schema  # a slow import that only schemas need

        Schema(answer.schema(schema))  # raises a Fault for a wrong schema
    return AskOptions(
        system=options.system or "",
        model=options.asked or "",
        options={
            key: value for name, text in pairs.items() for key, value in parameters(f"{name}={text}").items()
        },
        schema=schema or "",
        attachments=tuple(options.attach),
        tools=tuple(options.tool),
        extract=options.extract,
    )


def _pairs(option: str, arguments: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in arguments]
    if wrong := next((key for key, equals, _ in pairs if not (key and equals)), None):
        raise Fault("EINVAL", f"{option} {wrong}: say KEY=VALUE")
    return {key: value for key, _, value in pairs}


def _list(options: argparse.Namespace) -> int:
    templates = {name: template.load(name) for name in template.known()}
    templates |= {
        name: AskOptions(prompt=about) for name, about in prompts.descriptions(options.root).items()
    }
    values = [{"template": name, **msgspec.to_builtins(entry)} for name, entry in templates.items()]
    rows = [(name, entry.model or "-", entry.prompt or entry.system) for name, entry in templates.items()]
    nothing = "there are no templates; make one: ctx ask --save NAME -s 'be terse'"
    output.print_rows(options.json, values, ("template", "model", "prompt"), rows, nothing)
    return EXIT_OK


def _save(options: argparse.Namespace, request: AskOptions, values: dict[str, str]) -> int:
    if attach.STDIN in request.attachments:
        raise Fault("EINVAL", "a template cannot keep standard input (-a -); attach a file or an address")
    if request.before:
        raise Fault("EINVAL", f"a template has one prompt; {options.template} has several, so use it itself")
    prompt = " ".join(options.text) or request.prompt
    files = tuple(each if attach.is_address(each) else os.path.abspath(each) for each in request.attachments)
    request = replace(request, prompt=prompt, attachments=files, defaults=request.defaults | values)
    path = template.save(options.save, request)
    output.say(f"saved {path}; use it: ctx ask -t {options.save}")
    return EXIT_OK


def _continued(request: AskOptions, before: LastQuestion) -> AskOptions:
    if request.tools and not before.tools:
        raise Fault(
            "EINVAL", "the session of the last question has no tools, and none can be added; leave out -T"
        )
    same = {"model": before.object, "tools": request.tools or before.tools}
    return replace(request, **same, system=request.system or before.system)


def _question(words: list[str], attachments: tuple[str, ...]) -> str:
    """Returns the text of the question. Standard input is appended if it is a pipe or a file."""
    text = " ".join(words)
    kind = os.fstat(0).st_mode
    is_fed = stat.S_ISFIFO(kind) or stat.S_ISREG(kind) or stat.S_ISSOCK(kind)
    if not is_fed or attach.STDIN in attachments:
        return text
    piped = attach.piped().decode(errors="replace").rstrip("\n")
    return "\n\n".join(filter(None, (text, piped)))


@contextlib.contextmanager
def _place(
    root: str, request: AskOptions, session: str, scope: Scope
) -> Iterator[tuple[ChatPlace, ChatPlace]]:
    """Yields the object to ask, and the named object. With tools, an agent that has the tools is asked."""
    model = talking.chat_place(root, request.model or objects.MAIN, scope)
    if not request.tools:
        yield model, model
        return
    if model.is_agents:
        raise Fault("EINVAL", f"{model.whole} is an agent, with tools of its own; -T goes with a model")
    holder = place.agent_of(session)
    with place.offered(root, holder.partition("/")[2], model.name, request.tools):
        yield talking.chat_place(root, f"home/{os.getuid()}/{holder}", scope), model


def _ask(
    options: argparse.Namespace,
    request: AskOptions,
    where: ChatPlace,
    model: ChatPlace,
    question: LastQuestion | None,
) -> int:
    content = _input(request, where, model)
    session = question.session if question else place.new_session()
    cwd = where.beginning(session) if where.is_agents else None  # a model needs no directory
    talk = Talk(where.name, session, where.scope, new_id, cwd, where.sight(session, cwd))
    with contextlib.ExitStack() as waiting:
        waiting.enter_context(progress.shown(f"waiting for {model.name}"))
        reply = Answer(request.extract or options.json, waiting)
        with where.connect() as conversation:
            try:
                status = carry_out(options, conversation, talk, content, reply.show, reply.hear)
            except Failed as failed:
                if options.json:  # the output names the session, in which the run may go on
                    _print(options, request, reply, model, session, exit_status(failed.code))
                raise
            finally:
                if question and talk.last:
                    place.remember(question)
    return _print(options, request, reply, model, session, status)


def _print(
    options: argparse.Namespace,
    request: AskOptions,
    reply: Answer,
    model: ChatPlace,
    session: str,
    status: int,
) -> int:
    """Print the held answer, and the usage if wanted."""
    text, is_block = reply.text, request.extract and status == EXIT_OK
    fields, sentence = answer.usage(reply.tokens, model.name) if options.json or options.usage else ({}, "")
    if options.json:
        where = {"object": model.whole, "session": session, "run": reply.run, "status": status}
        answer_text = answer.code_block(text) if is_block else text.removesuffix("\n")
        output.emit({**where, "answer": answer_text, **fields})
    elif is_block:
        sys.stdout.write(answer.code_block(text))
    if options.usage:
        output.say(sentence)
    return status


def _input(request: AskOptions, where: ChatPlace, model: ChatPlace) -> Input:
    """Returns the question as sockets take it. Raises a Fault if this model or agent cannot be asked so."""
    if not (request.prompt.strip() or request.attachments):
        raise Fault("EINVAL", "there is no question; say it, or pipe it in: git diff | ctx ask what is this")
    if where.is_agents and (request.schema or request.options):
        raise Fault(
            "EINVAL", "--schema and -o are for a model without tools; an agent answers as its files say"
        )
    can = attaching.abilities(model.root, model.path) if request.attachments else []
    parts = [part for source in request.attachments for part in attaching.parts(*attach.read(source), can)]
    more: dict[str, Any] = {**request.options}
    if request.system:
        more["system"] = request.system
    if request.schema:
        more["schema"] = answer.schema(request.schema)
    if not (parts or more or request.before):
        return request.prompt
    text = [{"type": "text", "text": request.prompt}] if request.prompt else []
    content = [*text, *parts]
    if request.before:
        return {"messages": [*request.before, {"role": "user", "content": content}], **more}
    return {"content": content, **more}


_TEXT = "the question; standard input is appended where it is a pipe or a file"
_ATTACH = "attach a text, a picture or a PDF; - is standard input; may be repeated"
_SCHEMA = "the answer is JSON of this schema: a file, or the fields, as 'name, age int, bio: one sentence'"
_TOOL = "offer it for this question, by name or pattern; may be repeated"
COMMANDS = {
    "ask": Command(
        run,
        (
            arg("text", "TEXT", _TEXT, nargs="*", default=[]),
            arg("-m --model", "MODEL", "a model or an agent (default: model/main)", dest="asked"),
            arg("-s --system", "SYSTEM", "the system prompt"),
            arg("-t --template", "TEMPLATE", "begin with the options of this template"),
            arg("-p --param", "KEY=VALUE", "a variable of the template", **REPEATED),
            arg("-a --attach", "FILE|URL|-", _ATTACH, **REPEATED),
            arg("-o --option", "OPTION=VALUE", "a parameter of the model, as temperature=0", **REPEATED),
            arg("--schema", "FILE|FIELDS", _SCHEMA),
            arg("-T --tool", "TOOL", _TOOL, **REPEATED),
            APPROVE,
            FAIL_ON_DENIED_FLAG,
            flag("-c --continue", "go on with the last question"),
            arg("--session", "SESSION", "ask in this session of the model; begin it if there is none"),
            flag("-x --extract", "print the first code block of the answer, and nothing else"),
            flag("-u --usage", "print the tokens used, and their price by prices.toml, on standard error"),
            flag("--json", "print the answer as JSON, with its session and the tokens used"),
            flag("--no-log", "do not keep the question and its answer"),
            arg("--save", "NAME", "ask nothing, and keep the options as a template"),
            flag("--templates", "list the templates"),
        ),
        (
            "git diff | ctx ask write a commit message",
            "ctx ask -m openai/gpt-4o -a plan.pdf -a notes.md what is missing",
            "ctx ask --schema 'name, age int' 'invent a dog' | jq .name",
            "ctx ask -T fs.read -T 'text.*' how many words has README.md",
            "ctx ask -c and in French",
            "ctx ask -x 'a shell script that lists open ports' > ports.sh",
            "ctx ask --save fr -s 'translate into $language' -p language=French",
            "ctx ask -t fr -p language=Danish good morning",
        ),
        intermixed=True,
    ),
}
