"""The questions of an MCP server during an agent's call: a form for a person, a request to a model, and the
folders that the server may work in.

    questions = CallQuestions(ports, call, tool)
    questions.methods        the kinds of questions that are answered, for the call's host
    await questions.ask(request)

Rules: a model answers, and folders are named, only where policy lets the server `sample` or have `roots` when
the question comes. A request to a model is shown to the user first, unless policy.toml lets it pass, and is
logged in the session. The model is one that the agent may use, and its tokens are the run's. The number and
the size of a call's questions are bounded.
This file must never know how a question comes here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from cortexfs.agents.budget import RunBudget
from cortexfs.agents.calls import MeantCall, RunClock
from cortexfs.agents.nested import NestedPorts
from cortexfs.agents.permissions import ASKED, Powers
from cortexfs.agents.ports import AgentPorts
from cortexfs.agents.question import ModelQuestion
from cortexfs.agents.setup import Setup
from cortexfs.agents.view import allowed
from cortexfs.agents.window import wording
from cortexfs.core import jsontext
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Frame, Media, Question, ReasoningDelta, ToolCall, ToolResult
from cortexfs.core.hostcalls import Identity, ToolAnswer, ToolQuestion
from cortexfs.core.manifest.mcp_server import KIND, PREFIX
from cortexfs.core.mcp_session import ELICITATION, OBJECT, ROOTS, SAMPLING
from cortexfs.core.policy import rules
from cortexfs.core.policy.decision import Decision
from cortexfs.core.registry import Object
from cortexfs.core.value_formats import is_below, rights
from cortexfs.models.ask.driver import Turn
from cortexfs.models.drivers import answered

MAX_QUESTIONS = 16  # of one call, so that its user is not worn out
MAX_SAMPLINGS = 8  # of one call; each costs as much as an answer of the agent's own
MAX_TOKENS = 4096  # of one answer
MAX_ROOTS = 100
MAX_ANSWER = 64 << 10  # characters of one answer, however long its tokens are; a host takes 1 MiB of JSON
MAX_TOLD = 4 << 10  # bytes of an answer in the session's log
# The permission that a method needs. An elicitation needs none: a person answers it, or does not.
PERMISSIONS = {SAMPLING: rules.SAMPLE, ROOTS: rules.ROOTS}


class _Said(msgspec.Struct):
    role: Literal["user", "assistant"]
    content: dict[str, Any] | list[dict[str, Any]]

    @property
    def parts(self) -> list[dict[str, Any]]:
        return self.content if isinstance(self.content, list) else [self.content]


class _Hint(msgspec.Struct):
    name: str = ""


class _Preferences(msgspec.Struct):
    hints: Annotated[list[_Hint], Meta(max_length=10)] = []


class SampledRequest(msgspec.Struct):
    """The parameters of sampling/createMessage that are used here."""

    messages: Annotated[list[_Said], Meta(min_length=1, max_length=64)]
    maxTokens: Annotated[int, Meta(ge=1)]
    systemPrompt: str = ""
    temperature: float | None = None
    modelPreferences: _Preferences | None = None

    @property
    def hints(self) -> list[str]:
        return (
            [each.name for each in self.modelPreferences.hints if each.name] if self.modelPreferences else []
        )

    def request(self) -> dict[str, Any]:
        """Returns the request as an input of a model."""
        request: dict[str, Any] = {"system": self.systemPrompt} if self.systemPrompt else {}
        request["messages"] = [
            {"role": message.role, "content": list(map(_part, message.parts))} for message in self.messages
        ]
        request["max_tokens"] = min(self.maxTokens, MAX_TOKENS)
        return request | ({} if self.temperature is None else {"temperature": self.temperature})


class _Root(msgspec.Struct):
    uri: str
    name: str = ""


class _Roots(msgspec.Struct):
    roots: Annotated[list[_Root], Meta(max_length=MAX_ROOTS)]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            return {"type": "image", "data": data, "media_type": kind}
    raise Fault("EINVAL", "a message for a model may have only texts and images here")


class SampledQuestion(ModelQuestion):
    """A server's question. The model's thoughts and pictures are dropped: they would seem the agent's."""

    async def say(self, *frames: Frame) -> None:
        await super().say(*(frame for frame in frames if not isinstance(frame, ReasoningDelta | Media)))


class QuestionPorts(NamedTuple):
    """The part of an agent's run that the questions of servers need."""

    world: AgentPorts
    turn: Turn
    setup: Setup
    powers: Powers
    identity: Identity
    cwd: str
    budget: RunBudget
    clock: RunClock
    below: NestedPorts  # decides, asks and names as for a nested call


