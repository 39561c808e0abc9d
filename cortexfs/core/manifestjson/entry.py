"""Where a plugin's code is: the entry point of a manifest.json, and paths inside its package.

Rules: decided by the text alone. Whether a path is a link out of the package is seen where it is opened.
This file must never know what is at the other end.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias
from urllib.parse import unquote

import msgspec

from cortexfs.core import jsontext
from cortexfs.core.manifestjson.problems import Problem

Form: TypeAlias = Literal["relative", "absolute", "file", "https", "http", "jsr", "npm"]

# Of code that is a file of its package.
LOCAL: tuple[Form, ...] = ("relative", "absolute", "file")
# Of code that is fetched when its plugin is installed.
REMOTE: tuple[Form, ...] = ("https", "jsr", "npm")
# (kind, runtime): the pairs that exist.
PAIRS = {"esm": "deno", "mcp": "deno", "wasm": "wasm"}
# Which forms of an entry point a kind takes; http is for servers on this machine only.
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
    text: str  # a relative one without ./


def entry_of(text: str) -> EntryPoint | None:
    """The entry point as one of the forms, or None."""
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
    """A relative path as one that cannot leave its directory, without empty and . parts; or None."""
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if text.startswith("/") or text.endswith("/") or ".." in parts or not parts or _CONTROL.search(text):
        return None
    return None if _SCHEME.match(text) else "/".join(parts)


def files_of(entry: EntryPoint) -> tuple[str, ...]:
    """Returns the file of its package: the first of these that is there, none where it is no file of it.

    An absolute path is that of its author's machine, or of where it was resolved; the package has its end.
    """
    if entry.form == "relative":
        return (entry.text,)
    if entry.form not in LOCAL:
        return ()
    path = unquote(entry.text.removeprefix("file://")) if entry.form == "file" else entry.text
    parts = [part for part in path.split("/") if part]
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    return tuple(end for end in ends if inside(end) == end)


def problem(kind: str, text: str) -> Problem | None:
    """Returns the fault of an entry point for this kind."""
    entry = entry_of(text)
    if entry is None or entry.form not in FORMS[kind]:
        what = f"{jsontext.shown(text)} is no entry point of kind {kind}"
    elif kind == "wasm" and entry.form == "relative" and not text.endswith(".wasm"):
        what = f"{jsontext.shown(text)} is no .wasm file"
    else:
        return None
    return Problem("invalid_entry_point", "entryPoint", what, _MENDS[kind])
