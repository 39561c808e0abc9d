"""The formats of control values: one function each, which raises EINVAL.

Rules: a refusal names the line and the right form. Every function takes the whole text, which ends
in a newline unless it is empty. Blank lines and `#` comments are allowed only in lists of rules
that people keep by hand (policy, fallback).
This file must never know which file has which format; that is core/tree/controls.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from cortexfs.core import names
from cortexfs.core.errors import Fault

Check: TypeAlias = Callable[[str], object]

U32 = (1 << 32) - 1
TAB = "\t"  # between the fields of a mount table's line
# The letter of a view's entry that hides the hidden names in a folder. Its path is FOLDER/, a form that no
# line of a table has. Entries for FOLDER, or for one around it, do not show these names. Entries for such a
# name, or below it, do.
HIDES = "-"
MAX_MOUNTS = 64  # limited, as every line is compared with every line of the parent's table
MAX_FALLBACKS = 16  # a longer chain is a mistake, and each step costs a provider's timeout

DRIVER_USES = ("default", "exec", "socket", "agent")
MOUNT_OPTIONS = ("bind", "rbind", "nosuid", "nodev", "noexec")
# Keys that only a secret would have. No secret may be in .d/ (abi.md 8.2).
SECRET_KEYS = ("api_key", "apikey", "authorization", "password", "secret", "token", "access_token")

_WORD = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)
_KEY_GRAMMAR = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,63}", re.ASCII)


def refuse(number: int, why: str) -> Fault:
    return Fault("EINVAL", f"line {number}: {why}")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    # Not splitlines(), which also splits where other programs do not: at form feeds and U+2028.
    if text:
        yield from enumerate(text.removesuffix("\n").split("\n"), 1)


def rules(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines that are neither blank nor comments, with their numbers."""
    for number, line in _lines(text):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.strip()


def _single(text: str, title: str) -> str:
    """Returns the one line of a file that holds one value."""
    lines = [line for _, line in _lines(text)]
    if len(lines) != 1 or not lines[0].strip():
        raise Fault("EINVAL", f"the file must hold exactly one line, {title}; it has {len(lines)}")
    return lines[0].strip()


def _once(lines: Iterable[tuple[int, str]], item: Callable[[str], str] = str) -> Iterator[tuple[int, str]]:
    """Yields lines with their numbers. Once a line was checked, refuses it if its item was there before."""
    seen: set[str] = set()
    for number, line in lines:
        yield number, line
        if item(line) in seen:
            raise refuse(number, f"{item(line)} is used twice")
        seen.add(item(line))


def _key(line: str) -> str:
    return line.partition("=")[0]


def anything(text: str) -> None:
    """Take any text: the format is prose."""


def one_of(*words: str) -> Check:
    def check(text: str) -> None:
        if (word := _single(text, f"one of {', '.join(words)}")) not in words:
            raise refuse(1, f"{word!r} is not one of {', '.join(words)}")

    return check


def absolute_path(text: str) -> None:
    if not (path := _single(text, "an absolute path")).startswith("/"):
        raise refuse(1, f"{path!r} is not an absolute path")


def absolute_paths(text: str) -> None:
    for number, line in _once(_lines(text)):
        if not line.startswith("/"):
            raise refuse(number, f"{line!r} is not an absolute path")


def _is_u32(text: str) -> bool:
    """Returns True for a number in canonical decimal, as int() prints it."""
    if not (text.isdecimal() and text.isascii() and len(text) <= len(str(U32))):
        return False
    return str(int(text)) == text and int(text) <= U32


def gids(text: str) -> None:
    for number, line in _once(_lines(text)):
        if not _is_u32(line):
            raise refuse(number, f"{line!r} is not a decimal group id")


def window(text: str) -> None:
    value = _single(text, "auto or a number of tokens")
    if value != "auto" and (not _is_u32(value) or value == "0"):
        raise refuse(1, f"{value!r} is neither auto nor a number of tokens")


def label(text: str) -> None:
    parts = _single(text, "a label such as user_u:agent_r:coder_t:s0").split(":")
    if len(parts) != 4 or not all(LABEL.fullmatch(part) for part in parts):
        raise refuse(1, f"{':'.join(parts)!r} is not of the form user:role:type:level")


def key_values(text: str) -> None:
    for number, line in _once(_lines(text), _key):
        key, equals, _value = line.partition("=")
        if not equals or not _KEY_GRAMMAR.fullmatch(key):
            raise refuse(number, f"{line!r} is not of the form KEY=VALUE")


def parameters(text: str) -> None:
    """Check a model's default parameters: lines KEY=VALUE, and no secrets."""
    key_values(text)
    for number, line in _lines(text):
        if _key(line).lower() in SECRET_KEYS:
            raise refuse(number, f"{_key(line)} looks like a secret; use: ctx provider secret set NAME")


