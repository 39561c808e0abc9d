"""The powers of an agent: its controls as they are now, and the decision about each object that it wants.

    setup = setup_of(world, object_)            an agent, as its `.d/` defines it
    powers = Powers(world, label, uid, setup)   of everything that runs under a label for a user
    powers.decide(thing, identity, ...)         core/policy/decision.py's answer

A label is the path of agents that led here, such as "agent/lead home/1000/agent/helper". The helper may do
what its own policy and the policy of each agent before it allow, so no agent gets more by asking another.

Rules: controls are read when a decision is made, so that a permission that is taken away is gone at once, for
runs that go on, too. A permission that is added counts from the next run on: a run may do what its agent may
do now and could do when it began. An agent that is gone, or whose policy cannot be read, may do nothing. A
later agent of the same name is another agent.
This file must never know of models' answers, sockets or sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from cortexfs.agents.ports import AgentPorts
from cortexfs.agents.setup import Setup
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Effect
from cortexfs.core.policy import rules
from cortexfs.core.policy.confirming import CallerKind
from cortexfs.core.policy.decision import (
    DENY,
    Decision,
    PolicyCaller,
    PolicyQuery,
    Thing,
    decide,
    mount_answer,
)
from cortexfs.core.policy.risk import Circumstances, RatedTool, words_of
from cortexfs.core.policy.rules import TO_RUN
from cortexfs.core.registry import Key, Object, key_of, path_of

DELEGATES = "delegate_work"
STARTING = RatedTool(
    "agent.run", (Effect(DELEGATES, "partially_reversible", "always", "not_supported"),), builtin=True
)
# The effects of an MCP server's requests: a model reads the server's text, or the server learns of folders.
ASKED = {
    rules.SAMPLE: Effect("send_message", "reversible", "on_risk", "not_supported"),
    rules.ROOTS: Effect("read_file", "reversible", "never", "not_supported"),
}
NETWORK = ("network", "default", "connect")
BEGAN = "; a permission that was added since this run began counts from the next run on"


def setup_of(world: AgentPorts, object_: Object) -> Setup:
    """Returns an agent's setup. Raises EINVAL if its policy cannot be read."""
    text = partial(world.control, object_)
    window = text("window").strip()
    return Setup(
        name=object_.name,
        place=object_.path,
        home=object_.home,
        label=rules.type_of(text("label")),
        rules=rules.parse(text("policy"), f"{object_.path}.d/policy"),
        model=text("model").strip(),
        system=text("system.md").strip(),
        tools=tuple(text("tools").split()),
        skills=tuple(text("skills").split()),
        mounts=text("mount"),
        cwd=text("cwd").strip() or "/",
        window=int(window) if window.isdecimal() else None,
        asks=text("approval").strip() == "ask",
        env=dict(line.split("=", 1) for line in text("env").splitlines() if "=" in line),
        groups=frozenset(map(int, text("groups").split())),
        path=tuple(text("path").splitlines()),
        created=object_.registered,
    )


def is_agents(label: str) -> bool:
    """Returns True if a label is that of an agent's run."""
    return key_of(label.partition(" ")[0])[0] == "agent"


