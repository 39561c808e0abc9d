"""What plugins have said of themselves, kept on the disk, so that a daemon which starts need not ask again.

Only of kinds that answer by nothing but what their host is told (`KINDS`): asking one costs a process and a
compilation, a tenth of a second, and changes nothing.

Rules: an answer is known by all that the host was told, and by this version of the program. A file that is
odd or missing is as if nobody had answered yet. Whoever reads one checks it as if the plugin said it now.
This file must never know what an answer means.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Collection
from pathlib import Path

import msgspec

from cortexfs.core import calls
from cortexfs.host import wasm
from cortexfs.version import VERSION

FOLDER = "descriptions"
KINDS = (wasm.KIND,)
MAX_FILE = 16 << 20


class _Answer(msgspec.Struct, frozen=True):
    asked: str
    said: msgspec.Raw


class Descriptions:
    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    def keeps(self, plugin: calls.Plugin) -> bool:
        return plugin.kind in KINDS

    def get(self, plugin: calls.Plugin) -> bytes | None:
        try:
            with open(self._folder / plugin.name, "rb") as file:
                answer = msgspec.json.decode(file.read(MAX_FILE), type=_Answer)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return bytes(answer.said) if answer.asked == _asked(plugin) else None

    def put(self, plugin: calls.Plugin, said: bytes) -> None:
        """Keep it, if that can be done; a disk that is full is in nobody's way."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            draft = self._folder / f".{plugin.name}"
            draft.write_bytes(msgspec.json.encode(_Answer(_asked(plugin), msgspec.Raw(said))))
            draft.replace(self._folder / plugin.name)

    def sweep(self, names: Collection[str]) -> None:
        """Forget the plugins that are not among these."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._folder):
                if name not in names:
                    (self._folder / name).unlink()


def _asked(plugin: calls.Plugin) -> str:
    return hashlib.sha256(VERSION.encode() + b"\0" + msgspec.msgpack.encode(plugin)).hexdigest()
