"""The addresses of the page: its files, and below /api the actions of its user on the mount.

    answer = await Routes(gate, place, nursery).answer(asked)

Rules: the page's files hold no user's data, and everybody may get them. All else needs the token, except the
exchange of a ticket for it, the proof of our identity, and the files of a frame (panels.py). No GET below
/api changes anything. Actions that a command has are done by that command (children.py); no text of a
request becomes an option.
This file must never know sockets or HTML.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

import msgspec
import trio

from cortexfs.client import attaching, media
from cortexfs.client.sorting import new_id
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE, shown
from cortexfs.core.talk.requests import Approve, Cancel, Decision, Respond, Resume, Send
from cortexfs.web import apps, children, controls, files, markdown, panels, setup
from cortexfs.web.children import WebPlace
from cortexfs.web.gate import Gate, Refusal
from cortexfs.web.holding import Holders
from cortexfs.web.http import Emit, Events, PageAnswer, PageRequest, answer_of
from cortexfs.web.lines import ask, opened
from cortexfs.web.telling import (
    SCOPES,
    SessionAddress,
    Telling,
    event,
    nodes,
    object_named,
    past,
    stored,
    waited,
)

DECISIONS: dict[str, Decision] = {each: each for each in ("allow_once", "allow_session", "deny")}
TOOL_TEXTS = ("description", "effects", "status", "cap")
MEDIA_READERS = 4  # of tools' files at a time: the file system of any may not answer
MAX_MEDIA = 64 << 20  # bytes of a file that a tool made
PLAYED = ("image/", "audio/", "video/")
MAX_NAME = 255  # characters of a file's name
# Addresses that only show data, and the commands that print it.
LISTS = {
    "/api/agents": ("agent", "list", "--json"),
    "/api/providers": ("provider", "list", "--json"),
    "/api/plugins": ("plugin", "list", "--json"),
    "/api/ui": ("plugin", "ui", "--json"),
    "/api/status": ("status", "--json"),
    "/api/servers": ("mcp", "list", "--json"),
    "/api/usage": ("log", "--usage", "--json"),
    "/api/doctor": ("doctor", "--json"),
}

Route: TypeAlias = Callable[[PageRequest], Awaitable[PageAnswer | Events]]


class Routes:
    def __init__(self, gate: Gate, place: WebPlace, nursery: trio.Nursery) -> None:
        self._gate = gate
        self._place = place
        self._files = files.all_files()
        self._readers = trio.CapacityLimiter(MEDIA_READERS)
        self._holders = Holders(place, nursery)
        self._nursery = nursery
        self._frames = panels.PanelFrames(place)
        self._get: dict[str, Route] = {
            "/api/objects": self.objects,
            "/api/sessions": self.sessions,
            "/api/search": self.search,
            "/api/past": self.past,
            "/api/events": self.events,
            "/api/inbox": self.inbox,
            "/api/tool": self.tool,
            "/api/plugin": self.plugin,
            "/api/policy": self.policy,
            "/api/controls": self.controls,
        }
        self._post: dict[str, Route] = {
            "/api/send": self.send,
            "/api/cancel": self.cancel,
            "/api/approve": self.approve,
            "/api/answer": self.respond,
            "/api/attach": self.attach,
            "/api/remove": self.remove,
            "/api/rename": self.rename,
            "/api/markdown": self.markdown,
            "/api/run": self.run,
            "/api/mcp/login": self.login,
            "/api/media": self.media,
            "/api/ticket": self.ticket,
            "/api/control": self.control,
            **dict.fromkeys(setup.STEPS, self.setup),
            **self._frames.routes,
            **apps.McpApps(place, self._frames).routes,
        }

    async def answer(self, request: PageRequest) -> PageAnswer | Events:
        if request.method in ("GET", "HEAD") and (file := self._files.get(request.path)):
            return file
        if request.method == "GET" and (framed := self._frames.answer(request.path, request.origin)):
            return framed
        if not request.path.startswith("/api/"):
            raise Refusal(404, "ENOENT", "there is no such address")
        if request.path == "/api/enter" and request.method == "POST":
            return answer_of({"token": self._gate.enter(request.text("ticket"))})
        if request.path == "/api/prove" and request.method == "POST":
            return answer_of({"proof": self._gate.proof(request.text("nonce"))})
        if request.path == "/api/keep" and request.is_known:
            return answer_of({"key": self._gate.keeping})
        if not request.is_known:
            raise Refusal(401, "EACCES", "open the link that ctx web printed")
        if request.method == "GET" and request.path in LISTS:
            return answer_of(await children.command(self._place, LISTS[request.path]))
        if route := {"GET": self._get, "POST": self._post}.get(request.method, {}).get(request.path):
            return await route(request)
        raise Refusal(404, "ENOENT", "there is no such address")

    async def sessions(self, request: PageRequest) -> PageAnswer:
        """Returns the sessions, newest first. Active sessions are held from now on."""
        found = await waited(partial(stored, self._place.root))
        for row in found:
            if row["state"] == "active":
                address = SessionAddress(row["object"], SCOPES[row["space"]], row["session"])
                self._nursery.start_soon(self._holders.find, address)
        return answer_of(found)

    async def objects(self, request: PageRequest) -> PageAnswer:
        return answer_of(await waited(self._place.objects))

    async def search(self, request: PageRequest) -> PageAnswer:
        words = ("log", "-n", "100", "-q", f" {request.text('q')}", "--json")  # the space: it is no option
        return answer_of(await children.command(self._place, words))

    async def past(self, request: PageRequest) -> PageAnswer:
        before = request.text("before", "")
        if before and not (before.isascii() and before.isdecimal() and len(before) < 16):
            raise Fault("EINVAL", "before: expected the number of an earlier answer")
        telling = Telling(self._place, SessionAddress.of(request))
        return answer_of(await past(telling, int(before) if before else None))

    async def events(self, request: PageRequest) -> Events:
        address, after = SessionAddress.of(request), request.text("after", "") or None
        return partial(self._follow, address, after)

    async def _follow(self, address: SessionAddress, after: str | None, emit: Emit) -> None:
        """Emit all events of a session after the event `after`."""
        telling = Telling(self._place, address)
        async with opened(self._place, address.object) as line:
            await line.say(Resume(session=address.session, scope=address.scope, after=after, id="page"))
            await emit(b'data: {"type":"follows"}\n\n')
            async for found in line.heard():
                await emit(await telling.events(found))

    async def inbox(self, request: PageRequest) -> Events:
        return self._holders.inbox

    async def send(self, request: PageRequest) -> PageAnswer:
        input_ = request.fields.get("input")
        if not isinstance(input_, str | dict):
            raise Fault("EINVAL", "input: expected a text or an object")
        address = SessionAddress.of(request)
        cwd = request.text("cwd", "") or None
        send = Send(
            id=request.text("id"), session=address.session, scope=address.scope, input=input_, cwd=cwd
        )
        return answer_of({"state": await self._holders.send(address, send)})

    async def cancel(self, request: PageRequest) -> PageAnswer:
        await ask(self._place, object_named(request), Cancel(id=request.text("run")))
        return answer_of({})

    async def approve(self, request: PageRequest) -> PageAnswer:
        decision, changed = DECISIONS.get(request.text("decision")), request.fields.get("input")
        if decision is None or not isinstance(changed, dict | None):
            raise Fault(
                "EINVAL", f"expected a decision ({', '.join(DECISIONS)}), and an input that is an object"
            )
        approve = Approve(
            run=request.text("run"), call=request.text("call"), decision=decision, input=changed, id=new_id()
        )
        await ask(self._place, object_named(request), approve)
        return answer_of({})

    async def attach(self, request: PageRequest) -> PageAnswer:
        """Returns the file as parts of a message, if the object's model takes it."""
        object_, name = object_named(request), request.text("name")
        try:
            data = base64.b64decode(request.text("data"), validate=True)
        except ValueError:
            raise Fault("EINVAL", "data: expected base64") from None
        root = self._place.root
        can = await waited(partial(attaching.abilities, root, f"{root}/{object_}"))
        return answer_of(attaching.parts(name[:MAX_NAME], data, can))

    async def respond(self, request: PageRequest) -> PageAnswer:
        """Answer a tool's question. An answer without content declines it."""
        content = request.fields.get("content")
        if not isinstance(content, dict | None):
            raise Fault("EINVAL", "content: expected an object")
        run, question = request.text("run"), request.text("question")
        respond = Respond(run=run, question=question, content=content, id=new_id())
        await ask(self._place, object_named(request), respond)
        return answer_of({})

    async def remove(self, request: PageRequest) -> PageAnswer:
        address = SessionAddress.of(request)
        words = ("session", "rm", "--yes", "--scope", address.scope, "--", address.object, address.session)
        await children.output(self._place, words)
        return answer_of({})

    async def rename(self, request: PageRequest) -> PageAnswer:
        address = SessionAddress.of(request)
        words = ("session", "rename", "--scope", address.scope, "--", address.object, address.session)
        await children.output(self._place, (*words, request.text("name")))
        return answer_of({})

    async def markdown(self, request: PageRequest) -> PageAnswer:
        """Returns how much of an unfinished text is settled, and the nodes of both parts."""
        text = request.text("text")
        done = markdown.settled(text[: markdown.MAX_TEXT])
        return answer_of(
            {"done": done, "settled": await nodes(text[:done]), "live": await nodes(text[done:])}
        )

    async def setup(self, request: PageRequest) -> PageAnswer:
        """Run a command that changes the mount's setup. Returns its output and notes."""
        step = setup.STEPS[request.path](request)
        done = await children.output(self._place, step.words, step.input)
        return answer_of(done._asdict())

    async def login(self, request: PageRequest) -> Events:
        """Log in at an MCP server. The events are the command's notes, as they come."""
        words = ("mcp", "login", "--no-browser", "--", request.text("name"))
        start = partial(children.follow, self._place, words)
        return lambda emit: start(lambda text: emit(b"data: %s\n\n" % msgspec.json.encode({"text": text})))

    async def policy(self, request: PageRequest) -> PageAnswer:
        """Returns whether a caller may run an object, and why."""
        words = ("policy", "explain", "--json", "--", request.text("caller"), request.text("object"))
        return answer_of(await children.command(self._place, words))

    async def plugin(self, request: PageRequest) -> PageAnswer:
        """Returns the permissions and settings of a plugin."""
        name = request.text("name")
        found = {"permissions": ("permissions", "--json"), "settings": ("config", "--fields")}
        facts: dict[str, object] = {}
        for key, (verb, flag) in found.items():
            try:
                facts[key] = await children.command(self._place, ("plugin", verb, flag, "--", name))
            except Fault as fault:  # a plugin of another kind, which has none
                facts[key] = fault.message
        return answer_of(facts)

    async def controls(self, request: PageRequest) -> PageAnswer:
        return answer_of(await controls.listed(self._place.root, object_named(request)))

    async def control(self, request: PageRequest) -> PageAnswer:
        await controls.write(
            self._place.root, object_named(request), request.text("name"), request.text("text")
        )
        return answer_of({})

    async def tool(self, request: PageRequest) -> PageAnswer:
        """Returns the facts for running a tool: its description, schema and effects, and its latest runs."""
        path = trio.Path(f"{self._place.root}/{object_named(request)}.d")
        try:
            schema = msgspec.json.decode(await (path / "schema").read_bytes())
            texts = {name: await (path / name).read_text() for name in TOOL_TEXTS}
        except (OSError, *UNREADABLE) as problem:
            raise Fault("ENOENT", f"the tool {request.text('object')} cannot be read: {problem}") from None
        runs = await controls.runs(self._place.root, object_named(request))
        is_dry = "dry_run_flag" in texts["cap"].split()
        return answer_of(texts | {"schema": schema, "dry": is_dry, "runs": runs})

    async def run(self, request: PageRequest) -> Events:
        input_ = request.fields.get("input")
        if not isinstance(input_, dict):
            raise Fault("EINVAL", "input: expected an object")
        words = ("--dry-run",) if request.fields.get("dry") is True else ()
        start = partial(children.run_object, self._place, object_named(request), words)
        text = msgspec.json.encode(input_).decode()
        return lambda emit: start(text, lambda frame: emit(event(frame)))

    async def media(self, request: PageRequest) -> PageAnswer:
        """Returns a picture, sound or film that a tool made. Its first bytes decide its type."""
        url = request.text("url")
        late = f"{shown(url[:200])} cannot be read, as its file system does not answer"
        data = await waited(partial(media.at, url, MAX_MEDIA), late, self._readers)
        kind = media.mime_of(data or b"")
        if not data or not kind or not kind.startswith(PLAYED):
            most = f"of {MAX_MEDIA >> 20} MiB at most"
            raise Fault("ENOENT", f"{shown(url[:200])} is not a picture, sound or film {most}, or is gone")
        return PageAnswer(data, kind)

    async def ticket(self, request: PageRequest) -> PageAnswer:
        """Returns another link that works once, for another browser of the same user. It begins with the
        request's origin, to which `ssh -L` may lead from another port."""
        return answer_of({"link": f"{request.origin}/#ticket={self._gate.ticket()}"})
