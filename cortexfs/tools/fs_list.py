"""fs.list lists a directory, and fs.stat describes one entry."""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from heapq import nsmallest
from typing import Annotated, Any

from cortexfs.sdk import ToolEffect, ToolEffectKind, tool
from cortexfs.tools.support.paths import at_least, checked, kind_of, shown

_BATCH = 500  # entries for each piece of output
_LETTERS = {"file": "f", "directory": "d", "link": "l", "pipe": "p", "socket": "s"}


@tool(
    name="fs.list",
    effects=[ToolEffect(ToolEffectKind.READ_FILE)],
    background_safe=True,
    description="""\
List the entries of one directory, sorted by name, one on each line: a letter for the type (f file, d \
directory, l symbolic link, p pipe, s socket, c or b device, ? none of these), a tab, the size in bytes \
(- for all but files), a tab, and the name; for a link also " -> " and its target.
Use it to see what is in a directory. Names that begin with a dot are left out unless all is true. When \
there are more than max_entries, a last line that begins with "..." says how many are left.
Control characters and bytes that are not UTF-8 are shown as backslash escapes.
Do not use it to find files in a whole tree (fs.glob), or for details of one entry (fs.stat).""",
)
def list_(
    path: Annotated[str, "The directory."] = ".",
    all: Annotated[bool, "Also names that begin with a dot."] = False,
    max_entries: Annotated[int, "At most so many entries."] = 1000,
) -> Iterator[str]:
    at_least(1, max_entries=max_entries)
    names = [name for name in os.listdir(checked(path)) if all or not name.startswith(".")]
    first = sorted(names) if len(names) <= max_entries else nsmallest(max_entries, names)
    for start in range(0, len(first), _BATCH):
        yield "".join(_line(path, name) for name in first[start : start + _BATCH])
    if rest := len(names) - len(first):
        yield f"... {rest} more; raise max_entries to see them\n"


def _line(directory: str, name: str) -> str:
    path = os.path.join(directory, name)
    try:
        status = os.lstat(path)
    except FileNotFoundError:  # it has been removed since
        return ""
    except OSError:  # a directory may allow reading names but no more
        return f"?\t-\t{shown(name)}\n"
    kind = kind_of(status.st_mode)
    size = str(status.st_size) if stat.S_ISREG(status.st_mode) else "-"
    target = ""
    if stat.S_ISLNK(status.st_mode):
        with suppress(OSError):
            target = f" -> {shown(os.readlink(path))}"
    return f"{_LETTERS.get(kind, kind[0])}\t{size}\t{shown(name)}{target}\n"


@tool(
    name="fs.stat",
    effects=[ToolEffect(ToolEffectKind.READ_FILE)],
    background_safe=True,
    description="""\
Describe one file, directory or other entry as a JSON object on one line: path, type (file, directory, \
link, pipe, socket, character device, block device), size in bytes, mode (octal), owner and group with \
uid and gid, links, inode, the times modified, changed and accessed (UTC, ISO 8601), and for a symbolic \
link its target.
Use it to learn whether something exists and how large or how old it is. By default it describes what a \
link leads to; follow=false describes the link. What is not there is ENOENT.
Do not use it for the content of a file (fs.read) or of a directory (fs.list).""",
)
def stat_(
    path: Annotated[str, "What to describe."],
    follow: Annotated[bool, "Describe what a symbolic link leads to, not the link."] = True,
) -> str:
    status = os.stat(checked(path), follow_symlinks=follow)
    described: dict[str, Any] = {
        "path": shown(path),
        "type": kind_of(status.st_mode),
        "size": status.st_size,
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "owner": _name(lambda: pwd.getpwuid(status.st_uid).pw_name),
        "group": _name(lambda: grp.getgrgid(status.st_gid).gr_name),
        "uid": status.st_uid,
        "gid": status.st_gid,
        "links": status.st_nlink,
        "inode": status.st_ino,
        "modified": _iso(status.st_mtime_ns),
        "changed": _iso(status.st_ctime_ns),
        "accessed": _iso(status.st_atime_ns),
    }
    with suppress(OSError):
        described["target"] = shown(os.readlink(path))
    return json.dumps(described, ensure_ascii=False) + "\n"


def _name(look_up: Callable[[], str]) -> str | None:
    try:
        return look_up()
    except (KeyError, OSError):
        return None


def _iso(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"
