"""The files of the page, each with its address and type. No other file of the disk is served.

This file must never know whose request it is.
"""

from __future__ import annotations

from pathlib import Path

from cortexfs.web.http import PageAnswer

FOLDER = Path(__file__).parent / "static"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def all_files() -> dict[str, PageAnswer]:
    """Returns every file by its address, read once."""
    found = {
        f"/{path.name}": PageAnswer(path.read_bytes(), KINDS[path.suffix])
        for path in FOLDER.iterdir()
        if path.suffix in KINDS
    }
    return {"/": found["/index.html"], **found}
