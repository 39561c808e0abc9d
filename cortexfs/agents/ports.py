"""The questions of an agent's run to the daemon.

This file must never know how any of it is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from cortexfs.agents.budget import BudgetLimits
from cortexfs.agents.setup import Begun
from cortexfs.agents.window.context import Files
from cortexfs.core import hostcalls
from cortexfs.core.frames import Frame
from cortexfs.core.hooks import HookedCall
from cortexfs.core.hostcalls import CallOutcome
from cortexfs.core.policy.risk import RiskSettings
from cortexfs.core.registry import Object
from cortexfs.models.ask.driver import Driver, Who

if TYPE_CHECKING:  # which is about hooked calls, too
    from cortexfs.agents.nested import Nested


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


class AgentPorts(Protocol):
    @property
    def root(self) -> str:
        """Where the tree is mounted."""

    @property
    def serves(self) -> int | None:
        """The one user whom the daemon serves; None: everybody."""

    @property
    def limits(self) -> BudgetLimits: ...

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
