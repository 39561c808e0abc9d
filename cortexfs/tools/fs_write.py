"""fs.write: create, replace or extend a file, completely or not at all."""

from __future__ import annotations

import os
from binascii import Error, a2b_base64
from typing import Annotated, Literal

from cortexfs.sdk import ExecutionFailed, InvalidInput, ToolEffect, ToolEffectKind, ToolRuntime, tool
from cortexfs.tools.support.atomic_write import put_new, put_over
from cortexfs.tools.support.paths import checked, opened, opened_regular, shown


@tool(
    name="fs.write",
    effects=[ToolEffect(ToolEffectKind.WRITE_FILE)],
    description="""\
Write a whole file. mode=overwrite (the default) makes the file or replaces its content; mode=create \
makes it and fails with EEXIST when there is anything of that name; mode=append adds to its end, and \
makes it if need be.
Creating and overwriting happen in one step: a reader sees the old content or the new, never a part, and \
a failure leaves the old. An existing file keeps its permissions, and its owner where you may set it; \
its other hard links keep the old content. A symbolic link stays, and what it leads to is written. The \
content is written as it is: end a text file with a newline yourself.
Use it for new files and for complete new content. For a change in an existing file use fs.replace, \
which takes less text and cannot lose what you have not read.""",
)
def write(
    runtime: ToolRuntime,
    path: Annotated[str, "The file to write."],
    content: Annotated[str, "The new content, or, with append, the text to add."],
    mode: Annotated[Literal["overwrite", "create", "append"], "What may be there before."] = "overwrite",
    encoding: Annotated[
        Literal["utf-8", "base64"], "base64 if content is base64, for binary files."
    ] = "utf-8",
    make_parents: Annotated[bool, "Make missing directories above it."] = False,
) -> str:
    data = _bytes(content, encoding)
    if checked(path).endswith("/"):
        raise ExecutionFailed(f"{shown(path)} names a directory; a file name has no / at its end", "EISDIR")
    if make_parents and os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    if mode == "append":
        verb = _append(path, data)
    elif mode == "create":
        put_new(path, data, runtime)
        verb = "created"
    else:
        verb = _overwrite(path, data, runtime)
    return f"{verb} {shown(path)}: {len(data)} bytes\n"


def _bytes(content: str, encoding: str) -> bytes:
    try:
        if encoding == "base64":
            return a2b_base64("".join(content.split()), strict_mode=True)
        return content.encode()
    except Error as error:
        raise InvalidInput(f"content: it is not base64: {error}") from None
    except ValueError:
        raise InvalidInput("content: it has a character that is not valid Unicode") from None


def _overwrite(path: str, data: bytes, runtime: ToolRuntime) -> str:
    try:
        old = opened_regular(path, os.O_WRONLY)
    except FileNotFoundError:
        put_over(path, data, None, runtime)
        return "created"
    with old:
        put_over(path, data, old, runtime)
    return "replaced"


def _append(path: str, data: bytes) -> str:
    try:
        file, verb = opened_regular(path, os.O_WRONLY | os.O_APPEND), "appended to"
    except FileNotFoundError:
        file, verb = opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "created"
    with file:
        _extend(file.fileno(), data, path)
    return verb


def _extend(fd: int, data: bytes, path: str) -> None:
    """Append the data, or undo a partial append."""
    written = 0
    try:
        while written < len(data):
            written += os.write(fd, memoryview(data)[written:])
    except BaseException as error:  # a cancellation too: undo, then raise it again
        end = os.lseek(fd, 0, os.SEEK_CUR)  # of the last write here
        if written and os.fstat(fd).st_size == end:  # no other process has appended since
            os.ftruncate(fd, end - written)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, path) from None
        raise
