"""fs.replace: change a part of a file, by text or by diff, in one step.

Rules: content that the caller has not seen is not overwritten. Two calls never lose each other's change: each
locks the file while it works, and checks that the file is still the same before it replaces it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from functools import partial
from io import FileIO
from typing import Annotated, TypeAlias

from cortexfs.sdk import (
    ExecutionFailed,
    InvalidInput,
    ToolEffect,
    ToolEffectKind,
    ToolResult,
    ToolRuntime,
    tool,
)
from cortexfs.tools.support import patch
from cortexfs.tools.support.atomic_write import put_over
from cortexfs.tools.support.paths import checked, opened_regular, shown

MAX_SIZE = 64 << 20  # the file is in memory several times
_NO_LOCKS = {errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EBADF}  # the file system lacks flock


class _Unchanged(Exception):
    """The change does not fit the file: a soft error, which the calling model may correct."""


@tool(
    name="fs.replace",
    effects=[ToolEffect(ToolEffectKind.READ_FILE), ToolEffect(ToolEffectKind.WRITE_FILE)],
    description="""\
Change a part of an existing file: give either old and new, or diff.
With old and new, the text old is replaced by new. old must occur exactly once, so include enough of the \
lines around it; all=true replaces every occurrence. An empty new removes it. White space counts.
With diff, a unified diff of this one file is applied, all hunks or none. Its context must be in the \
file exactly; line numbers may be off as long as the place is clear. The file names in the diff do not \
matter.
The change happens in one step, and a failure leaves the file as it was; permissions stay. In a file \
whose lines all end in CR LF, plain newlines in your text are taken as CR LF.
Use it for edits. Read the part with fs.read first. For new files or whole new content use fs.write.""",
)
def replace(
    runtime: ToolRuntime,
    path: Annotated[str, "The file to change."],
    old: Annotated[str | None, "The text to replace, exactly as it is in the file."] = None,
    new: Annotated[str | None, "What to put in its place."] = None,
    all: Annotated[bool, "Replace every occurrence of old."] = False,
    diff: Annotated[str | None, "A unified diff, in place of old and new."] = None,
) -> ToolResult:
    change = _change(old, new, all, diff)
    with _locked(checked(path)) as file:
        before = _state(os.fstat(file.fileno()))

        def check(place: str) -> None:
            if _state(os.stat(place)) != before:
                raise _busy(place)

        data = file.readall()
        try:
            after, summary = change(data)
        except _Unchanged as error:
            return ToolResult.error(f"{shown(path)} is unchanged: {error}")
        put_over(path, after, file, runtime, check)
    return ToolResult.success(f"{summary} in {shown(path)}\n")


Change: TypeAlias = Callable[[bytes], tuple[bytes, str]]  # the new content, and a word about it


def _change(old: str | None, new: str | None, all: bool, diff: str | None) -> Change:
    if diff is not None:
        if (old, new, all) != (None, None, False):
            raise InvalidInput("give either old and new, or diff")
        try:
            return partial(_patched, patch.parse(_encoded(diff, "diff")))
        except patch.BadPatch as error:
            raise InvalidInput(f"diff: {error}") from None
    if old is None or new is None:
        raise InvalidInput("give old and new (which may be empty), or diff")
    if not old:
        raise InvalidInput("old: it is empty; fs.write makes a file or adds to its end")
    if old == new:
        raise InvalidInput("new: it is the same as old, so nothing would change")
    return partial(_exchanged, _encoded(old, "old"), _encoded(new, "new"), all)


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{name}: it has a character that is not valid Unicode") from None


def _exchanged(old: bytes, new: bytes, all: bool, data: bytes) -> tuple[bytes, str]:
    if _is_crlf(data) and b"\r\n" not in old + new:
        old, new = _crlf(old), _crlf(new)
    first = data.find(old)
    if first < 0:
        mend = "Read that part again and copy it exactly, with its spaces"
        raise _Unchanged(f"old does not occur in it. {mend}")
    if all:
        return data.replace(old, new), _plural(data.count(old), "replacement")
    if data.find(old, first + 1) >= 0:  # the second place may overlap the first
        count = max(2, data.count(old))
        raise _Unchanged(f"old occurs {count} times. Give more of the lines around it, or all=true")
    return data.replace(old, new), _plural(1, "replacement")


def _patched(hunks: list[patch.Hunk], data: bytes) -> tuple[bytes, str]:
    if _is_crlf(data) and not any(b"\r" in line for hunk in hunks for line in hunk.old + hunk.new):
        hunks = [hunk._replace(old=_all_crlf(hunk.old), new=_all_crlf(hunk.new)) for hunk in hunks]
    try:
        after, places = patch.apply(data, hunks)
    except patch.Mismatch as error:
        raise _Unchanged(f"{error}. Read the file again and make the diff anew") from None
    lines = ", ".join(map(str, places))
    return after, f"{_plural(len(hunks), 'hunk')} applied at line {lines}"


def _is_crlf(data: bytes) -> bool:
    return 0 < data.count(b"\n") == data.count(b"\r\n")


def _crlf(text: bytes) -> bytes:
    return text.replace(b"\n", b"\r\n")


def _all_crlf(lines: list[bytes]) -> list[bytes]:
    return [_crlf(line) for line in lines]


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _locked(path: str) -> FileIO:
    file = opened_regular(path, os.O_RDWR)
    try:
        if os.fstat(file.fileno()).st_size > MAX_SIZE:
            raise ExecutionFailed(f"{shown(path)} is over 64 MiB; change it with shell.exec", "EFBIG")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(path) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
    except BaseException:  # a cancellation too; no other code closes the file
        file.close()
        raise
    return file


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _busy(path: str) -> ExecutionFailed:
    why = "is being changed by another program; read it and try again"
    return ExecutionFailed(f"{shown(path)} {why}", "EAGAIN")
