"""The daemon's implementation of the ports of agents (agents/ports.py).

Rules: policy.toml is read again when it has changed, so that a permission that an administrator withdraws is
gone with the next call. A damaged policy.toml allows nothing, and the error says so.
This file must never know what an agent does with the answers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from msgspec.structs import replace

from cortexfs.agents import place
from cortexfs.agents.budget import BudgetLimits
from cortexfs.agents.nested import Nested
from cortexfs.agents.permissions import Powers, is_agents, setup_of
from cortexfs.agents.setup import Begun
from cortexfs.agents.view import may_write, opened
from cortexfs.agents.window.files import ContextFiles
from cortexfs.core import hostcalls
from cortexfs.core.arguments import dryrun
from cortexfs.core.errors import Fault, code_of
from cortexfs.core.frames import Frame
from cortexfs.core.hostcalls import CallOutcome
from cortexfs.core.manifest import own_script
from cortexfs.core.policy import risk
from cortexfs.core.policy.risk import FILE, RiskSettings
from cortexfs.core.registry import Key, Object, key_of, own_key, uid_of
from cortexfs.daemon import starts
from cortexfs.hooks.middleware import MiddlewareCall
from cortexfs.hooks.registry import Site
from cortexfs.models.ask.driver import Driver, Who
from cortexfs.models.own_providers import CLASS as OWN
from cortexfs.peers.prompt import in_task
from cortexfs.plugins.catalog import BUILTIN
from cortexfs.plugins.described import COMMAND_CLASS
from cortexfs.sessions.layout import Address, Space
from cortexfs.state import believed
from cortexfs.state.directories import kept_of, place_of

if TYPE_CHECKING:
    from cortexfs.daemon.daemon import Daemon

log = logging.getLogger("cortexfs")

MAX_LINKS = 8  # an alias of an alias, and so on


class AgentWorld:
    """The daemon as agents see it. Most of the attributes are ports themselves."""

    def __init__(self, daemon: Daemon) -> None:
        config = daemon.config
        self._daemon = daemon
        self.root = str(daemon.root)
        self.control = daemon.fs.control
        self.skill = daemon.texts.skill
        self.home = partial(starts.home, daemon.starter)
        self.serves = None if os.geteuid() == 0 else os.geteuid()
        agent = config.agent
        self.limits = BudgetLimits(agent.steps, agent.tokens, agent.secs, agent.repeats)
        self.protected: tuple[str, ...] = (str(config.state), str(config.directory))
        # Keys and all users' sessions; the files that decide about agents; and the same through the tree.
        self.caps: tuple[tuple[str, str], ...] = (
            (str(config.state), ""),
            (str(config.directory), "r"),
            (self.root, "rx"),
            (str(place_of(config.state)), "rx"),  # else an agent could change plugins that others run
            # A process's memory can be written there, also the runner's (host/confine/socket_gate.py).
            ("/proc", "r"),
            (str(kept_of(config.state)), ""),  # plugins' files of other users
        )
        self.begun = Begun()
        self.nested = Nested()
        self._folder = kept_of(config.state)
        self._policy = PolicyFile(config.directory / FILE)

    def scratch(self, uid: int, name: str) -> str:
        return f"{self._folder}/scratch/{uid}/{name}"

    async def ended(self, token: str) -> None:
        await self._daemon.pool.ended(lambda identity: identity.call == token)

    @property
    def settings(self) -> RiskSettings:
        return self._policy.read()

    def find(self, class_: str, name: str, uid: int | None = None) -> Object | None:
        registry = self._daemon.fs.tree.registry
        return registry.objects.get(registry.key_of(class_, name, uid))

    async def hold(self, identity: hostcalls.Identity) -> None:
        view, fs = identity.view, self._daemon.fs
        if view is None or not fs.tree.registry.names("tool", identity.uid) or not fs.own.live(identity.uid):
            return
        paths = [path for path, letters in view if "w" in letters]
        found = await self._daemon.tools.followed(BUILTIN, identity, paths)
        full_view = (*view, *((path, "w") for path in found))
        await fs.hold(identity.uid, partial(may_write, full_view, identity.caps), identity.label)

    async def hold_again(self, keys: Iterable[Key]) -> None:
        """Hold scripts for current runs as well, after their user has changed these scripts. Idle hosts end,
        so that they write nothing more. For busy hosts, the scripts that they can write are held."""
        users = {uid for key in keys if key[0] == "tool" and (uid := uid_of(key)) is not None}
        users = {uid for uid in users if self._daemon.fs.own.live(uid)}
        for identity in await self._daemon.pool.ended(
            lambda each: each.uid in users and each.view is not None
        ):
            try:
                await self.hold(identity)
            except Fault as fault:  # the paths that it can write are unknown, so all are held
                log.warning("scripts of uid %d are held: %s", identity.uid, fault.message)
                await self._daemon.fs.hold(identity.uid, lambda path: True, identity.label)

    def model(self, name: str, home: int | None) -> Object:
        target = self._target(name)
        own = None if home is None else self.find(*own_key("model", home, target))
        found = own or self.find("model", target)
        if found is None:
            mend = "write another into the agent's .d/model; see: ctx ls model"
            raise Fault("EHOSTDOWN", f"there is no model {name or '(none is named)'}; {mend}")
        return found

    def _target(self, name: str) -> str:
        """Follows an alias, and returns provider/model. A name that is no alias of a model stays as it is."""
        for _ in range(MAX_LINKS):
            target = None if "/" in name else self._daemon.fs.model_alias(name)
            if target is None:
                return name
            path = PurePosixPath(os.path.normpath(os.path.join(self.root, "model", target)))
            if not path.is_relative_to(f"{self.root}/model"):
                return name
            name = str(path.relative_to(f"{self.root}/model"))
        return name

    def checked(self, agents: Iterable[Object]) -> dict[Key, Object]:
        """Returns these agents by key. The status of each says what is wrong with its controls now."""
        found = {}
        for object_ in agents:
            status = object_.status
            if object_.class_ == "agent" and not status.startswith("broken"):
                try:
                    self.model(setup_of(self, object_).model, object_.home)
                except Fault as fault:
                    status = f"broken: {fault.message}"
            found[object_.key] = replace(object_, status=status)
        return found

    def driver(self, model: Object) -> Driver:
        return self._daemon.drivers.chosen(model, "agent")

    def context(self, user: Who) -> ContextFiles | None:
        if not user.folder:
            return None
        folder = self._daemon.sessions.root.joinpath(*user.folder)
        return ContextFiles(folder, "/".join((self.root, *user.folder)))

    def grew(self, user: Who, size: int) -> None:
        if user.folder and size:
            space, (class_, folder) = Space("/".join(user.folder[:2]), user.owner), user.folder[2:4]
            self._daemon.sessions.grew(Address(space, class_, folder.removesuffix(".d"), user.session), size)

    def hooked(self, tool: Object, user: Who, call: str) -> MiddlewareCall | None:
        middleware = self._daemon.middleware
        if not middleware.hooks.of_tools:
            return None
        site = Site(user.identity, user.session, user.run, user.cwd or "/", call=call)
        return middleware.of(site, tool.name)

    async def call(
        self,
        tool: Object,
        identity: hostcalls.Identity,
        request: hostcalls.CallRequest,
        say: Callable[[Frame], Awaitable[None]],
        ask: Callable[[hostcalls.ToolQuestion], Awaitable[hostcalls.ToolAnswer]],
    ) -> CallOutcome:
        try:
            run = self._daemon.runs.open("tool", tool.name, identity.uid, "agent")
        except Fault as refused:  # too many at once
            return CallOutcome("", refused)
        fault: Fault | None = Fault("ECANCELED", "")
        try:
            await self.hold(identity)
            if tool.home is not None and identity.view is not None:
                script = own_script.read(self.control(tool, own_script.CONTROL)).path
                identity = replace(identity, view=opened(identity.view, script, "rx"))
            outcome = await self._daemon.tools.call(tool, identity, replace(request, run=run.id), say, ask)
            fault = outcome.fault
            run.bytes_in = len(request.input or b"")
            run.bytes_out = len(outcome.output.encode()) + outcome.missing
            return outcome
        finally:
            self._daemon.runs.close(run, fault)

    async def under(self, object_: Object, identity: hostcalls.Identity, text: str) -> hostcalls.Identity:
        """Returns the identity of a call that another machine makes for its agents. It has the permissions of
        an agent here, and is nested one deeper than there. Raises Fault if there is no such agent here."""
        path, _, number = text.rpartition(" ")
        depth = int(number) if number.isdecimal() and len(number) < 4 else 0
        deeper = replace(identity, depth=max(identity.depth, depth) + 1)
        if not path:
            return deeper
        await in_task()
        agent = self.find(*key_of(path))
        if agent is None or agent.class_ != "agent" or not agent.serves(identity.uid):
            raise Fault(
                "EACCES", f"{path} must decide about agents of other machines, but is not an agent here"
            )
        setup = setup_of(self, agent)
        label = f"{identity.label} {agent.path}" if identity.label else agent.path
        powers = Powers(self, label, identity.uid, setup)
        home = await self.home(identity.uid)
        acted = place.acting(self, setup, powers, deeper, [object_], setup.cwd, home)
        await self.hold(acted)
        return acted

    def admit(self, object_: Object, identity: hostcalls.Identity, arguments: list[bytes]) -> None:
        """Check a call by a run under a label, before the object runs. Raises EACCES unless the label is an
        agent's and its policy allows the call. No user can be asked there, so an approval is a denial."""
        if not is_agents(identity.label):
            raise Fault("EACCES", f"programs of the {identity.label} may not run objects")
        if object_.class_ in (COMMAND_CLASS, OWN):
            raise Fault("EACCES", "agents may not run commands, only tools")
        words = [os.fsdecode(argument) for argument in arguments]
        dry = object_.class_ == "tool" and object_.dry_run_flag and dryrun.is_among(arguments)
        # The host knows if there was a dry run, and asks for one if it has to come first.
        powers = Powers(self, identity.label, identity.uid)
        decision = powers.decide(object_, identity, words, dry_run=dry, tried_dry=True)
        if not decision.allowed:
            raise Fault("EACCES", f"{decision.reason} ({decision.rule})")


class PolicyFile:
    """The settings of policy.toml, which is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._settings = risk.DEFAULT

    def read(self) -> RiskSettings:
        try:
            with believed.opened(self._path) as file:
                status = os.fstat(file.fileno())
                stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
                if stamp != self._stamp:
                    self._settings = risk.decode(file.read().decode(errors="replace"))
                    self._stamp = stamp
                return self._settings
        except FileNotFoundError:
            self._stamp = None
            return risk.DEFAULT
        except OSError as error:
            code, why = code_of(error.errno), f"{self._path} cannot be read: {error.strerror}"
        except Fault as fault:
            if fault.code != "EINVAL":
                raise
            # The file is damaged, and not the input of the run that asks.
            code, why = "EACCES", fault.message
        raise Fault(code, f"{why}; until then agents may do nothing")
