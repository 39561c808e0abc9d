"""The loop of an agent: ask its model, run the calls that are allowed, tell it the results, and repeat.

    agents = Agents(world)
    driver = agents.driver(object_)     a Driver like a model's (models/ask/driver.py), used as those are

Main path: `_Run.answer` builds the window, `_ask` has the model answer, `_calls` runs the calls side by side.
Each call is decided (permissions.py), asked about if need be, and run in a host that acts as the person and
sees no more than the agent's mount table. Each decision is logged with its reason and rule.

Rules: a model only ever proposes. A tool's output is data, which allows nothing. A run has limits of its own
(budget.py), each with an end of its own. The model is told of a call that fails, and may try something else;
a limit that is reached ends the run with a Fault.
This file must never know sockets, runners or how a host is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import trio
from msgspec.structs import replace

from cortexfs.agents import calls, nested, place
from cortexfs.agents.budget import RunBudget, limited
from cortexfs.agents.permissions import Powers, delegates, effects_in_words, setup_of
from cortexfs.agents.ports import AgentPorts
from cortexfs.agents.question import ModelQuestion, ModelReply, message
from cortexfs.agents.server_questions import CallQuestions, QuestionPorts
from cortexfs.agents.toolbox import Toolbox, meaning
from cortexfs.agents.view import home_of
from cortexfs.agents.window import text_protocol, wording
from cortexfs.agents.window.context import Pack, WindowParts, budget, history_room, pinned_by, unpinned
from cortexfs.agents.window.window import AgentWindow
from cortexfs.core import frames, hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import CallOutcome
from cortexfs.core.policy.decision import Decision
from cortexfs.core.registry import Object
from cortexfs.models.ask import question as asking
from cortexfs.models.ask.driver import Driver, Turn
from cortexfs.models.ask.question import PastCall, PromptMessage, PromptText, model_input
from cortexfs.models.drivers import answered
from cortexfs.models.providers.listing import NATIVE

GRAMMAR = "grammar"  # a word of a model's `.d/cap`: its answer can be held to any JSON, a text included
VIEW = "mount view"  # the source of notices that tell the user that something is hidden
LOOKED_AT = 4 << 10  # bytes of each text of a failed call that are searched, as others wait meanwhile
UMASK = 0o022


class Agents:
    """The drivers of a daemon's agents."""

    def __init__(self, world: AgentPorts, wrap: Callable[[Driver], Driver] = lambda driver: driver) -> None:
        self._world = world
        self._wrap = wrap  # wraps a driver, so that plugins learn of its turns

    def driver(self, object_: Object) -> Driver:
        async def answer(turn: Turn) -> None:
            home = home_of(await self._world.home(turn.who.identity.uid))
            await _Run(self._world, object_, turn, home).answer()

        return self._wrap(answer)


