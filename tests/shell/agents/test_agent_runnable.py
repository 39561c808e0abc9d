"""An agent is told of exactly those tools that a decision would let it run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from msgspec.structs import replace

from cortexfs.agents.permissions import Powers
from cortexfs.core.hostcalls import NATIVE, Capabilities, Effect, Identity, Plugin
from cortexfs.core.policy.risk import Profile, RiskSettings
from cortexfs.core.registry import Object
from tests.shell.agent_runs import AGENT, READS, TOOL, Played
from tests.tables import each_of

SECRET = Effect("read_secret", "reversible", "never", "not_supported")
ME = Identity(1000, 1000, (), label="agent/coder")
SETTINGS = {
    "default": RiskSettings(),
    "deny": RiskSettings(deny=("a.1*",)),
    "allow": RiskSettings(allow=("a.*",)),
    "one blocked": RiskSettings(tools={"a.2": Profile(block=True)}),
    "strict": RiskSettings(mode="strict"),
}
TABLES = {"default": "", "one tool": "/ctx/tool/a.3\t/ctx/tool/a.3\tro\t-\n", "none": "/srv\t/srv\tro\t-\n"}


def tools() -> Iterator[Object]:
    """Yields two tools of each kind, so that a mix-up of the two would be noticed."""
    trusted = (None, Plugin("p", "", NATIVE, "x", trusted=True))
    kinds = product(((READS,), (SECRET,), (READS, SECRET)), (False, True), trusted, ("builtin", "plugin:p@1"))
    for number, (effects, may_dry, plugin, origin) in enumerate([*kinds] * 2):
        yield replace(
            TOOL,
            name=f"a.{number}",
            capabilities=Capabilities(effects=effects),
            dry_run_flag=may_dry,
            plugin=plugin,
            origin=origin,
            extra={"policy": "allow other_t tool:a.5 execute\n"} if number == 5 else {},
        )


@each_of("settings", SETTINGS)
@each_of("table", TABLES)
def test_it_is_told_of_those_that_it_may_run(settings: str, table: str) -> None:
    # abi.md 8.32
    every = [*tools()]
    lines = "".join(f"allow coder_t tool:{tool.name} execute\n" for tool in every if tool.name != "a.7")
    play: Any = None
    world: Any = Played(play, play, policy=f"{lines}allow coder_t tool:a.7 sample\n", mount=TABLES[table])
    world.settings = SETTINGS[settings]
    powers = Powers(world, "agent/coder", ME.uid)
    assert world.control(AGENT, "policy").count("\n") == len(every)
    told = [tool.name for tool in powers.runnable(every, ME)]
    run = [tool.name for tool in every if powers.decide(tool, ME, can_ask=True, tried_dry=True).allowed]
    assert told == run
    assert bool(told) == (table != "none")
    assert "a.7" not in told
    assert "a.5" not in told
