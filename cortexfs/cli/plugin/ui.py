"""`ctx plugin ui`: the panels and widgets of plugins with a manifest.json, and the files of one of them.

Rules: a part is not shown if its plugin is disabled, broken, changed since its installation, or without the
capability. The files of a panel are those below the directory of its page, of the kinds that pages use. They
are read like the files of a package: no link is followed, and no name leads outside.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from cortexfs import config
from cortexfs.cli import mounts, output
from cortexfs.cli.daemons import places_of
from cortexfs.cli.parser import nearest
from cortexfs.cli.plugin.decided import folder_of, manifest_of
from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import shown
from cortexfs.core.manifestjson import widgets
from cortexfs.core.manifestjson.fields import JsonManifest, Panel, Widget
from cortexfs.plugins import json_kinds
from cortexfs.plugins.install.decisions import STORE, DecisionStore
from cortexfs.plugins.package import directory, manifests, package, records
from cortexfs.state.directories import Places

PANEL, WIDGET = "panel", "widget"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".mp3": "audio/mpeg",
    ".mp4": "video/mp4",
}
MAX_PAGE = 2 << 20  # bytes of one file
MAX_FILES = 8 << 20  # bytes of all files of a panel
PAGE = "index.html"  # the page of a widget whose config has the text itself
HEADS = ("plugin", "part", "title", "type", "status")


class ShownPart(NamedTuple):
    """A panel or a widget, and the reason if it is not shown."""

    plugin: str
    is_panel: bool
    part: Panel | Widget
    fault: str | None

    @property
    def address(self) -> str:
        return f"{PANEL if self.is_panel else WIDGET}/{self.part.id}"

    def row(self) -> dict[str, Any]:
        kind = self.part.type if isinstance(self.part, Widget) else PANEL
        row = {"plugin": self.plugin, "part": self.address, "title": self.part.title, "type": kind}
        if isinstance(self.part, Widget) and kind != "html":
            row["config"] = msgspec.to_builtins(widgets.of(self.part))
        return row | {"icon": getattr(self.part, "icon", None), "fault": self.fault}


class _Known(NamedTuple):
    """The decisions about all plugins."""

    where: Places
    enabled: frozenset[str]
    broken: dict[str, str]

    def capabilities(self, manifest: JsonManifest) -> tuple[str, ...]:
        return json_kinds.granted(manifest, DecisionStore(self.where.state).of(manifest.name)).capabilities


def ui(options: argparse.Namespace) -> None:
    known = _known(options)
    names = _names(known) if options.name is None else [options.name]
    parts = [part for name in names for part in _parts(known, name, manifest_of(known.where, name))]
    if options.part is not None:
        return _show(options, known, parts)
    rows = [part.row() | {"status": part.fault or "shown"} for part in parts]
    output.print_rows(options.json, [part.row() for part in parts], HEADS, rows)


def _known(options: argparse.Namespace) -> _Known:
    where = places_of(options)
    broken: dict[str, str] = {}
    with contextlib.suppress(Fault):  # without a mount, no plugin is known to be broken
        status = mounts.status_text(mounts.root(options.root))
        broken = mounts.by_name(mounts.facts(status), "broken plugin")
    enabled = frozenset(config.enabled(config.load(where)))
    return _Known(where, enabled, broken)


def _names(known: _Known) -> list[str]:
    """Returns the installed plugins with a readable manifest.json."""
    found = []
    for folder in directory.folders(known.where.state / directory.FOLDER):
        try:
            if manifests.is_json(directory.read(folder)):
                found.append(folder.name)
        except Fault:
            continue  # ctx plugin list reports the fault
    return found


def _parts(known: _Known, name: str, manifest: JsonManifest) -> Iterator[ShownPart]:
    has = known.capabilities(manifest)
    fault = _fault(known, name)
    for kind, parts in ((PANEL, manifest.ui.panels), (WIDGET, manifest.ui.widgets)):
        denied = None if f"ui:{kind}" in has else f"its capability ui:{kind} is denied"
        for part in parts:
            yield ShownPart(name, kind == PANEL, part, fault or denied)


def _fault(known: _Known, name: str) -> str | None:
    if name not in known.enabled:
        return f"it is disabled; enable it with: ctx plugin enable {name}"
    try:
        records.read(known.where.state / directory.FOLDER / name)
    except Fault as fault:
        return fault.message
    return f"it is broken: {known.broken[name]}" if name in known.broken else None


def _show(options: argparse.Namespace, known: _Known, parts: list[ShownPart]) -> None:
    by_address = {part.address: part for part in parts}
    if (part := by_address.get(options.part)) is None:
        hint = nearest(options.part, by_address) or f"; see: ctx plugin ui {options.name}"
        raise Fault("ENOENT", f"{options.name} has no {shown(options.part)}{hint}")
    if part.fault:
        raise Fault("EACCES", f"{part.address} of {part.plugin} is not shown: {part.fault}")
    folder = folder_of(known.where, part.plugin)
    page, files = _files(folder, part.part)
    if options.json:
        contents = {name: (_kind(name), base64.b64encode(data).decode()) for name, data in files.items()}
        manifest = manifest_of(known.where, part.plugin)
        events = manifest.events if "events:listener" in known.capabilities(manifest) else ()
        is_hooked = bool(events) and manifest.kind == hostcalls.ESM  # then the mount sends it events
        watched = [*map(str, _watched(known.where, folder))]
        more = {"page": page, "files": contents, "events": events, "is_hooked": is_hooked, "watched": watched}
        output.emit(part.row() | more)
    else:
        output.table(("file", "bytes"), [(name, str(len(data))) for name, data in files.items()])


def _watched(where: Places, folder: Path) -> Iterator[Path]:
    """Yields the files of which one has to change before the part is hidden."""
    yield where.config / config.FILE
    yield where.config / config.CHOICES
    yield where.state / STORE
    yield folder / records.FILE


def _files(folder: Path, part: Panel | Widget) -> tuple[str, dict[str, bytes]]:
    """Returns the name of its page, and its files by their names below the page's directory."""
    tree = package.read(folder)
    records.check(tree, records.read(folder))
    path = part.html_path if isinstance(part, Panel) else widgets.page_of(part)
    if path is None:
        assert isinstance(part, Widget)
        return PAGE, {PAGE: str(part.config.get("html") or "").encode()}
    path = posixpath.normpath(path)
    if path not in tree.files or _kind(path) != KINDS[".html"]:
        raise Fault("EINVAL", f"{shown(path)} is no .html among the files of {folder.name}")
    above = f"{posixpath.dirname(path)}/".removeprefix("/")
    files = {
        name.removeprefix(above): file.data
        for name, file in tree.files.items()
        if name.startswith(above) and _kind(name) and len(file.data) <= MAX_PAGE
    }
    page = path.removeprefix(above)
    if page not in files or sum(map(len, files.values())) > MAX_FILES:
        raise Fault("EMSGSIZE", f"a page is at most {MAX_PAGE >> 20} MiB, with its files {MAX_FILES >> 20}")
    return page, files


def _kind(name: str) -> str | None:
    return KINDS.get(posixpath.splitext(name)[1].lower())