class _Run:
    """The run of one message.

    Its attributes are set when it begins, from the controls of that moment: a control that is written later
    counts for the next message.
    """

    def __init__(self, world: AgentPorts, object_: Object, turn: Turn, home: str) -> None:
        self._world = world
        self._turn = turn
        self._home = home
        if object_.status.startswith("broken"):
            raise Fault("EHOSTDOWN", f"{object_.name} cannot work: {object_.status}")
        self._setup = setup_of(world, world.find(*object_.key) or object_)
        caller = turn.who
        above = caller.identity.label
        label = f"{above} {object_.path}" if above else object_.path
        self._powers = Powers(world, label, caller.identity.uid, self._setup)
        self._model = world.model(self._setup.model, self._setup.home)
        self._check_model()
        self._driver = world.driver(self._model)
        cap = world.control(self._model, "cap").split()
        self._native, self._plain = NATIVE in cap, GRAMMAR in cap
        names, uid = self._setup.tools, caller.identity.uid
        self._hidden = {}
        for name in names:
            found = world.find("tool", name, uid)
            if why := self._powers.hidden(found.key if found else ("tool", name)):
                self._hidden[name] = why
        self._tools = Toolbox(world, names, self._hidden, uid)
        self._in_text = bool(self._tools.names) and not self._native
        self._cwd = caller.cwd or self._setup.cwd
        own = caller.identity
        self._identity = place.acting(world, self._setup, self._powers, own, self._tools, self._cwd, home)
        self._asker = caller._replace(identity=self._identity, cwd=self._cwd)
        self._budget = RunBudget(limited(world.limits, self._setup))
        self._reserve = 0
        self._clock = calls.RunClock(world.limits.secs)
        self._standing = calls.Standing(turn.session_memory, self._setup.created)
        self._trials = calls.AgentDryRuns()
        self._names = calls.CallNames()
        session = (self._setup.place, *caller.folder, caller.session or caller.run)
        approved = partial(self._approved, is_nested=True)
        ports = (self._decide, approved, self._standing, self._names.below, turn.say, session)
        about = (self._identity, self._cwd, self._budget, self._clock, nested.NestedPorts(*ports))
        self._questions = QuestionPorts(world, turn, self._setup, self._powers, *about)

    # The check of its model.

    def _check_model(self) -> None:
        """Raises EACCES unless the model may be asked by the name under which it was chosen."""
        name = self._setup.model
        alias = "" if "/" in name and self._model.home is None else name
        identity = self._turn.who.identity
        decision = self._powers.decide(self._model, identity, alias=alias, is_its_model=True)
        if not decision.allowed:
            raise Fault("EACCES", f"{decision.reason} ({decision.rule})")

    # The loop.

    async def answer(self) -> None:
        await self._world.hold(self._identity)
        try:
            with self._world.begun.run(self._turn.who.identity.uid, self._setup), self._clock.scope:
                await self._loop()
            if self._clock.scope.cancelled_caught:
                raise self._budget.late()
        finally:
            if self._budget.usage is not None:
                await self._turn.say(self._budget.usage)

    async def _loop(self) -> None:
        input_ = model_input(self._turn.input)
        window = await self._window(input_)
        await self._turn.settled()  # now the session's folder is there, for the window's files
        if (pin := pinned_by(input_.said[-1].text)) is not None:
            await self._turn.say(message(f"Kept in mind: {await window.pin(pin)}"))
            return
        await window.load()
        if self._hidden:
            await self._turn.say(frames.Observer(source=VIEW, content=wording.hidden(self._hidden)))
        while True:
            self._budget.step()
            self._check_model()
            reply = await self._ask(await window.pack(self._summarise))
            if reply.malformed:
                self._budget.malformed()
                feedback = PromptMessage("user", (PromptText(wording.malformed(reply.malformed)),))
                window.add(PromptMessage("assistant", (PromptText(reply.text),)), feedback)
                continue
            if reply.text:
                await self._turn.say(message(reply.text))
            if not reply.calls:
                return
            past_calls = tuple(PastCall(call.call, call.name, call.input) for call in reply.calls)
            parts = (PromptText(reply.text),) if reply.text else ()
            window.add(PromptMessage("assistant", parts, past_calls), *await self._calls(reply.calls, window))

    async def _window(self, input_: asking.ModelInput) -> AgentWindow:
        limit = self._world.control(self._model, "limit").strip()
        most, self._reserve = budget(int(limit) if limit.isdecimal() else None, self._setup.window)
        history = unpinned(await self._turn.history(history_room(most)))
        location = place.description(self._world, self._setup, self._identity.view or (), self._cwd)
        instruction = text_protocol.instruction(self._tools.offers(), self._plain) if not self._native else ""
        parts = WindowParts(
            system="\n\n".join(filter(None, (self._setup.system, location, input_.system, instruction))),
            input=input_.said,
            history=history,
            tools=len(msgspec.json.encode(self._tools.offers())) if self._native else 0,
        )
        caller = self._turn.who
        files = self._world.context(caller)
        return AgentWindow(parts, (most, self._reserve), files, caller.session, self._setup.name)

    async def _ask(self, pack: Pack) -> ModelReply:
        """Ask the model once. Returns its answer."""
        reader = text_protocol.Spoken() if self._in_text and self._plain else None
        request = self._request(pack)
        inner = ModelQuestion(
            self._turn, self._identity, request, self._budget, quiet=self._in_text, reader=reader
        )
        fault = await answered(self._driver, inner)
        if fault and not (self._in_text and fault.code == "EBADMSG"):  # the answer did not fit the schema
            raise fault
        if not self._in_text:
            return ModelReply(inner.text, tuple(self._names.with_ids(inner.calls)))
        parsed = text_protocol.parse(inner.text, self._tools.offers(), self._plain)
        match parsed:
            case text_protocol.TextCall():
                call = frames.ToolCall(call="", name=parsed.name, input=parsed.input)
                return ModelReply("", tuple(self._names.with_ids([call])))
            case text_protocol.TextReply():
                if rest := parsed.text.removeprefix(inner.sent_text):
                    await self._turn.say(frames.Delta(text=rest))
                return ModelReply(parsed.text, ())
            case text_protocol.TextMistake():
                return ModelReply(inner.text, (), parsed.why)

    async def _summarise(self, request: dict[str, Any]) -> str:
        await self._turn.say(frames.Progress(message="summing up what was said before"))
        inner = ModelQuestion(self._turn, self._identity, request, self._budget, quiet=True)
        if fault := await answered(self._driver, inner):
            raise fault
        return inner.text

    def _request(self, pack: Pack) -> dict[str, Any]:
        tools, messages = self._tools.offers(), pack.messages
        request: dict[str, Any] = {"system": pack.system}
        if not self._native:
            messages = text_protocol.as_text(messages)
        if tools and self._native:
            request["tools"] = [msgspec.to_builtins(tool) for tool in tools]
        elif tools:
            # A small model that repeats a call would go on so: its next reply can only be an answer.
            request["schema"] = text_protocol.schema(() if self._budget.repeated else tools, self._plain)
            request["max_tokens"] = self._reserve  # a small model does not stop by itself
        request["messages"] = [msgspec.to_builtins(each) for each in messages]
        return request

    # Calls.

    async def _calls(self, tool_calls: Sequence[frames.ToolCall], window: AgentWindow) -> list[PromptMessage]:
        """Run calls side by side. Returns the message about each, in their order."""
        self._budget.calls([(each.name, each.input) for each in tool_calls])
        await self._turn.say(*tool_calls)
        results: dict[str, PromptMessage] = {}
        faults: list[Fault] = []

        async def run(call: frames.ToolCall) -> None:
            try:
                results[call.call] = await self._message(call, window)
            except Fault as fault:
                faults.append(fault)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for call in tool_calls:
                nursery.start_soon(run, call)
        if faults:
            raise faults[0]
        self._standing.check()
        return [results[call.call] for call in tool_calls]

    async def _message(self, call: frames.ToolCall, window: AgentWindow) -> PromptMessage:
        try:
            return await self._decide_and_run(call, window)
        except calls.CallRefusal as refusal:
            return await self._denied(call, refusal.message)

    async def _decide_and_run(self, call: frames.ToolCall, window: AgentWindow) -> PromptMessage:
        """Decide about one call and run it. Returns the message about it for the model."""
        tool = self._tools.now(call.name)
        if tool is None:
            known = ", ".join(self._tools.names) or "none"
            return await self._log_result(call, wording.unknown(call.name, known), True)
        hooked = self._world.hooked(tool, self._asker, call.call)
        call = await calls.before(hooked, call, self._turn.say)
        meant_call = self._trials.meant_call(tool, call.input, trio.current_time())
        decision = await self._decide(call, tool, meant_call)
        refusal = await self._refusal(call, decision, meant_call)
        if refusal is None and decision.confirm and not self._standing.always(tool):
            verdict = await self._approved(call, tool, decision)
            if verdict is None:
                return await self._denied(call, "the user did not allow it")
            # The tool as it is now counts, as the user's answer took time.
            if (now := self._tools.now(call.name)) is None or meaning(now) != meaning(tool):
                return await self._denied(call, "the tool has changed since its user was asked, or is gone")
            tool = now
            if verdict is not call.input:
                edited = await calls.before(hooked, replace(call, input=verdict), self._turn.say)
                meant_call = self._trials.meant_call(tool, edited.input, trio.current_time())
            decision = await self._decide(call, tool, meant_call)
            refusal = await self._refusal(call, decision, meant_call)
        if refusal is not None:
            return refusal
        self._standing.count(denied=False)
        run = partial(self._run, call, tool, meant_call)
        outcome = await calls.around(hooked, meant_call.input, run, self._turn.say)
        if meant_call.dry and outcome.fault is None:
            self._trials.add(tool, meant_call, trio.current_time())
        return await self._log_outcome(call, outcome, window)

    async def _refusal(
        self, call: frames.ToolCall, decision: Decision, meant_call: calls.MeantCall
    ) -> PromptMessage | None:
        if not decision.allowed:
            return await self._denied(call, decision.reason)
        if meant_call.wrong:
            return await self._log_result(call, wording.failed("EINVAL", meant_call.wrong), True)
        if decision.dry_run_first:
            return await self._log_result(call, wording.failed("EPERM", calls.FIRST), True)
        return None

    async def _decide(
        self, call: frames.ToolCall, tool: Object, meant_call: calls.MeantCall, depth: int = 0, to: str = ""
    ) -> Decision:
        decision = self._powers.decide(
            tool,
            replace(self._identity, depth=max(self._identity.depth, depth)),
            meant_call.input,
            can_ask=True,
            dry_run=meant_call.dry,
            tried_dry=meant_call.tried,
            to=to,
        )
        content = {
            "call": call.call,
            "name": call.name,
            "decision": "ask" if decision.confirm else "allow" if decision.allowed else "deny",
            "reason": decision.reason,
            "rule": decision.rule,
        }
        await self._turn.say(frames.Observer(source="policy", content=msgspec.json.encode(content).decode()))
        return decision

    async def _approved(
        self, call: frames.ToolCall, tool: Object, decision: Decision, is_nested: bool = False
    ) -> Any:
        """Returns the input with which the call may run, or None if the user denies it."""
        question = frames.Approval(
            call=call.call,
            name=call.name,
            input=call.input,
            effects=effects_in_words(tool),
            reason=decision.asked,
        )
        async with self._clock:
            if self._standing.always(tool):
                return call.input
            if is_nested:  # a program may make any number of calls side by side
                self._standing.check(is_nested=True)
            verdict = await self._turn.ask(question)
            if verdict.decision == "deny":
                return None
            if verdict.decision == "allow_session":
                self._standing.allow(tool)
        return call.input if verdict.input is None else verdict.input

    async def _run(self, call: frames.ToolCall, tool: Object, meant_call: calls.MeantCall) -> CallOutcome:
        args, input_ = meant_call.arguments
        caller = self._turn.who
        invocation = hostcalls.Invocation(
            tool.name, caller.session or None, str(caller.identity.uid), "agent"
        )
        questions = CallQuestions(self._questions, call, tool)
        identity = replace(self._identity, delegates=delegates(tool))
        async with nested.host(self._world, tool, call.call, identity, self._questions.below) as identity:
            environment = place.environment(self._setup, identity, self._world.root, self._home)
            about = (args, input_, UMASK, environment, self._cwd, questions.methods)
            request = hostcalls.CallRequest(call.call, invocation, *about)
            return await self._world.call(tool, identity, request, self._turn.say, questions.ask)

    async def _log_outcome(
        self, call: frames.ToolCall, outcome: CallOutcome, window: AgentWindow
    ) -> PromptMessage:
        fault, path = outcome.fault, ""
        if wording.is_long(outcome.output):
            path = await window.spill(call.call, outcome.output)
            self._world.grew(self._turn.who, window.grown())
        text = wording.result(call.name, call.call, outcome.output, outcome.missing, path)
        if fault is not None:
            failed = wording.failed(fault.code, fault.message)
            text = f"{failed}\n{text}" if outcome.output else failed
            if hint := self._hint(call, outcome.output, fault):
                await self._turn.say(frames.Observer(source=VIEW, content=hint))
                text = f"{text}\n{hint}"
        return await self._log_result(call, text, fault is not None, outcome.output if fault is None else "")

    def _hint(self, call: frames.ToolCall, output: str, fault: Fault) -> str:
        """Returns a note on a closed path or network that may be why the call failed, or an empty text."""
        texts = (msgspec.json.encode(call.input).decode(), fault.message, output)
        failed = place.FailedCall(fault.code, "\n".join(wording.bounded(text, LOOKED_AT) for text in texts))
        return place.hint(self._identity, self._setup, self._cwd, failed, self._tools.now(call.name))

    async def _denied(self, call: frames.ToolCall, reason: str) -> PromptMessage:
        self._standing.count(denied=True)
        return await self._log_result(call, wording.denied(reason), True)

    async def _log_result(
        self, call: frames.ToolCall, text: str, is_error: bool, output: str = ""
    ) -> PromptMessage:
        """Log the result. Returns the message about it for the model."""
        excerpt = wording.bounded(output) if output else text
        await self._turn.say(
            frames.ToolResult(call=call.call, name=call.name, output=excerpt, is_error=is_error)
        )
        return PromptMessage("tool", (PromptText(text),), call=call.call, is_error=is_error)
