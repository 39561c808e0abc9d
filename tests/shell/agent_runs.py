"""A run of an agent in a fake world: the test supplies its model, its tools and its session's files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from cortexfs.agents.budget import BudgetLimits
from cortexfs.agents.loop import Agents
from cortexfs.agents.nested import Nested
from cortexfs.agents.ports import AgentSkill
from cortexfs.agents.setup import Begun
from cortexfs.agents.window.context import FormerContext, Summary
from cortexfs.agents.window.files import ContextFiles
from cortexfs.core import hostcalls
from cortexfs.core.frames import Delta, Frame, Message, Text, ToolCall
from cortexfs.core.hostcalls import CallOutcome
from cortexfs.core.policy.risk import DEFAULT, RiskSettings
from cortexfs.core.registry import Object
from cortexfs.core.talk.requests import Input
from cortexfs.core.tree import controls
from cortexfs.models.ask.driver import Driver, Who
from cortexfs.models.ask.driver import Turn as Question
from tests.shell.asking import Turn

MODEL = Object(class_="model", name="p/m", description="", extra={"cap": "tool_call_syntax", "limit": "2000"})
READS = hostcalls.Effect("read_file", "reversible", "never", "not_supported")
TOOL = Object(
    class_="tool",
    name="fs.read",
    description="Reads.",
    schema=b'{"type":"object"}',
    capabilities=hostcalls.Capabilities(effects=(READS,)),
)
AGENT = Object(
    class_="agent",
    name="coder",
    description="",
    extra={
        "label": "user_u:agent_r:coder_t:s0\n",
        "model": "p/m\n",
        "tools": "fs.read\n",
        "policy": "allow coder_t model:p/m use\nallow coder_t tool:fs.read execute\n",
    },
)
CALL = ToolCall(call="c1", name="fs.read", input={})


class InMemory(ContextFiles):
    """The files of a session in memory. A test may block in a method, as the methods run in a thread."""

    def __init__(self) -> None:
        self.outputs: list[str] = []
        self.summaries: list[Summary] = []

    def load(self) -> FormerContext:
        return FormerContext()

    def write_summary(self, summary: Summary) -> None:
        self.summaries.append(summary)

    def write_pack(self, pack: bytes) -> None: ...

    def spill(self, call: str, text: str) -> str:
        self.outputs.append(text)
        return f"/ctx/{call}.txt"

    def grown(self) -> int:
        return sum(map(len, self.outputs))

    def pin(self, text: str) -> str:
        raise NotImplementedError


class Played:
    """agents.world.World, as far as a run needs it. `answer` plays the model, `output` plays the tool."""

    root = "/ctx"
    serves: int | None = None
    limits = BudgetLimits()
    settings: RiskSettings = DEFAULT
    protected: tuple[str, ...] = ()
    caps: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        answer: Callable[[Question], Awaitable[None]],
        output: Callable[[], Awaitable[str]],
        files: ContextFiles | None = None,
        **extra: str,
    ) -> None:
        self.begun = Begun()
        self.nested = Nested()
        self.agent = AGENT
        self.ran = 0
        self.grown = 0
        self._answer, self._output, self._files = answer, output, files
        self._extra = extra

    async def home(self, uid: int) -> str:
        return "/home/alice"

    async def ended(self, token: str) -> None:
        pass

    def scratch(self, uid: int, name: str) -> str:
        return f"/kept/scratch/{uid}/{name}"

    async def hold(self, identity: hostcalls.Identity) -> None:
        pass

    def find(self, class_: str, name: str, uid: int | None = None) -> Object | None:
        found = {each.key: each for each in (AGENT, MODEL, TOOL)}
        return found.get((class_, name))

    def skill(self, name: str) -> AgentSkill | None:
        return None

    def control(self, object_: Object, name: str) -> str:
        if object_ == AGENT and name in self._extra:
            return self._extra[name]
        found = controls.find(object_.class_, name)
        assert found
        return object_.extra.get(name) or found.render(object_)

    def model(self, name: str, home: int | None) -> Object:
        return MODEL

    def driver(self, model: Object) -> Driver:
        return self._answer

    def context(self, who: Who) -> ContextFiles | None:
        return self._files

    def grew(self, who: Who, size: int) -> None:
        self.grown += size

    def hooked(self, tool: Object, who: Who, call: str) -> None:
        return None

    async def call(
        self, tool: Object, identity: hostcalls.Identity, asked: hostcalls.CallRequest, say: Any, ask: Any
    ) -> CallOutcome:
        self.ran += 1
        return CallOutcome(await self._output())


async def run(world: Played, given: Input = "go", history: Sequence[Message] = ()) -> Turn:
    """Run the agent to its end, or to the end of the cancel scope around the call."""
    turn = Turn(given, history)
    await Agents(world).driver(AGENT)(turn)
    return turn


def turns(count: int, size: int) -> list[Message]:
    """Returns a history of `count` messages of `size` characters each."""
    roles = ("user", "assistant")
    return [
        Message(id=str(number + 1), role=roles[number % 2], content=[Text("x" * size)])
        for number in range(count)
    ]


def says(*frames: Frame) -> Callable[[Question], Awaitable[None]]:
    async def answer(turn: Question) -> None:
        await turn.say(*frames)

    return answer


async def hangs(*_anything: object) -> Any:
    await trio.sleep_forever()


ANSWER = says(Delta(text="done"))
