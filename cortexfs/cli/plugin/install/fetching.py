"""The fetching of a plugin's modules for `ctx plugin install`, `review` and `test`, and its words.

This file must never know how Deno fetches, nor what may be installed.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from functools import partial

from cortexfs.cli import progress
from cortexfs.cli.plugin.decided import networks
from cortexfs.net import web
from cortexfs.plugins.install import fetch
from cortexfs.plugins.install.fetch import Modules
from cortexfs.plugins.package import directory
from cortexfs.plugins.package.package import PackageFiles
from cortexfs.state import directories

SECONDS = 300.0  # for a module of WebAssembly


def completed(tree: PackageFiles, where: directories.Places, private: str) -> PackageFiles:
    """With all that it needs; from the network, unless the very same plugin is installed."""
    installed = where.state / directory.FOLDER / tree.manifest.name
    own = networks(private)
    with progress.shown("looking at what it needs"):
        return fetch.completed(
            tree,
            partial(web.download, seconds=SECONDS, private=own),
            partial(_fetched, private=own),
            installed,
        )


def told(tree: PackageFiles, where: directories.Places) -> str:
    """For the line that says that it is installed."""
    if not (count := len(fetch.pins(tree))):
        return ""
    see = where.state / directory.FOLDER / tree.manifest.name
    return f", with {count} module{'s' * (count > 1)} from elsewhere (see: ctx plugin review {see})"


def _fetched(modules: Modules, private: tuple[str, ...]) -> dict[str, bytes]:
    from cortexfs.host.esm import fetch as esmfetch  # what it takes is for those who fetch

    with _put_away(), progress.shown("fetching what it imports") as now:

        def told(connections: int, size: int) -> None:
            now(f"fetching what it imports: {connections} connections, {size / (1 << 20):.1f} MiB")

        return esmfetch.fetch(esmfetch.FetchRequest(*modules), private, told)


@contextlib.contextmanager
def _put_away() -> Iterator[None]:
    """Whoever is told to end, or whose terminal closes, puts away what was begun, as with an interrupt."""
    ours = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]
    for each in ours:
        signal.signal(each, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
