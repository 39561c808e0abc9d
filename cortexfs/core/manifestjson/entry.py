"""The place of a plugin's code: the entry point of a manifest.json, and paths inside its package.

Rules: only the text counts here. The code that opens a path checks that it is no link out of the package.
This file must never know the code at that place.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias
from urllib.parse import unquote

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.manifestjson.problems import Problem

Form: TypeAlias = Literal["relative", "absolute", "file", "https", "http", "jsr", "npm"]

# The forms for code that is a file of its package.
LOCAL: tuple[Form, ...] = ("relative", "absolute", "file")
# The forms for code that is fetched when its plugin is installed.
REMOTE: tuple[Form, ...] = ("https", "jsr", "npm")
# (kind, runtime): the pairs that exist.
PAIRS = {"esm": "deno", "mcp": "deno", "wasm": "wasm"}
# The forms of an entry point that each kind takes; http is only for servers on this machine.
FORMS: dict[str, tuple[Form, ...]] = {
    "esm": ("relative", "absolute", "file", "https", "jsr", "npm"),
    "mcp": ("https", "http"),
    "wasm": ("relative", "https"),
}
_MENDS = {
    "esm": "write a path like ./mod.ts, an absolute path, or a file://, https://, jsr: or npm: URL",
    "mcp": "write the https:// URL of the server",
    "wasm": "write a path in the package that ends in .wasm, or an https:// URL",
}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_REST = r"[^\s\\\x00-\x1f\x7f]"
_URLS: dict[Form, re.Pattern[str]] = {
    "file": re.compile(rf"file:///{_REST}+"),
    "https": re.compile(rf"https://{_HOST}(?:[/?#]{_REST}*)?"),
    "http": re.compile(
        rf"http://(?:localhost|127\.[0-9]+\.[0-9]+\.[0-9]+|\[::1\])(?::[0-9]{{1,5}})?(?:[/?#]{_REST}*)?"
    ),
    "jsr": re.compile(rf"jsr:/?@[a-z0-9-]+/[a-z0-9-]+(?:[@/]{_REST}+)?"),
    "npm": re.compile(rf"npm:/?(?:@[a-z0-9._~-]+/)?[a-z0-9._~-]+(?:[@/]{_REST}+)?"),
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")


class EntryPoint(msgspec.Struct, frozen=True):
    form: Form
    text: str  # a relative path has no ./


def entry_of(text: str) -> EntryPoint | None:
    """Returns the entry point with its form, or None if it has none of the forms."""
    if scheme := _SCHEME.match(text):
        return next((EntryPoint(form, text) for form, url in _URLS.items() if url.fullmatch(text)), None)
    if text.startswith("/"):
        return (
            EntryPoint("absolute", text)
            if not _CONTROL.search(text) and ".." not in text.split("/")
            else None
        )
    path = inside(text)
    return EntryPoint("relative", path) if path and not scheme else None


def inside(text: str) -> str | None:
    """Returns a relative path without empty and . parts, or None if it could leave its directory."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.startswith("/") or text.endswith("/") or ".." in parts or not parts or _CONTROL.search(text):
        return None
    return None if _SCHEME.match(text) else "/".join(parts)


def files_of(entry: EntryPoint) -> tuple[str, ...]:
    """Returns possible paths of the entry in its package, of which the first that exists is meant.

    An absolute path is on the machine of its author, or on the machine where it was resolved. In the package
    it has only its end."""
    if entry.form == "relative":
        return (entry.text,)
    if entry.form not in LOCAL:
        return ()
    path = unquote(entry.text.removeprefix("file://")) if entry.form == "file" else entry.text
    parts = [part for part in path.split("/") if part]
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    return tuple(end for end in ends if inside(end) == end)


def problem(kind: str, text: str) -> Problem | None:
    """Returns the fault of an entry point of this kind, or None."""
    entry = entry_of(text)
    if entry is None or entry.form not in FORMS[kind]:
        fault = f"{jsontext.shown(text)} is no entry point of kind {kind}"
    elif kind == "wasm" and entry.form == "relative" and not text.endswith(".wasm"):
        fault = f"{jsontext.shown(text)} is no .wasm file"
    else:
        return None
    return Problem("invalid_entry_point", "entryPoint", fault, _MENDS[kind])
