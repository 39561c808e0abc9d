"""The head of a GGUF file: the part that has a model's name and limits.

The layout (ggml's docs/gguf.md): magic, version, number of tensors, number of pairs; then pairs of a name,
a type and a value, little-endian throughout.

Rules: the file is untrusted input. Each length is checked against the limit before the bytes are read. The
vocabulary, some MB, is skipped. To skip it takes some ten ms, so a head ends where the vocabulary begins.
This file must never know the use of the facts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from cortexfs.core.errors import Fault, os_faults

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_PAIRS = 10_000
MAX_TEXT = 1 << 20  # bytes of a value that is kept; chat templates have some KiB
MAX_METADATA = 256 << 20  # the largest vocabularies take a tenth of it
MAX_ITEMS = 4_000_000  # of lists of texts, which must be read one by one

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {number: struct.Struct("<" + code) for number, code in enumerate("BbHhIif?")} | {
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_TEXT, _LIST = 8, 9
_VOCABULARY = "tokenizer."  # the names of the vocabulary's facts begin so
_CONTEXT = "{}.context_length"  # the name of the fact, by architecture


class ModelFileFacts(NamedTuple):
    name: str  # empty if the file has none
    organization: str
    architecture: str
    context: int | None  # tokens of a context in the model's training
    chats: bool  # the file has a template of conversations
    license: str


def facts(path: Path, is_whole: bool = True) -> ModelFileFacts:
    """Returns a file's facts. Raises EINVAL if no engine could load the file. The facts of a head lack
    `chats`, which llama.cpp writes behind the vocabulary."""
    pairs: dict[str, object] = {}
    with os_faults(f"{path} cannot be read"), open(path, "rb") as file:
        for key, value in _Reader(file, path).pairs():
            pairs[key] = value
            context_key = _CONTEXT.format(pairs.get("general.architecture"))
            if not is_whole and key.startswith(_VOCABULARY) and context_key in pairs:
                break
    if not (architecture := _text(pairs, "general.architecture")):
        raise Fault("EINVAL", f"{path} does not name the architecture of its model")
    if _text(pairs, "general.type") not in ("", "model"):
        raise Fault("EINVAL", f"{path} is of the type {_text(pairs, 'general.type')}, not a whole model")
    if (parts := pairs.get("split.count", 1)) not in (0, 1):
        raise Fault("EINVAL", f"{path} is one of {parts} parts; join them with: llama-gguf-split --merge")
    context = pairs.get(_CONTEXT.format(architecture))
    return ModelFileFacts(
        name=_text(pairs, "general.name"),
        organization=_text(pairs, "general.organization"),
        architecture=architecture,
        context=context if isinstance(context, int) and context > 0 else None,
        chats=bool(_text(pairs, "tokenizer.chat_template")),
        license=_text(pairs, "general.license"),
    )


def _text(pairs: Mapping[str, object], key: str) -> str:
    value = pairs.get(key)
    return value if isinstance(value, str) else ""


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._budget = MAX_METADATA
        self._items = MAX_ITEMS

    def pairs(self) -> Iterator[tuple[str, object]]:
        """Yields all pairs whose values are no lists."""
        if self._file.read(4) != MAGIC:
            raise self._bad("does not begin with GGUF")
        if (version := self._number(_U32)) not in VERSIONS:
            raise self._bad(f"has version {version}; known versions: {' and '.join(map(str, VERSIONS))}")
        self._number(_U64)
        if (count := self._number(_U64)) > MAX_PAIRS:
            raise self._bad(f"has {count} entries of metadata, over the limit of {MAX_PAIRS}")
        for _ in range(count):
            key = self._words()
            value = self._value(self._number(_U32))
            if value is not None:
                yield key, value

    def _value(self, kind: int) -> object:
        if kind in _SCALARS:
            return _SCALARS[kind].unpack(self._bytes(_SCALARS[kind].size))[0]
        if kind == _TEXT:
            return self._words()
        if kind != _LIST:
            raise self._bad(f"has a value of the unknown type {kind}")
        self._skip_list(self._number(_U32), self._number(_U64))
        return None

    def _skip_list(self, kind: int, count: int) -> None:
        if kind in _SCALARS:
            self._skip(count * _SCALARS[kind].size)
            return
        if kind != _TEXT:
            raise self._bad("has a list of lists, or of an unknown type")
        self._items -= count
        if self._items < 0:
            raise self._bad(f"has lists of more than {MAX_ITEMS} texts")
        for _ in range(count):
            self._skip(self._number(_U64))

    def _words(self) -> str:
        length = self._number(_U64)
        if length > MAX_TEXT:
            raise self._bad(f"has a text of {length} bytes, over the limit of {MAX_TEXT}")
        return self._bytes(length).decode("utf-8", "replace")

    def _number(self, shape: struct.Struct) -> int:
        return int(shape.unpack(self._bytes(shape.size))[0])

    def _bytes(self, length: int) -> bytes:
        self._spend(length)
        data = self._file.read(length)
        if len(data) < length:
            raise self._bad("ends in the middle of its metadata")
        return data

    def _skip(self, length: int) -> None:
        self._spend(length)
        self._file.seek(length, 1)

    def _spend(self, length: int) -> None:
        self._budget -= length
        if self._budget < 0:
            raise self._bad(f"has more than {MAX_METADATA >> 20} MiB of metadata")

    def _bad(self, why: str) -> Fault:
        return Fault("EINVAL", f"{self._path} cannot be used as a GGUF file: it {why}")
