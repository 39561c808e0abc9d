"""The models of providers as objects: what `.d/` shows of them before anybody writes into it.

Rules: of two models of one name, a provider has the one that its file declares, else the one that it lists
first. A model that cannot be asked is there, and its status says why.
This file must never know connections or secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object
from cortexfs.models.ask.model import PROVIDER, written
from cortexfs.models.providers.listing import BASIC, NATIVE, ListedModel, tree_name
from cortexfs.models.providers.provider import DeclaredModel, Provider


class ProviderModel(NamedTuple):
    """A model that a provider has, by its name in the tree."""

    name: str
    provider: str
    declared: DeclaredModel
    listed: ListedModel | None


def offers(name: str, provider: Provider, listed: Iterable[ListedModel]) -> list[ProviderModel]:
    """Returns the models of a provider; ids that fall on a name that is taken are left out."""
    found: dict[str, ProviderModel] = {}
    for offer in _offers(name, provider, {each.id: each for each in listed}):
        found.setdefault(offer.name, offer)
    return list(found.values())


def _offers(name: str, provider: Provider, listed: Mapping[str, ListedModel]) -> Iterator[ProviderModel]:
    for declared in provider.model:
        yield ProviderModel(
            declared.name or tree_name(name, declared.id), name, declared, listed.get(declared.id)
        )
    for id_ in (*provider.models, *listed):
        yield ProviderModel(tree_name(name, id_), name, DeclaredModel(id_), listed.get(id_))


def object_of(offer: ProviderModel, provider: Provider, registered: float, has_key: bool) -> Object:
    """The object of a model that a provider has."""
    declared, listed = offer.declared, offer.listed or ListedModel(offer.declared.id)
    limit = declared.limit or listed.limit
    extra = {
        "id": declared.id,
        "driver": provider.format,
        "cap": "\n".join(cap(offer, provider)),
        "effort": declared.effort,
        "default": written(declared.default),
        "fallback": "\n".join(declared.fallback),
        "limit": str(limit) if limit else "unknown",
        "session": "socket",
    }
    return Object(
        class_="model",
        name=offer.name,
        description=declared.description or listed.description or f"{declared.id}, by {offer.provider}.",
        origin=PROVIDER + offer.provider,
        status="ready" if has_key or not provider.needs_key else _no_key(offer.provider),
        registered=registered,
        extra=extra,
    )


def cap(offer: ProviderModel, provider: Provider) -> tuple[str, ...]:
    """Returns its abilities, as the file says, else as its listing does."""
    if offer.declared.cap is not None:
        return offer.declared.cap
    told = (offer.listed.cap if offer.listed else ()) or BASIC
    added = provider.tools and "chat" in told and NATIVE not in told
    return (*told, NATIVE) if added else told


def _no_key(provider: str) -> str:
    return f"no key: ctx provider secret set {provider}"


def resolved(offers_: Iterable[ProviderModel], name: str) -> ProviderModel:
    """The offer of that name; ENOENT where no provider has it."""
    for offer in offers_:
        if offer.name == name:
            return offer
    raise Fault("ENOENT", f"no provider has a model {name}; see: ctx ls model")
