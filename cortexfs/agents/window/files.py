"""The files of a session's context/: what its agent's model received, and what did not fit.

    context/summary.md       a summary of earlier events, and their numbers
            pack.json        the parts of the last question
            pinned/N.md      a fact that the model shall not forget: `/pin TEXT` adds one, rm removes it
            output/CALL.txt  a tool's output that was too long for the model to get whole

Rules: each file may be missing, damaged or removed at any time, as if it had never existed. Files are
replaced as a whole. Writing here does not bring back a removed session. If a file cannot be written, the
daemon's log says so, and the run goes on; for a pin, its user gets the error. These calls block: they belong
in a thread, and those of one session run one at a time.
This file must never know models or tasks.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from cortexfs.agents.window.context import FormerContext, Pin, Summary, read_summary, summary_text
from cortexfs.core import names
from cortexfs.core.errors import Fault, os_faults
from cortexfs.core.tree import session_places
from cortexfs.state import no_links, whole_files

MAX_OUTPUTS = 64 << 20  # bytes of one session; beyond them the oldest go
MAX_FILES = 1000
MAX_PIN = 4 << 10  # bytes: it goes along with every question
MAX_PINNED = 32 << 10
MAX_PINS = 100
MAX_READ = 64 << 10  # bytes of a summary or a pin

log = logging.getLogger("cortexfs")


class ContextFiles:
    """The files of one session. `folder` is the session's folder on disk, `path` its path in the mount."""

    def __init__(self, folder: Path, path: str) -> None:
        self._session = folder
        self._path = f"{path}/{session_places.CONTEXT_NAME}"
        self._grown = 0

    def grown(self) -> int:
        """Returns by how many bytes the outputs grew since the last call: they count for the user's share."""
        grown, self._grown = self._grown, 0
        return grown

    def load(self) -> FormerContext:
        text = _read(self._session / session_places.CONTEXT_NAME / "summary.md")
        return FormerContext(read_summary(text) if text else None, tuple(self._pins()))

    def write_summary(self, summary: Summary) -> None:
        with _log_failure("the summary"):
            data = summary_text(summary).encode(errors="replace")
            _replace(self._folder() / "summary.md", data)

    def write_pack(self, pack: bytes) -> None:
        with _log_failure("the pack"):
            _replace(self._folder() / "pack.json", pack)

    def spill(self, call: str, text: str) -> str:
        """Keep an output. Returns its path in the mount; empty if not kept. A taken name gets a number."""
        data = text.encode(errors="replace")[:MAX_OUTPUTS]
        with _log_failure("an output"):
            folder = self._folder("output")
            name = _free(folder, names.clean(call)[:48].rstrip("."))
            _replace(folder / name, data)
            self._grown += len(data) - _trim(folder, name)
            return f"{self._path}/output/{name}"
        return ""

    def pin(self, text: str) -> str:
        """Keep a fact. Returns its path in the mount. The same fact is not kept twice."""
        data = text.strip().encode(errors="replace")
        if not data or len(data) > MAX_PIN:
            raise Fault("EMSGSIZE", f"a pin has up to {MAX_PIN} bytes, and this one {len(data)}; say less")
        pins = self._pins()
        name = next((pin.name for pin in pins if pin.text.strip().encode() == data), "")
        if not name:
            name = self._next(pins, len(data))
            with os_faults("the pin cannot be kept"):
                _replace(self._folder("pinned") / name, data + b"\n")
        return f"{self._path}/pinned/{name}"

    def _next(self, pins: list[Pin], size: int) -> str:
        total = sum(len(pin.text.encode(errors="replace")) for pin in pins)
        if len(pins) >= MAX_PINS or total + size > MAX_PINNED:
            full = f"a session has at most {MAX_PINS} pins, of {MAX_PINNED >> 10} KiB together"
            raise Fault("EDQUOT", f"{full}; remove some: rm {self._path}/pinned/N.md")
        numbers = {_number(pin.name) for pin in pins}
        after = max(numbers, default=0) + 1
        if not session_places.is_pin(f"{after}.md"):
            after = min(set(range(1, MAX_PINS + 2)) - numbers)
        return f"{after}.md"

    def _pins(self) -> list[Pin]:
        folder = self._session / session_places.CONTEXT_NAME / "pinned"
        found = sorted((name for name in _listed(folder) if session_places.is_pin(name)), key=_number)
        pins = [Pin(name, _read(folder / name)) for name in found[:MAX_PINS]]
        return [pin for pin in pins if pin.text.strip()]

    def _folder(self, *parts: str) -> Path:
        """Returns context/ or a folder below it. Creates missing ones, but never the session's own folder."""
        folder = self._session
        for part in (session_places.CONTEXT_NAME, *parts):
            folder = folder / part
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        return folder


@contextlib.contextmanager
def _log_failure(subject: str) -> Iterator[None]:
    """Log a file that cannot be written, and go on without it."""
    try:
        yield
    except OSError as error:
        log.warning("%s of a session's context is not kept: %s", subject, error)


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: Path) -> str:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError), no_links.held(path, flags) as file:
        return os.read(file, MAX_READ).decode(errors="replace")
    return ""  # it is missing, or a folder


def _replace(path: Path, data: bytes) -> None:
    whole_files.replace(path, [data], 0o600, name=session_places.NEW + path.name, durable=False)


def _number(name: str) -> int:
    return int(name.removesuffix(".md"))


def _free(folder: Path, name: str) -> str:
    """Returns a name that no output has: a session's models may use the same name for two calls."""
    names = set(_listed(folder))
    numbered = (f"{name}-{number}.txt" for number in itertools.count(2))
    return next(each for each in itertools.chain([f"{name}.txt"], numbered) if each not in names)


def _trim(folder: Path, newest: str) -> int:
    """Remove the oldest outputs if all are too many or too large. Returns how many bytes were freed."""
    found, freed = [], 0
    for name in _listed(folder):
        with contextlib.suppress(FileNotFoundError):
            each = os.stat(folder / name, follow_symlinks=False)
            found.append((name == newest, each.st_mtime_ns, name, each.st_size))
    size, count = sum(each[3] for each in found), len(found)
    for _, _, name, bytes_ in sorted(found):
        if (size <= MAX_OUTPUTS and count <= MAX_FILES) or name == newest:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder / name)
        size, count, freed = size - bytes_, count - 1, freed + bytes_
    return freed