class Powers:
    """The powers of runs under a label. `own` is its last agent, as it was when its run began. For the other
    agents, and for the last without `own`, all their runs count that go on for this user."""

    def __init__(self, world: AgentPorts, label: str, uid: int, own: Setup | None = None) -> None:
        self._world = world
        self._uid = uid
        self._own = own
        self.label = label

    @property
    def chain(self) -> tuple[Setup, ...]:
        """The agents of the label as they are now, the running one last. EACCES if one is gone."""
        found = []
        for word in self.label.split():
            object_ = self._world.find(*key_of(word))
            if object_ is None or object_.class_ != "agent":
                raise Fault("EACCES", f"{word} is not an agent (any more), so its programs may do nothing")
            found.append(setup_of(self._world, object_))
        return tuple(found)

    def _originals(self, chain: Sequence[Setup]) -> tuple[Setup, ...]:
        """Returns these agents as their runs began, if that differs. Raises EACCES if one was made since."""
        found: list[Setup] = []
        for number, now in enumerate(chain, 1):
            of_run = (self._own,) if self._own and number == len(chain) else None
            found += of_run or self._world.begun.of(self._uid, now.place)
            if any(setup.place == now.place and setup.created != now.created for setup in found):
                why = f"{now.place} was removed and created again since this run began"
                raise Fault("EACCES", f"{why}, so this run may do nothing; begin another run")
        return tuple(setup for setup in found if setup not in chain)

    def allows(self, class_: str, name: str, permission: str) -> bool:
        """Returns True if all agents of the label have a policy line for this."""
        chain = self.chain
        return all(
            rules.find(setup.rules, setup.label, class_, name, permission)
            for setup in (*chain, *self._originals(chain))
        )

    def hidden(self, key: Key) -> str:
        """Returns the reason why a mount table hides an object, or an empty text if none of them does."""
        path = f"{self._world.root}/{path_of(key)}"
        chain = self.chain
        for setup in (*chain, *self._originals(chain)):
            result, why, rule = mount_answer(setup.place, setup.mounts, path)
            if result == DENY:
                return f"{why} ({rule})"
        return ""

    def runnable(self, tools: Iterable[Object], identity: hostcalls.Identity) -> Iterator[Object]:
        """Returns the tools that all agents of the label may run, perhaps after their user was asked."""
        settings = self._world.settings
        query = partial(
            PolicyQuery,
            permission=TO_RUN["tool"],
            serves=self._world.serves,
            settings=settings,
            call=Circumstances(depth=identity.depth, protected=self._world.protected),
            tried_dry=True,
        )
        chain = self.chain
        lines = [(agent, rules.by_name(agent.rules, "tool")) for agent in (*chain, *self._originals(chain))]
        verdicts: dict[object, bool] = {}  # tools that differ in nothing but their names are judged once

        def runs(number: int, tool: Object) -> bool:
            setup, by_name = lines[number]
            if tool.name not in by_name:
                return False
            line = rules.find(by_name[tool.name], setup.label, "tool", tool.name, TO_RUN["tool"])
            is_like_others = not (setup.mounts or settings.names_tools or self._world.control(tool, "policy"))
            key = (number, line is None, tool_of(tool)[1:]) if is_like_others else (number, tool.key)
            if key not in verdicts:
                caller = _caller(setup._replace(rules=by_name[tool.name]), identity, can_ask=True)
                verdicts[key] = decide(query(caller, self._thing(tool, identity))).allowed
            return verdicts[key]

        return (tool for tool in tools if all(runs(number, tool) for number in range(len(lines))))

    def decide(
        self,
        object_: Object,
        identity: hostcalls.Identity,
        input_: Any = None,
        *,
        can_ask: bool = False,
        alias: str = "",
        dry_run: bool = False,
        tried_dry: bool = False,
        is_its_model: bool = False,
        to: str = "",
    ) -> Decision:
        """Returns the decision about an object for all agents of the label. A policy line may also have the
        alias by which the object was named."""
        query = partial(
            PolicyQuery,
            permission=to or TO_RUN[object_.class_],
            serves=self._world.serves,
            settings=self._world.settings,
            call=Circumstances(words_of(input_), identity.depth, protected=self._world.protected),
            dry_run=dry_run,
            tried_dry=tried_dry,
        )
        chain = self.chain
        last, *before = reversed(chain)
        thing = self._thing(object_, identity, alias, is_its_model)
        decision = decide(query(_caller(last, identity, can_ask), thing))
        for setup in (*before, *self._originals(chain)):
            if not decision.allowed:
                break
            other = decide(query(_caller(setup, identity, can_ask), thing))
            if setup not in chain:
                other = other._replace(reason=f"{other.reason}{BEGAN}")
            decision = other if not other.allowed or other.confirm else decision
        return decision

    def _thing(
        self, object_: Object, identity: hostcalls.Identity, alias: str = "", is_its_model: bool = False
    ) -> Thing:
        file, is_tool = f"{object_.path}.d/policy", object_.class_ == "tool"
        text = "" if object_.class_ == "agent" else self._world.control(object_, "policy")
        return Thing(
            class_=object_.class_,
            name=object_.name if is_tool else object_.key[1],
            alias=alias,
            path=f"{self._world.root}/{object_.path}",
            is_its_model=is_its_model,
            rules=rules.parse(text, file),
            file=file,
            tool=tool_of(object_) if is_tool else _started(object_, identity),
        )


def _caller(setup: Setup, identity: hostcalls.Identity, can_ask: bool) -> PolicyCaller:
    return PolicyCaller(
        name=setup.place,
        uid=identity.uid,
        groups=frozenset(identity.groups),
        kind=CallerKind.AGENT,
        label=setup.label,
        home=setup.home,
        rules=setup.rules,
        file=setup.file,
        mounts=setup.mounts,
        always_ask=setup.asks,
        can_ask=can_ask,
    )


def tool_of(object_: Object) -> RatedTool:
    caps = object_.capabilities
    builtin, may_dry = object_.origin == "builtin", object_.dry_run_flag
    return RatedTool(object_.name, caps.effects, builtin, caps.background_safe, may_dry, object_.is_trusted)


def delegates(object_: Object) -> bool:
    """Returns True if the object is a tool that starts agents."""
    return any(effect.kind == DELEGATES for effect in object_.capabilities.effects)


def _started(object_: Object, identity: hostcalls.Identity) -> RatedTool | None:
    """Returns the rating of an agent's start; None for others, or if the starting tool was rated."""
    return STARTING if object_.class_ == "agent" and not identity.delegates else None


def effects_in_words(object_: Object) -> list[str]:
    """Returns the effects that a tool declares, for the person who is to approve its call."""
    return [f"{effect.kind} {effect.target}".rstrip() for effect in object_.capabilities.effects]
