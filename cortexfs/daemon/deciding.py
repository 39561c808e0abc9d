"""The files of a configuration and a state that decide what is allowed, and those of them that are not used.

Rules: nothing is read here but owners and modes. What its reader tells of in a line of its own (a provider, a
server, an agent) is in `every` alone.
This file must never know what follows from a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cortexfs import config
from cortexfs.agents import records
from cortexfs.core.policy import risk_settings
from cortexfs.models.local import weights
from cortexfs.models.providers import files, secrets
from cortexfs.plugins import mcp_servers
from cortexfs.plugins.install import decisions
from cortexfs.plugins.package import directory
from cortexfs.plugins.package import records as plugin_records
from cortexfs.plugins.trust import openpgp, trust
from cortexfs.state import believed


def unused(configuration: Path, state: Path) -> list[str]:
    """Returns a sentence for each file of which there is one alone, and which is not used."""
    names = (config.FILE, config.CHOICES, risk_settings.FILE, openpgp.KEYS)
    stores = (state / trust.STORE, state / decisions.STORE)
    return believed.faults([*(configuration / name for name in names), *stores])


def every(configuration: Path, state: Path) -> list[str]:
    """Returns a sentence for each of all of them that is not used."""
    links = configuration.glob(f"{weights.FOLDER}/*/*{weights.SUFFIX}")
    found = [
        *unused(configuration, state),
        *believed.faults(_several(configuration, state)),
        *believed.faults(sorted(links), believed.link),
        *believed.faults(_folders(configuration, state), believed.folder),
    ]
    return list(dict.fromkeys(found))


def _several(configuration: Path, state: Path) -> Iterator[Path]:
    yield from sorted(configuration.glob(f"{files.FOLDER}/*{files.SUFFIX}"))
    yield from sorted(configuration.glob(f"{mcp_servers.FOLDER}/*{mcp_servers.SUFFIX}"))
    yield from sorted(state.glob(f"{directory.FOLDER}/*/{plugin_records.FILE}"))
    for top in (secrets.FOLDER, records.FOLDER, "tree"):
        for above, _, names in os.walk(state / top):
            yield from (Path(above, name) for name in sorted(names))


def _folders(configuration: Path, state: Path) -> Iterator[Path]:
    """Also those that cannot be looked into."""
    yield configuration / files.FOLDER
    yield configuration / mcp_servers.FOLDER
    yield state / directory.FOLDER
    yield from directory.folders(state / directory.FOLDER)
    for top in (secrets.FOLDER, records.FOLDER, "tree"):
        yield state / top
        for above, below, _ in os.walk(state / top):
            yield from (Path(above, name) for name in sorted(below))
