"""The functions of the daemon that an agent's run uses.

This file must never know how any of them is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from cortexfs.agents.budget import BudgetLimits
from cortexfs.agents.setup import Begun
from cortexfs.agents.window.files import ContextFiles
from cortexfs.core import hostcalls
from cortexfs.core.frames import Frame
from cortexfs.core.hooks import HookedCall
from cortexfs.core.hostcalls import CallOutcome
from cortexfs.core.policy.risk import RiskSettings
from cortexfs.core.registry import Object
from cortexfs.models.ask.driver import Driver, Who

if TYPE_CHECKING:  # nested.py imports this file
    from cortexfs.agents.nested import Nested


class AgentSkill(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def path(self) -> str:
        """The path of the page with the instructions."""

    @property
    def place(self) -> str:
        """The path of that page, or of the folder that it is in."""


class AgentPorts(Protocol):
    root: str  # the mount point of the tree
    serves: int | None  # the only user whom the daemon serves, or None for everybody
    limits: BudgetLimits
    begun: Begun  # the runs that are going on
    nested: Nested  # the agents' calls that may have nested calls now
    # The daemon's own absolute paths, near which no agent's call counts as harmless.
    protected: tuple[str, ...]
    # Paths, each with the most rights that any mount table can give to it.
    caps: tuple[tuple[str, str], ...]

    async def ended(self, token: str) -> object:
        """End the host that has this token."""

    def scratch(self, uid: int, name: str) -> str:
        """Returns the path of a scratch folder of this user."""

    @property
    def settings(self) -> RiskSettings:
        """policy.toml, as it is now. Raises EACCES if it is damaged, and then no call is decided."""

    async def home(self, uid: int) -> str:
        """Returns a user's home directory by the password database, or an empty text without an entry."""

    def find(self, class_: str, name: str, uid: int | None = None) -> Object | None:
        """Returns the object of a name. A user's own object comes before everybody's."""

    async def hold(self, identity: hostcalls.Identity) -> None:
        """Hold the tools whose scripts this identity may write, until their user has looked at them."""

    def control(self, object_: Object, name: str) -> str: ...

    def skill(self, name: str) -> AgentSkill | None:
        """Returns the skill of a name from a plugin, or None if there is none."""

    def model(self, name: str, home: int | None) -> Object:
        """Returns the model of a name, provider/model or an alias in model/, for an agent in this home.
        Raises EHOSTDOWN if there is none."""

    def driver(self, model: Object) -> Driver:
        """Returns the driver of a model for an agent."""

    def context(self, caller: Who) -> ContextFiles | None:
        """Returns the files of this session's context, or None if nothing is kept."""

    def grew(self, caller: Who, size: int) -> None:
        """Count bytes that were kept beside this session's log for its user's share of the disk."""

    def hooked(self, tool: Object, caller: Who, call: str) -> HookedCall | None:
        """Returns the plugins' hooks for a call, or None if no plugin wants calls of this caller."""

    async def call(
        self,
        tool: Object,
        identity: hostcalls.Identity,
        request: hostcalls.CallRequest,
        say: Callable[[Frame], Awaitable[None]],
        ask: Callable[[hostcalls.ToolQuestion], Awaitable[hostcalls.ToolAnswer]],
    ) -> CallOutcome:
        """Run a call. `ask` puts the tool's questions to its user."""
