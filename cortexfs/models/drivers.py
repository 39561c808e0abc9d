"""The drivers of models, and the choice of the driver that answers for a model.

A model's `.d/driver` is one word, or lines `exec=`, `socket=`, `agent=` and `default=`, each a comma list
by priority. The first name with a driver for the model is taken. Names of DRIVERS fit every model, names of
FORMATS fit a model that a provider serves, and each name of `makers` fits the objects that its maker knows.

Rules: each exception of a driver ends here, as a Fault; a cancellation goes through. Controls are read
when a run begins, so a change of a control counts from the next run on.
This file must never know sockets, sessions or runners.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from cortexfs.core import value_formats
from cortexfs.core.errors import Fault, bare
from cortexfs.core.frames import Progress
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Key, Object, own_key
from cortexfs.models import debug
from cortexfs.models.ask.driver import Driver, Turn
from cortexfs.models.ask.model import NoAnswer, model_of, provider_of
from cortexfs.models.exchange.answering import Attempts, RetryTerms
from cortexfs.models.exchange.clients import Clients
from cortexfs.models.exchange.sources import ModelSource
from cortexfs.models.formats import anthropic_messages, openai_chat, openai_responses
from cortexfs.models.formats.format import Format

DRIVERS: dict[str, Driver] = {
    "debug.echo": debug.echo,
    "debug.script": debug.script,
}
FORMATS: dict[str, Format] = {
    "openai.chat": openai_chat.FORMAT,
    "openai.responses": openai_responses.FORMAT,
    "anthropic.messages": anthropic_messages.FORMAT,
    "google": openai_chat.GOOGLE,
}

# Returns a driver for an object that it knows, and None for other objects.
Maker: TypeAlias = Callable[[Object], Driver | None]

log = logging.getLogger("cortexfs")


def driver_names(control: str, use: str) -> list[str]:
    """Returns the names that the text of `.d/driver` has for a use (exec, socket, agent), by priority."""
    rows = [line.partition("=") for line in control.split("\n") if line]
    by_use = {key: value for key, equals, value in rows if equals}
    plain = [key for key, equals, _ in rows if not equals]
    listed = [*by_use.get(use, "").split(","), *by_use.get("default", "").split(","), *plain]
    return [name for name in dict.fromkeys(listed) if name]


def _none(agent: Object) -> Driver:
    raise Fault("EHOSTDOWN", f"{agent.name} cannot answer: this daemon does not run agents")


class Drivers:
    """The drivers of a daemon's models, and their connections to providers."""

    def __init__(
        self,
        find: Callable[[Key], Object | None],
        control: Callable[[Object, str], str],
        makers: Mapping[str, Maker] | None = None,
        terms: RetryTerms | None = None,
        heard: Callable[[Object, Driver], Driver] = lambda object_, driver: driver,
        as_user: Callable[[Identity], Clients] = lambda identity: Clients(),
        metered: Callable[[Object, Driver], Driver] = lambda object_, driver: driver,
    ) -> None:
        self._find = find
        self.agent: Callable[[Object], Driver] = _none  # the driver of an agent, which asks models itself
        self.remote_agent: Callable[[Object], Driver] = _none  # the driver of another machine's agent
        self._control = control
        self._makers = makers or {}
        self._terms = terms or RetryTerms()
        self._observe = heard  # wraps a driver to pass its answers to observers
        self._metered = metered  # wraps a driver that uses tokens with a meter
        self._sources: Mapping[str, ModelSource] = {}
        self.own: Mapping[tuple[int, str], ModelSource] = {}  # users' own, by uid and name
        self._as_user = as_user  # makes the connections to users' own providers
        self._clients = Clients()

    async def apply(self, sources: Mapping[str, ModelSource]) -> None:
        """Use these providers from now on. Answers that have begun go on with the old ones."""
        self._sources = sources
        self._clients.forget()

    def of(self, key: Key) -> Driver:
        """Returns the driver that answers in an object's sessions now."""
        object_ = self._find(key)
        if object_ is None:
            raise Fault("EHOSTDOWN", f"there is no {key[0]} {key[1]} any more; see: ctx ls")
        return self.chosen(object_, "socket")

    def chosen(self, object_: Object, use: str) -> Driver:
        """Returns the driver of an object now, followed by the drivers of the models in its `.d/fallback`."""
        if object_.class_ == "agent":
            return self.agent(object_) if object_.plugin is None else self.remote_agent(object_)
        first = self._model_driver(object_, use)
        fallback = self._control(object_, "fallback")
        listed = [line for _, line in value_formats.rules(fallback)] if fallback else []
        behind = [name for name in listed if name != object_.name]
        return partial(self._chain, object_, first, behind, use) if behind else first

    def _model_driver(self, object_: Object, use: str) -> Driver:
        """Returns the driver that answers for a model. Raises EHOSTDOWN if no name of its control has one."""
        names = driver_names(self._control(object_, "driver"), use)
        for name in names:
            if driver := self._by_name(object_, name):
                return self._observe(object_, driver)
        lacking = f"there is no driver {' or '.join(names)}" if names else f"it names no driver for {use}"
        if any(name in FORMATS for name in names):
            lacking = "no provider serves it"
        choices = [name for name in (*DRIVERS, *FORMATS, *self._makers) if self._by_name(object_, name)]
        mend = f"write one of {', '.join(choices)} into its .d/driver, or remove that file"
        raise Fault("EHOSTDOWN", f"{object_.name} cannot answer: {lacking}; {mend}")

    def _by_name(self, object_: Object, name: str) -> Driver | None:
        if name in DRIVERS:
            return DRIVERS[name]
        driver: Driver | None = None
        if name in FORMATS:
            served_by, home = provider_of(object_), object_.home
            source = self._sources.get(served_by) if home is None else self.own.get((home, served_by))
            driver = partial(self._ask, object_, name, source) if source else None
        elif name in self._makers and object_.home is None:
            driver = self._makers[name](object_)
        return self._metered(object_, driver) if driver else None

    async def _ask(self, object_: Object, format_: str, source: ModelSource, turn: Turn) -> None:
        model = model_of(object_, self._control)
        used, clients = source._replace(format=format_), self._clients
        if object_.home is not None:
            if object_.status.startswith("broken"):
                raise Fault("EHOSTDOWN", f"{object_.path} is {object_.status}")
            if not object_.serves(turn.uid):
                raise Fault("EACCES", f"{object_.path} works only for uid {object_.home}, its owner")
            clients = self._as_user(turn.who.identity)
        await Attempts(model, FORMATS[format_], used, clients, turn, self._terms).answer()

    async def _chain(self, object_: Object, first: Driver, behind: list[str], use: str, turn: Turn) -> None:
        """Ask one model after the other, until a part of an answer was sent. Each hop is reported."""
        name, driver = object_.name, first
        for fallback in behind:
            try:
                await driver(turn)
                return
            except NoAnswer as fault:
                why = fault.message
            await turn.say(Progress(message=f"{why}; asking {fallback} instead of {name}"))
            name, driver = fallback, self._behind(object_.home, fallback, use)
        await driver(turn)

    def _behind(self, home: int | None, name: str, use: str) -> Driver:
        """Returns the driver of a model in a chain. For a model in a home, models of that home come first. If
        there is none, the driver has no answer."""
        own = None if home is None else self._find(own_key("model", home, name))
        object_ = own or self._find(("model", name))
        why = f"there is no model {name}"
        if object_ is not None:
            try:
                return self._model_driver(object_, use)
            except Fault as fault:
                why = fault.message

        async def answer(turn: Turn) -> None:
            raise NoAnswer("EHOSTDOWN", why)

        return answer


async def answered(driver: Driver, turn: Turn) -> Fault | None:
    """Let the driver answer, and return its Fault if it fails. This is the guard of this edge: a driver's bug
    ends its own run and no other."""
    try:
        await driver(turn)
    except Fault as fault:
        return bare(fault)
    except Exception:  # the log has the traceback, and the run ends with a sentence
        log.exception("a driver has a bug")
        return Fault("EPROTO", "the model's driver has failed; the daemon's log has the reason")
    return None
