"""The questions of an agent's run to the daemon.

This file must never know how any of it is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from cortexfs.agents.setup import Begun
from cortexfs.agents.window.context import Files
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Frame, Observer
from cortexfs.core.hostcalls import CallOutcome
from cortexfs.core.policy.risk import RiskSettings
from cortexfs.core.registry import Object
from cortexfs.models.ask.driver import Driver, Who

if TYPE_CHECKING:  # which is about hooked calls, too
    from cortexfs.agents.nested import Nested


class HookedOutput(Protocol):
    """An output after plugins have seen it; `refused` where nobody is to see it."""

    @property
    def output(self) -> str: ...
    @property
    def refused(self) -> Fault | None: ...
    @property
    def notes(self) -> list[Observer]: ...


class HookedCall(Protocol):
    """A call about which plugins are asked, and of which they are told."""

    @property
    def changed_by(self) -> str:
        """The plugin that has changed the input; empty for none."""

    @property
    def holds(self) -> bool:
        """Returns True if its output is for plugins first."""

    def hold(self, size: int) -> None:
        """So many bytes more are held for it; EAGAIN where they are too many of this user's."""

    def let_go(self) -> None: ...

    def too_large(self) -> None:
        """Its output is more than plugins are shown: a Fault, unless it may pass without."""

    async def before(self, input_: dict[str, Any]) -> tuple[dict[str, Any], list[Observer]]:
        """Returns the tool's input, and the notes about it; raises a Fault where the tool is not to run."""

    def begin(self, input_: dict[str, Any]) -> None:
        """It runs now, with this."""

    async def after(self, output: str, fault: Fault | None, missing: int = 0) -> HookedOutput: ...

    def end(self, output: str, fault: Fault | None, length: int = 0) -> None:
        """It has ended so, without anybody's being asked."""


class AgentSkill(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def path(self) -> str:
        """The page that says what to do."""

    @property
    def place(self) -> str:
        """That page, or the folder that it is in."""


class AgentLimits(Protocol):
    """The limits of one run: the configuration's [agent]."""

    @property
    def steps(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def secs(self) -> float: ...
    @property
    def repeats(self) -> int: ...


class AgentPorts(Protocol):
    @property
    def root(self) -> str:
        """Where the tree is mounted."""

    @property
    def serves(self) -> int | None:
        """The one user whom the daemon serves; None: everybody."""

    @property
    def limits(self) -> AgentLimits: ...

    @property
    def begun(self) -> Begun:
        """The runs that are going on."""

    @property
    def nested(self) -> Nested:
        """The calls of agents that may have nested ones now."""

    async def ended(self, token: str) -> object:
        """End the host of such a call."""

    def scratch(self, uid: int, name: str) -> str:
        """Returns the path of a scratch folder of this user."""

    @property
    def settings(self) -> RiskSettings:
        """policy.toml, as it is now; EINVAL when it is damaged, and then no call is decided."""

    @property
    def protected(self) -> tuple[str, ...]:
        """Absolute paths of the daemon's own, near which no agent's call is harmless."""

    @property
    def caps(self) -> tuple[tuple[str, str], ...]:
        """Paths that no mount table opens further than so, whatever it says."""

    async def home(self, uid: int) -> str:
        """The home directory of a user, as the password database has it; empty where he is not in it."""

    def find(self, class_: str, name: str, uid: int | None = None) -> Object | None:
        """Returns the object of a name: of a user's own and everybody's, the user's."""

    async def hold(self, identity: hostcalls.Identity) -> None:
        """Have the scripts that this identity may write be nobody's tools any more."""

    def control(self, object_: Object, name: str) -> str: ...

    def skill(self, name: str) -> AgentSkill | None:
        """Returns the skill of a plugin; None where there is none of that name."""

    def model(self, name: str, home: int | None) -> Object:
        """Returns the model of a name, provider/model or an alias in model/, to an agent in this home; raises
        EHOSTDOWN when there is none."""

    def driver(self, model: Object) -> Driver:
        """Returns the driver of a model for an agent."""

    def context(self, who: Who) -> Files | None:
        """Where the context of this session is kept; None where nothing is."""

    def grew(self, who: Who, size: int) -> None:
        """So much was kept beside this session's log: it counts for its user's share of the disk."""

    def hooked(self, tool: Object, who: Who, call: str) -> HookedCall | None:
        """None where no plugin has to do with calls of this caller's."""

    async def call(
        self,
        tool: Object,
        identity: hostcalls.Identity,
        asked: hostcalls.CallRequest,
        say: Callable[[Frame], Awaitable[None]],
        ask: Callable[[hostcalls.ToolQuestion], Awaitable[hostcalls.ToolAnswer]],
    ) -> CallOutcome:
        """Runs it; `ask` puts the tool's questions to its user."""
