"""The models of a provider: its listing is read, and becomes objects of the tree together with its file.

Rules: a listing is untrusted input: it is bounded, and rows that are no models are left out. A limit or an
ability that the listing lacks is unknown, never guessed. Names follow abi.md 2; the id stays unchanged. Of
two models with one name, the model of the file counts before listed ones, and the first listed before others.
A model that cannot be asked is in the tree, and its status names the reason.
This file must never know connections or secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.core.registry import Object
from cortexfs.core.safe_text import one_line
from cortexfs.models.ask.model import PROVIDER, written
from cortexfs.models.providers.provider import DeclaredModel, Provider

MAX_BODY = 32 << 20  # OpenRouter's is half a MiB
MAX_MODELS = 10_000
MAX_DESCRIPTION = 300
MAX_LIMIT = (1 << 32) - 1

# The places where listings have the number of tokens that a model takes, the strictest first.
LIMITS = (
    ("max_input_tokens",),  # Anthropic
    ("inputTokenLimit",),  # Google
    ("meta", "n_ctx"),  # llama.cpp: of the model as it is loaded now
    ("max_model_len",),  # vLLM
    ("loaded_context_length",),  # LM Studio
    ("top_provider", "context_length"),  # OpenRouter
    ("context_length",),  # OpenRouter, Together
    ("context_window",),  # Groq
    ("max_context_length",),  # Mistral, LM Studio
    ("meta", "n_ctx_train"),
)
NATIVE = "tool_call_syntax"  # the model has a syntax of its own for calls
# The names of abilities in listings, and ours.
ABILITIES: dict[str, str] = {
    "vision": "vision",
    "image": "vision",
    "image_input": "vision",
    "audio": "audio_input",
    "pdf_input": "pdf_input",
    "file": "pdf_input",
    "function_calling": NATIVE,
    "tools": NATIVE,
    "tool_use": NATIVE,
    "structured_outputs": "json_schema",
    "response_format": "json_schema",
    "reasoning": "reasoning",
    "thinking": "reasoning",
    "effort": "reasoning",
}
BASIC = ("chat", "stream", "session")
OTHERS = ("embedding", "embeddings", "rerank", "image", "audio", "moderation")  # types without chat


class ListedModel(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str
    limit: int | None = None
    cap: tuple[str, ...] = BASIC
    description: str = ""


class Listing(msgspec.Struct, frozen=True):
    """A listing as the state keeps it."""

    base_url: str  # the provider's then: one that has moved is listed anew
    time: float
    models: tuple[ListedModel, ...]


class _Page(msgspec.Struct):
    data: list[dict[str, Any]] | None = None
    models: list[dict[str, Any]] | None = None
    has_more: bool = False
    last_id: str | None = None


def decode(body: bytes) -> tuple[list[ListedModel], str]:
    """Returns the models of one page, and the id after which the next page begins, or "" at the end."""
    try:
        value = msgspec.json.decode(body)
        page = msgspec.convert({"data": value} if isinstance(value, list) else value, _Page)
    except UNREADABLE:
        raise Fault("EREMOTEIO", "its listing cannot be read; declare its models instead") from None
    rows = page.data if page.data is not None else page.models or []
    found = [listed for row in rows[:MAX_MODELS] if (listed := _listed(row))]
    return found, (page.last_id or "") if page.has_more else ""


def _listed(row: Mapping[str, Any]) -> ListedModel | None:
    id_ = row.get("id") or row.get("name")
    if not isinstance(id_, str) or not id_.strip() or not id_.isprintable() or len(id_) > 512:
        return None
    about = row.get("description") or row.get("display_name") or ""
    description = one_line(about)[:MAX_DESCRIPTION] if isinstance(about, str) else ""
    return ListedModel(id_.removeprefix("models/"), _limit(row), _cap(row), description)


def _limit(row: Mapping[str, Any]) -> int | None:
    for path in LIMITS:
        value: Any = row
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if type(value) is int and 0 < value <= MAX_LIMIT:
            return value
    return None


def _cap(row: Mapping[str, Any]) -> tuple[str, ...]:
    kind = row.get("type")
    if kind in OTHERS or _section(row, "capabilities").get("completion_chat") is False:
        return ("rerank",) if kind == "rerank" else ("embedding",) if "embed" in str(row) else ()
    abilities = set(_true(_section(row, "capabilities")))
    for source, key in ((row, "supported_parameters"), (_section(row, "architecture"), "input_modalities")):
        abilities |= {word for word in _list(source.get(key)) if isinstance(word, str)}
    abilities |= {word for word in _list(row.get("capabilities")) if isinstance(word, str)}
    words = [word for name, word in ABILITIES.items() if name in abilities]
    return tuple(dict.fromkeys((*BASIC, *words)))


def _section(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _true(capabilities: Mapping[str, Any]) -> Iterable[str]:
    """Yields the names whose value is true, as for Mistral, or {"supported": true}, as for Anthropic."""
    for name, value in capabilities.items():
        if value is True or (isinstance(value, dict) and value.get("supported") is True):
            yield name


def tree_name(provider: str, id_: str) -> str:
    """abi.md 2.5: an aggregator's id `vendor/model` keeps its vendor; other ids stand below the provider."""
    vendor, slash, rest = id_.partition("/")
    if slash and vendor and rest and "/" not in rest:
        return f"{names.clean(vendor)}/{names.clean(rest)}"
    return f"{provider}/{names.clean(id_)}"


class ProviderModel(NamedTuple):
    """A model of a provider, with its name in the tree."""

    name: str
    provider: str
    declared: DeclaredModel
    listed: ListedModel | None
    is_known: bool = False  # the table of abilities has it, and has completed `listed`

    @property
    def known(self) -> ListedModel:
        """The listed model, or one with no facts but the id."""
        return self.listed or ListedModel(self.declared.id)


def offers(name: str, provider: Provider, listed: Iterable[ListedModel]) -> list[ProviderModel]:
    """Returns the models of a provider. An id whose name is taken already is left out."""
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
    declared, listed = offer.declared, offer.known
    limit = declared.limit or listed.limit
    lacks_key = provider.needs_key and not has_key
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
        status=f"no key: ctx provider secret set {offer.provider}" if lacks_key else "ready",
        registered=registered,
        extra=extra,
    )


def cap(offer: ProviderModel, provider: Provider) -> tuple[str, ...]:
    """Returns the abilities of a model from the provider's file, or else from its listing and the table."""
    if offer.declared.cap is not None:
        return offer.declared.cap
    abilities = offer.known.cap or BASIC
    added = provider.tools and not offer.is_known and "chat" in abilities and NATIVE not in abilities
    return (*abilities, NATIVE) if added else abilities


def resolved(offers_: Iterable[ProviderModel], name: str) -> ProviderModel:
    """Returns the offer of that name. Raises ENOENT if no provider has it."""
    for offer in offers_:
        if offer.name == name:
            return offer
    raise Fault("ENOENT", f"no provider has a model {name}; see: ctx provider models")
