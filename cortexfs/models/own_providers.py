"""Providers of users' own on a mount of root's: they are kept for each user, who changes them by requests.

    <state>/own/UID/providers/NAME.toml     a provider; NAME.json has its last listing
    <state>/own/UID/secrets/NAME            its key

Main path: the command line has the runner run `.own` with an OwnRequest on its standard input, and `answer`
fulfils the request for the user that has connected. `load` makes objects of the kept providers.

Rules: a user sees only the user's own providers, and no other user may name them. The daemon connects to
none of their addresses (models/exchange/as_user.py). For a key it runs no command and reads no variable of
its own, and it shows no key. A user's providers and models are bounded in number: each model is a listener.
This file must never know the tree.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import trio
from msgspec.structs import replace

from cortexfs.core import jsontext, names
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Message, Text
from cortexfs.core.hostcalls import Identity
from cortexfs.core.registry import Key, Object
from cortexfs.models.ask.driver import Turn
from cortexfs.models.ask.model import provider_of
from cortexfs.models.exchange import listing_request
from cortexfs.models.exchange.as_user import AsUser
from cortexfs.models.exchange.sources import ModelSource, served
from cortexfs.models.providers import provider as files
from cortexfs.models.providers.abilities import KeptAbilities
from cortexfs.models.providers.files import Providers, check_name
from cortexfs.models.providers.listing import ListedModel
from cortexfs.models.providers.provider import Provider
from cortexfs.models.providers.secrets import Secrets, checked
from cortexfs.net import web

CLASS = "provider"  # the class of the object that callers run as `.own`
MANAGED = Object(class_=CLASS, name="own", description="")
FOLDER = "own"
MAX_PROVIDERS = 16  # of a user
MAX_MODELS = 512
MAX_IN_TREE = 2048
MAX_FILE = 64 << 10
AT_ONCE = 8  # users whose providers are asked for listings


class OwnRequest(msgspec.Struct, forbid_unknown_fields=True):
    do: Literal["list", "add", "secret", "remove", "models", "test"]
    name: str = ""
    provider: Provider | None = None
    key: str = ""
    refresh: bool = False


class OwnModels(NamedTuple):
    objects: dict[Key, Object]
    sources: dict[tuple[int, str], ModelSource]


class _Kept(NamedTuple):
    """The providers of one user, and their keys."""

    providers: Providers
    secrets: Secrets
    identity: Identity


class OwnProviders:
    def __init__(
        self,
        state: Path,
        as_user: AsUser,
        is_taken: Callable[[str], bool],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """`is_taken` tells if everybody's providers have a name; `changed` has the tree call `load` again."""
        self._folder = state / FOLDER
        self._abilities = KeptAbilities(state)  # of the whole mount
        self._as_user = as_user
        self._is_taken = is_taken
        self._changed = changed
        self._busy: set[int] = set()
        self._asking = trio.CapacityLimiter(AT_ONCE)

    def load(self) -> OwnModels:
        """Returns the models of all users' own providers. Blocks."""
        objects: dict[Key, Object] = {}
        sources: dict[tuple[int, str], ModelSource] = {}
        for uid in self._users():
            result = served(*self._of(uid))
            models: dict[Key, Object] = {}
            for object_ in result.objects:
                if len(models) < MAX_MODELS and len(objects) + len(models) < MAX_IN_TREE:
                    own = _own(object_, uid)
                    models.setdefault(own.key, own)
            objects |= models
            sources |= {(uid, name): source for name, source in result.sources.items()}
        return OwnModels(objects, sources)

    def _users(self) -> list[int]:
        try:
            return sorted(int(name) for name in os.listdir(self._folder) if name.isdecimal())
        except FileNotFoundError:
            return []

    def _of(self, uid: int) -> tuple[Providers, Secrets]:
        folder = self._folder / str(uid)
        return Providers(folder, folder, self._abilities), Secrets(folder)

    async def answer(self, turn: Turn) -> None:
        """The driver of `.own`."""
        identity = turn.who.identity
        if os.geteuid() or not identity.uid:
            raise Fault("EINVAL", "here providers are in the configuration of the mount; see: ctx provider")
        self._as_user.clients(identity)  # raises at once for a caller in a container
        value = turn.input["input"] if isinstance(turn.input, dict) else None
        request = jsontext.converted(value, OwnRequest)
        if identity.uid in self._busy:
            raise Fault("EAGAIN", "another command of yours changes your providers; try again")
        self._busy.add(identity.uid)
        try:
            output = await _DO[request.do](self, request, _Kept(*self._of(identity.uid), identity))
        finally:
            self._busy.discard(identity.uid)
        await turn.say(Message(role="assistant", content=[Text(msgspec.json.encode(output).decode())]))

    # The requests of users.

    async def _add(self, request: OwnRequest, stores: _Kept) -> Any:
        name, provider = check_name(request.name), request.provider
        if provider is None or provider.key is not None:
            why = "root's daemon cannot read your variables or run your commands"
            raise Fault("EINVAL", f"type or pipe your key: {why}")
        if self._is_taken(name):
            why = f"model/{name} is a provider of the whole mount, and your sessions would mix with its own"
            raise Fault("EEXIST", f"{why}; choose another name, and add --vendor for a known vendor")
        data = files.encode(provider)
        if len(data) > MAX_FILE or len(stores.providers.load().providers) >= MAX_PROVIDERS:
            raise Fault("EDQUOT", f"you may have {MAX_PROVIDERS} providers, each of {MAX_FILE >> 10} KiB")
        provider = files.decode(data, "the provider")
        key = checked(request.key.encode(), "the key") if request.key else ""
        await trio.to_thread.run_sync(stores.providers.add, name, provider)
        if key:
            await trio.to_thread.run_sync(stores.secrets.set, name, key.encode())
        return await self._refreshed(name, provider, stores)

    async def _secret(self, request: OwnRequest, stores: _Kept) -> Any:
        provider = stores.providers.read(request.name)
        await trio.to_thread.run_sync(stores.secrets.set, request.name, request.key.encode())
        return await self._refreshed(request.name, provider, stores)

    async def _refreshed(self, name: str, provider: Provider, stores: _Kept) -> str:
        """Returns a sentence about the provider's models, even if the provider does not answer now."""
        sentence = f"{len(provider.models) + len(provider.model)} models declared"
        try:
            if provider.listed:
                sentence = f"{len(await self._listed(name, provider, stores))} models listed"
        except Fault as fault:
            mend = f"ask again with: ctx provider models {name} --refresh"
            sentence = f"its models are not listed yet: {fault.message}; {mend}"
        await self._changed()
        return sentence

    async def _remove(self, request: OwnRequest, stores: _Kept) -> Any:
        await trio.to_thread.run_sync(stores.providers.remove, names.check(request.name))
        await trio.to_thread.run_sync(stores.secrets.remove, request.name)
        await self._changed()
        return "removed"

    async def _models(self, request: OwnRequest, stores: _Kept) -> Any:
        provider = stores.providers.read(request.name)
        if request.refresh and provider.listed:
            await self._listed(request.name, provider, stores)
            await self._changed()
        return stores.providers.model_rows(request.name, provider)

    async def _test(self, request: OwnRequest, stores: _Kept) -> Any:
        provider = stores.providers.read(request.name)
        return len(await self._listed(request.name, provider, stores))

    async def _list(self, request: OwnRequest, stores: _Kept) -> Any:
        providers = stores.providers.load().providers
        return [stores.providers.about(name, each, stores.secrets) for name, each in providers.items()]

    async def _listed(self, name: str, provider: Provider, stores: _Kept) -> list[ListedModel]:
        """Returns the provider's models, which a host of this user requests, and keeps them."""
        key = await trio.to_thread.run_sync(stores.secrets.get, name)

        def get(url: str, headers: dict[str, str]) -> web.WebAnswer:
            return trio.from_thread.run(self._as_user.get, stores.identity, url, headers)

        models = await trio.to_thread.run_sync(
            listing_request.models, name, provider, key, get, limiter=self._asking
        )
        models = models[:MAX_MODELS]
        await trio.to_thread.run_sync(stores.providers.keep, name, provider, models, time.time())
        return models


_DO: Mapping[str, Callable[[OwnProviders, OwnRequest, _Kept], Awaitable[Any]]] = {
    "list": OwnProviders._list,
    "add": OwnProviders._add,
    "secret": OwnProviders._secret,
    "remove": OwnProviders._remove,
    "models": OwnProviders._models,
    "test": OwnProviders._test,
}


def _own(model: Object, uid: int) -> Object:
    """Returns the model with a name below the provider's: a user cannot take names of other vendors."""
    above = provider_of(model)
    name = model.name if model.name.startswith(f"{above}/") else f"{above}/{names.clean(model.extra['id'])}"
    return replace(model, home=uid, name=name)
