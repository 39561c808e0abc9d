"""The abilities of models whose providers do not list them: a table of another source, renewed by a command.

    <state>/abilities.json      the table that `ctx provider abilities --renew` has read from a source
    kept.table().offers(...)    a provider's models, completed by the table

The source is litellm's list of models (model_prices_and_context_window.json), as a file or in a wheel. Its
keys are ids, or PROVIDER/ID with litellm's own names of providers.

Rules: a source is untrusted input: it is bounded, and rows that cannot be read are left out. A provider's
listing counts more. This file must never know where a source comes from.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.models.providers.listing import BASIC, MAX_LIMIT, NATIVE, ListedModel, ProviderModel, offers
from cortexfs.models.providers.provider import Provider
from cortexfs.state import believed, whole_files
from cortexfs.state.stamps import ReadFile

FILE = "abilities.json"
MAX_SOURCE = 96 << 20  # a wheel of litellm has 42 MiB
MAX_LIST = 32 << 20  # its list has 4 MiB
MAX_TABLE = 16 << 20
MAX_MODELS = 50_000
MAX_ID = 512
_LIST = "model_prices"  # the list's name begins so in a wheel
# Litellm's names of abilities, and ours.
_ABILITIES = {
    "supports_function_calling": NATIVE,
    "supports_vision": "vision",
    "supports_pdf_input": "pdf_input",
    "supports_audio_input": "audio_input",
    "supports_response_schema": "json_schema",
    "supports_reasoning": "reasoning",
}
_MODES = {"chat": BASIC, "responses": BASIC, "embedding": ("embedding",), "rerank": ("rerank",)}
# Providers with a preset here that have another name in litellm's list.
_CALLED = {"google": "gemini", "together": "together_ai", "fireworks": "fireworks_ai", "qwen": "dashscope"}


class KnownModel(msgspec.Struct, frozen=True, omit_defaults=True):
    cap: tuple[str, ...]
    limit: int | None = None


class AbilityTable(msgspec.Struct, frozen=True):
    source: str = ""
    time: float = 0
    models: dict[str, KnownModel] = {}

    def of(self, provider: str, id_: str) -> KnownModel | None:
        return self.models.get(f"{_CALLED.get(provider, provider)}/{id_}") or self.models.get(id_)

    def offers(self, name: str, provider: Provider, listed: Iterable[ListedModel]) -> list[ProviderModel]:
        """Returns the models of a provider; the table adds facts that the listing lacks."""
        return [self._completed(offer, provider.tools) for offer in offers(name, provider, listed)]

    def _completed(self, offer: ProviderModel, says_little: bool) -> ProviderModel:
        """`says_little`: the provider's listings may name other abilities, but never that to call tools."""
        listed = offer.known
        if (entry := self.of(offer.provider, listed.id)) is None:
            return offer
        cap = listed.cap
        if cap == BASIC:
            cap = entry.cap
        elif says_little:
            cap = tuple(dict.fromkeys((*cap, *entry.cap)))
        limit = listed.limit or entry.limit
        return offer._replace(listed=replace(listed, limit=limit, cap=cap), is_known=True)


class KeptAbilities:
    """The table of a state directory, read anew when it has changed. Blocks."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE
        self._file = ReadFile(self._path, self._read)

    def table(self) -> AbilityTable:
        """Returns the table, or an empty table if the file cannot be read: a command can renew it."""
        try:
            return self._file.value()
        except (OSError, Fault, *UNREADABLE):
            return AbilityTable()

    def _read(self) -> AbilityTable:
        return msgspec.json.decode(believed.read(self._path, MAX_TABLE), type=AbilityTable)

    def keep(self, table: AbilityTable) -> None:
        whole_files.replace(self._path, [msgspec.json.encode(table)], 0o644)


def read(data: bytes, source: str, time: float) -> AbilityTable:
    """Returns the table from the data of a source. Raises EINVAL if the data is no such list."""
    try:
        rows = msgspec.json.decode(_list_of(data), type=dict[str, Any])
    except UNREADABLE:
        rows = {}
    if len(rows) > MAX_MODELS:
        raise Fault("EMSGSIZE", f"{source} has over {MAX_MODELS:,} models")
    models = {name: model for name, row in rows.items() if len(name) <= MAX_ID and (model := _model(row))}
    if not models:
        raise Fault("EINVAL", f"{source} is neither litellm's list of models nor a wheel that contains it")
    return AbilityTable(source, time, models)


def _list_of(data: bytes) -> bytes:
    if not data.startswith(b"PK"):
        return data
    import lzma  # these imports cost time, and only a wheel needs them
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            for entry in wheel.infolist():
                if entry.filename.rpartition("/")[2].startswith(_LIST):
                    with wheel.open(entry) as file:
                        return file.read(MAX_LIST)
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, RuntimeError, ValueError):
        pass  # the wheel is damaged, or has a compression that Python lacks
    return b""


def _model(row: Any) -> KnownModel | None:
    mode = row.get("mode") if isinstance(row, dict) else None
    basic = _MODES.get(mode) if isinstance(mode, str) else None
    if basic is None:
        return None
    words = [word for key, word in _ABILITIES.items() if row.get(key) is True]
    limit = row.get("max_input_tokens")
    is_limit = type(limit) is int and 0 < limit <= MAX_LIMIT
    return KnownModel((*basic, *words) if basic == BASIC else basic, limit if is_limit else None)