class CallQuestions:
    """The questions of one call's tool to the person for whom it runs."""

    def __init__(self, ports: QuestionPorts, call: ToolCall, tool: Object) -> None:
        self._ports, self._call = ports, call
        self._is_server = tool.plugin_kind == KIND
        server = tool.plugin.name.removeprefix(PREFIX) if tool.plugin is not None else ""
        self._server = ports.world.find("tool", f"{server}.{OBJECT}") if self._is_server else None
        self._count = self._sampled = 0

    @property
    def methods(self) -> tuple[str, ...]:
        if not self._is_server:
            return ()
        # Most agents have no such policy line, and then no decision is needed.
        own = {rule.permission for rule in self._ports.setup.rules}
        able = (key for key, permission in PERMISSIONS.items() if permission in own and self._may(permission))
        return (ELICITATION, *able)

    def _may(self, permission: str) -> bool:
        ports = self._ports
        return (
            self._server is not None
            and ports.powers.decide(
                _with_effect(self._server, permission), ports.identity, can_ask=True, to=permission
            ).allowed
        )

    async def ask(self, request: ToolQuestion) -> ToolAnswer:
        self._count += 1
        if self._count > MAX_QUESTIONS:
            return ToolAnswer(refused=f"during one call a server may ask at most {MAX_QUESTIONS} questions")
        try:
            if request.method == SAMPLING:
                return ToolAnswer(await self._sample(request.params))
            if request.method == ROOTS:
                return ToolAnswer(await self._roots())
        except Fault as fault:
            return ToolAnswer(refused=fault.message)
        question = Question(
            call=self._call.call,
            question=f"{self._call.call}.q{self._count}",
            name=self._call.name,
            message=request.message,
            schema=request.schema,
            url=request.url or None,
        )
        async with self._ports.clock:
            verdict = await self._ports.turn.question(question)
        return ToolAnswer(verdict.input)

    async def _allowed(self, permission: str, input_: dict[str, Any], model: str = "") -> ToolCall:
        """Returns the question as a nested call, with its user's edits. Raises EACCES if it is refused."""
        if self._server is None:
            raise Fault("EACCES", "the server of this tool is gone")
        thing, below = _with_effect(self._server, permission, model), self._ports.below
        call = ToolCall(call=below.next_id(self._call.call), name=self._server.name, input=input_)
        decision: Decision = await below.decide(call, thing, MeantCall(None), 0, permission)
        if decision.allowed and decision.confirm and not below.standing.always(thing):
            verdict = await below.approved(call, thing, decision)
            if verdict is None:
                below.standing.count(denied=True)
                raise Fault("EACCES", "the user did not allow it")
            call = replace(call, input=verdict)
            decision = await below.decide(call, thing, MeantCall(None), 0, permission)
        if not decision.allowed:
            raise Fault("EACCES", f"{decision.reason} ({decision.rule})")
        await below.say(replace(call, parent=self._call.call))
        return call

    async def _log_result(self, call: ToolCall, output: str, fault: Fault | None = None) -> None:
        text = wording.failed(fault.code, fault.message) if fault else wording.bounded(output, MAX_TOLD)
        result = ToolResult(call=call.call, name=call.name, output=text, is_error=fault is not None)
        await self._ports.below.say(result)

    async def _roots(self) -> dict[str, Any]:
        offer = [{"uri": PurePosixPath(root).as_uri(), "name": root} for root in self._folders()][:MAX_ROOTS]
        call = await self._allowed(rules.ROOTS, {"roots": offer})
        roots = jsontext.converted(call.input, _Roots).roots  # its user may have taken some away
        await self._log_result(call, "\n".join(root.uri for root in roots))
        return {"roots": msgspec.to_builtins(roots)}

    def _folders(self) -> Iterator[str]:
        """Yields the working directory, and the paths outside of the mount that the agent may write."""
        ports = self._ports
        lines = (line for line in ports.setup.mounts.splitlines() if line and "w" in rights(line))
        for path in dict.fromkeys((ports.cwd, *(line.split("\t")[1] for line in lines))):
            if allowed(ports.identity.view or (), path) and not is_below(path, ports.world.root):
                yield path

    async def _sample(self, params: dict[str, Any]) -> dict[str, Any]:
        self._sampled += 1
        if self._sampled > MAX_SAMPLINGS:
            raise Fault("EDQUOT", f"during one call a server may use a model at most {MAX_SAMPLINGS} times")
        question: SampledRequest = jsontext.converted(params, SampledRequest)
        model, name = self._model(question.hints)
        call = await self._allowed(rules.SAMPLE, {"model": name} | question.request(), name)
        ports = self._ports
        request: dict[str, Any] = dict(call.input)
        inner = SampledQuestion(ports.turn, ports.identity, request, ports.budget, quiet=True)
        try:
            if request.pop("model", name) != name:
                raise Fault("EINVAL", "the user chose another model; a server's question cannot change it")
            ports.budget.step()
            fault = await answered(ports.world.driver(model), inner)
            if fault is None and len(inner.text) > MAX_ANSWER:
                fault = Fault("EFBIG", f"the model's answer has over {MAX_ANSWER >> 10} Ki characters")
        except Fault as refusal:
            fault = refusal
        await self._log_result(call, inner.text, fault)
        if fault is not None:
            raise fault
        return {"role": "assistant", "content": {"type": "text", "text": inner.text}, "model": name}

    def _model(self, hints: list[str]) -> tuple[Object, str]:
        """Returns the first model that the agent may use with a hint in its name, else the agent's own."""
        ports, setup = self._ports, self._ports.setup
        lines = (rule for rule in setup.rules if rule[:2] == (setup.label, "model"))
        names = dict.fromkeys((setup.model, *(rule.name for rule in lines)))
        fitting = (name for hint in hints for name in names if hint.lower() in name.lower())
        for name in (*fitting, setup.model):
            try:
                model = ports.world.model(name, setup.home)
            except Fault:
                continue  # its line names no model that is there now
            alias = "" if "/" in name and model.home is None else name
            is_own = name == setup.model
            if ports.powers.decide(model, ports.identity, alias=alias, is_its_model=is_own).allowed:
                return model, model.key[1]
        raise Fault("EACCES", f"policy allows {setup.place} no model that exists now")


def _with_effect(server: Object, permission: str, model: str = "") -> Object:
    """Returns the server with the effect of this request, as its tools' effects do not count here."""
    effect = replace(ASKED[permission], target=f"to {model}" if model else "")
    about = replace(server.capabilities, effects=(effect,))
    return replace(server, capabilities=about, origin="builtin", dry_run_flag=False)