def driver(text: str) -> None:
    """Check for one word, or lines default=, exec=, socket=, agent=, each with a comma list by priority."""
    lines = list(_lines(text))
    if not lines:
        raise Fault("EINVAL", "the file is empty; it holds one driver, or lines such as default=NAME")
    for number, line in _once(lines, _key):
        use, equals, value = line.partition("=")
        if not equals and len(lines) > 1:
            raise refuse(number, f"{line!r} is not of the form USE=DRIVER,...")
        if equals and use not in DRIVER_USES:
            raise refuse(number, f"{use!r} is not one of {', '.join(DRIVER_USES)}")
        for word in (value if equals else line).split(","):
            if not _WORD.fullmatch(word):
                raise refuse(number, f"{word!r} is not the name of a driver")


def fallback(text: str) -> None:
    lines = list(rules(text))
    for number, line in _once(lines):
        check_object_name(number, "model", line)
    if len(lines) > MAX_FALLBACKS:
        raise Fault("EINVAL", f"{len(lines)} models are over the limit of {MAX_FALLBACKS}")


def model_name(text: str) -> None:
    """Check for an alias, or provider/model."""
    name = _single(text, "a model or an alias")
    check_object_name(1, "model" if "/" in name else "alias", name)


def tool_names(text: str) -> None:
    for number, line in _once(_lines(text)):
        check_object_name(number, "tool", line)


def skill_names(text: str) -> None:
    """Check for one skill a line, as plugin/skill. The plugin need not be installed yet."""
    for number, line in _once(_lines(text)):
        parts = line.split("/")
        if len(parts) != 2 or any(map(names.fault_of, parts)):
            raise refuse(number, f"{line!r} is not a skill; write PLUGIN/SKILL")


def mounts(text: str) -> None:
    lines = list(_lines(text))
    for number, line in _once(lines, lambda line: line.split("\t")[1]):
        fields = line.split("\t")
        if len(fields) != 4:
            raise refuse(number, "write four fields with TABs between: source, target, ro or rw, options")
        source, target, access, options = fields
        if not (source.startswith("/") and target.startswith("/")):
            raise refuse(number, "source and target must be absolute paths")
        if access not in ("ro", "rw"):
            raise refuse(number, f"{access!r} is neither ro nor rw")
        _mount_options(number, options)
    if len(lines) > MAX_MOUNTS:
        raise Fault("EINVAL", f"{len(lines)} mounts are over the limit of {MAX_MOUNTS}")


def path_mounts(text: str) -> None:
    """Check for a mount table that Landlock can enforce (landlock(7)). It confines by path and moves nothing.
    No line takes back rights that a folder above gives."""
    mounts(text)
    paths: list[tuple[str, str]] = []
    for number, line in _lines(text):
        source, target, _, options = line.split("\t")
        if source != target:
            raise refuse(number, "source and target must be the same: paths are confined here, not moved")
        if target != (plain := "/" + "/".join(name for name in target.split("/") if name not in ("", "."))):
            raise refuse(number, f"{target!r} must be written as {plain}")
        if ".." in target.split("/"):
            raise refuse(number, f"{target!r} contains ..; write the path to which it leads")
        if "nodev" in options.split(","):
            raise refuse(number, "nodev cannot be enforced here; do not show a path that contains devices")
        paths.append((target, rights(line)))
    for number, (path, access) in enumerate(paths, 1):
        for folder, above in paths:
            if is_below(path, folder) and set(above) - set(access):
                raise refuse(number, f"{path} cannot have fewer rights than {folder}, in which it lies")


def rights(line: str) -> str:
    """Returns the rights that a line of a mount table gives, as letters of "rwx"."""
    *_, access, options = line.split("\t")
    return ("rw" if access == "rw" else "r") + ("" if "noexec" in options.split(",") else "x")


def covering(text: str, path: str) -> tuple[int, str] | None:
    """Returns the line of a mount table that gives most rights to `path`, with its number, or None."""
    lines = [(number, line) for number, line in _lines(text) if is_below(path, line.split("\t")[1])]
    return max(lines, key=lambda found: len(rights(found[1])), default=None)


def is_below(path: str, folder: str) -> bool:
    """Returns True if `path` is `folder` or below it. Both are written as path_mounts requires."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _mount_options(number: int, options: str) -> None:
    if options == "-":
        return
    words = options.split(",")
    for _, option in _once((number, option) for option in words):
        if option not in MOUNT_OPTIONS:
            raise refuse(number, f"{option!r} is not one of {', '.join(MOUNT_OPTIONS)} (or - for none)")
    if {"bind", "rbind"} <= {*words}:
        raise refuse(number, "a mount cannot be both bind and rbind")


def check_object_name(number: int, class_: str, name: str) -> None:
    """Refuse a name that no object of that class can have."""
    try:
        names.check_object(class_, name)
    except Fault as fault:
        raise refuse(number, fault.message) from None
