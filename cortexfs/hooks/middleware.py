"""The hooks around one call of a tool: middleware may change it, and listeners get its events.

    hooked = middleware.of(site, tool)              None if no plugin has a hook: the only cost then
    input_, notes = await hooked.before(input_)     the input for the tool; a Fault forbids the run
    hooked.begin(input_)                            the tool starts
    output, refused, notes = await hooked.after(output, fault)
    hooked.end(output, fault)                       instead of `after`, when no plugin is to be asked

Main path: the plugins with middleware:pre in order, each with the input that the plugin before it returned;
the event tool:pre-execute; the tool; the plugins with middleware:post with its output; tool:post-execute.

Rules: the first plugin that aborts ends the call. A plugin that fails or times out ends the call too, unless
the configuration says open. Each change is reported as a note, for the log of the session.
This file must never know who runs the tool.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Observer
from cortexfs.core.hooks import (
    MAX_SHOWN,
    POST,
    PRE,
    STAGE_NAMES,
    STAGES,
    TOOL_EVENTS,
    Failure,
    HookedOutput,
    HookedResult,
    HookResult,
    heard,
    heard_args,
    note,
    refusal,
)
from cortexfs.core.hostcalls import Plugin
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.safe_text import one_line
from cortexfs.hooks.events import HookEvents
from cortexfs.hooks.registry import Hooks, Site
from cortexfs.pool.pool import Pool

BEFORE, AFTER = TOOL_EVENTS
CUT = f"over {MAX_SHOWN >> 10} KiB, the limit for plugins"
MAX_HELD = 64 << 20  # bytes of inputs and outputs held at a time for one user

log = logging.getLogger("cortexfs")

_results = msgspec.json.Decoder(HookResult)


class Middleware:
    def __init__(self, pool: Pool, failure: Failure = "closed") -> None:
        self.hooks = Hooks(pool, failure)
        self.events = HookEvents(self.hooks)
        self.held: Counter[int] = Counter()  # by uid

    def status_lines(self) -> list[str]:
        """Returns lines for the status: the hooks of each plugin, in the order in which plugins are asked."""
        lines = [f"hooks of {plugin.name}: {' '.join(plugin.hooks)}" for plugin in self.hooks.plugins]
        return [*lines, *([f"events dropped: {self.events.dropped}"] if lines else ())]

    def of(self, site: Site, tool: str) -> MiddlewareCall | None:
        return MiddlewareCall(self, site, tool) if self.hooks.of_tools and not site.identity.unheard else None


class MiddlewareCall:
    def __init__(self, middleware: Middleware, site: Site, tool: str) -> None:
        self._hooks = middleware.hooks
        self._events = middleware.events
        self._held = middleware.held
        self._own = 0  # bytes held for this call
        self._site = site
        self._tool = tool
        self._input: dict[str, Any] = {}
        self._start = 0.0
        self.is_begun = False  # whether the tool may run or has run
        self.changed_by = ""

    @property
    def holds(self) -> bool:
        """Returns True if middleware gets the output before the caller."""
        return bool(self._hooks.of(POST))

    @property
    def listens(self) -> bool:
        """Returns True if any plugin gets the output."""
        return self.holds or bool(self._hooks.of(AFTER))

    @property
    def is_open(self) -> bool:
        return self._hooks.failure == "open"

    def hold(self, size: int) -> None:
        """Count `size` more bytes as held for this call. Raises EAGAIN if the user's calls hold too many."""
        self._own += size
        self._held[self._site.identity.uid] += size
        if self._held[self._site.identity.uid] > MAX_HELD:
            raise Fault("EAGAIN", f"{MAX_HELD >> 20} MiB of your calls wait for plugins; try again later")

    def let_go(self) -> None:
        uid = self._site.identity.uid
        self._held[uid] -= self._own
        self._own = 0
        if not self._held[uid]:
            del self._held[uid]

    async def before(self, input_: dict[str, Any] | None) -> tuple[dict[str, Any], list[Observer]]:
        """Ask the middleware. Returns the tool's input. `input_` is None if it is too large to be shown."""
        notes: list[Observer] = []
        await self._hooks.follow(TOOL_EVENTS, self._site)
        for plugin in self._hooks.of(PRE):
            if input_ is None:
                self._failed(plugin.name, PRE, Fault("EMSGSIZE", f"the input is {CUT}"))
                continue
            answer = await self._ask(plugin, PRE, {"toolCall": self._call(input_)})
            if answer.abort is not None:
                raise refusal(plugin.name, answer.abort)
            if answer.modify_input is not None and answer.modify_input != input_:
                input_, self.changed_by = answer.modify_input, plugin.name
                notes.append(self._note(plugin, input=input_))
        return input_ or {}, notes

    def begin(self, input_: dict[str, Any]) -> None:
        self._input, self._start, self.is_begun = input_, time.monotonic(), True
        self._events.tell(BEFORE, self._site, toolName=self._tool, args=heard_args(input_))

    async def after(self, output: str, fault: Fault | None, missing: int = 0) -> HookedOutput:
        """Ask the middleware about the tool's end. `missing` is the number of bytes that `output` lacks."""
        result = self._result(output, fault)
        notes: list[Observer] = []
        try:
            large = missing or len(output) > MAX_SHOWN or len(output.encode()) > MAX_SHOWN
            if large:
                self.too_large()
            for plugin in () if large else self._hooks.of(POST):
                content = {"toolCall": self._call(self._input), "toolResult": result}
                answer = await self._ask(plugin, POST, content)
                if answer.abort is not None:
                    raise refusal(plugin.name, answer.abort)
                if answer.modify_output is not None and answer.modify_output != result.output:
                    result = msgspec.structs.replace(result, output=answer.modify_output)
                    notes.append(self._note(plugin, output=answer.modify_output))
        except Fault as failure:
            self.end("", failure)
            return HookedOutput("", failure, notes)
        self._tell(heard(result, missing and len(output) + missing))
        return HookedOutput(result.output, None, notes)

    def end(self, output: str, fault: Fault | None, length: int = 0) -> None:
        """Report the tool's end without asking middleware. `length` is the length of the whole output."""
        self._tell(heard(self._result(output, fault), length))

    def too_large(self) -> None:
        """Raises a Fault for an output that is too large to show, unless failures may pass."""
        for plugin in self._hooks.of(POST):
            self._failed(plugin.name, POST, Fault("EFBIG", f"the output is {CUT}"))

    def _tell(self, result: HookedResult) -> None:
        self._events.tell(AFTER, self._site, toolName=self._tool, result=result)

    def _note(self, plugin: Plugin, **changed: Any) -> Observer:
        return note(plugin.name, self._tool, self._site.call, **changed)

    def _call(self, input_: dict[str, Any]) -> dict[str, Any]:
        # Published plugins read `name`; the reference has toolName.
        return {"toolName": self._tool, "name": self._tool, "args": input_}

    def _result(self, output: str, fault: Fault | None) -> HookedResult:
        spent = round((time.monotonic() - self._start) * 1000)
        if fault is None:
            return HookedResult(self._tool, True, output, spent, None)
        why = fault.message or ("cancelled" if fault.code == "ECANCELED" else fault.code)
        return HookedResult(self._tool, False, output, spent, why)

    async def _ask(self, plugin: Plugin, stage: str, content: dict[str, Any]) -> HookResult:
        """Returns the plugin's answer; an empty result if the plugin failed and failures may pass."""
        site = self._site
        about = {"stage": STAGE_NAMES[stage], "sessionId": site.session, "turnId": site.turn, **content}
        try:
            answer = _results.decode(
                await self._hooks.call(plugin, STAGES[stage], site, msgspec.json.encode(about))
            )
            if answer.modify_input is not None and len(msgspec.json.encode(answer.modify_input)) > MAX_SHOWN:
                raise Fault("EMSGSIZE", f"its changed input is {CUT}")
            return answer
        except Fault as fault:
            self._failed(plugin.name, stage, fault)
        except UNREADABLE as error:
            self._failed(plugin.name, stage, Fault("EPROTO", f"its answer is not a result: {error}"))
        return HookResult()

    def _failed(self, name: str, stage: str, fault: Fault) -> None:
        """Raise the Fault, or log it if failures may pass."""
        subject = f"the plugin {name} could not be asked {'before' if stage == PRE else 'after'} this call of"
        why = f"{subject} {self._tool}: {fault.message}"
        if not self.is_open:
            raise Fault("EPROTO" if fault.code == "ECANCELED" else fault.code, why)
        log.warning("middleware: %s; the call goes on, as plugins.hook_failure is open", one_line(why))
