"""The files of a configuration and a state that decide what is allowed, and those of them that are not used.

Rules: nothing is read here but owners and modes. What its reader tells of in a line of its own (a provider, a
server, an agent) is in `every` alone.
This file must never know what follows from a file.
"""

from __future__ import annotations

import os
from pathlib import Path

from cortexfs import config
from cortexfs.agents import records
from cortexfs.core.policy import risk
from cortexfs.models.local import weights
from cortexfs.models.providers import files, secrets
from cortexfs.plugins import mcp_servers
from cortexfs.plugins.install import decisions
from cortexfs.plugins.package import directory
from cortexfs.plugins.package import records as plugin_records
from cortexfs.plugins.trust import openpgp, trust
from cortexfs.state import believed
from cortexfs.state.control_store import LINKS


def unused(configuration: Path, state: Path) -> list[str]:
    """Returns a sentence for each file of which there is one alone, and which is not used."""
    names = (config.FILE, config.CHOICES, risk.FILE, openpgp.KEYS)
    stores = (state / trust.STORE, state / decisions.STORE)
    return believed.faults([*(configuration / name for name in names), *stores])


def every(configuration: Path, state: Path) -> list[str]:
    """Returns a sentence for each of all of them that is not used."""
    plugins = state / directory.FOLDER
    several = [
        *sorted(configuration.glob(f"{files.FOLDER}/*{files.SUFFIX}")),
        *sorted(configuration.glob(f"{mcp_servers.FOLDER}/*{mcp_servers.SUFFIX}")),
        *sorted(state.glob(f"{directory.FOLDER}/*/{plugin_records.FILE}")),
    ]
    # Also those that cannot be looked into.
    folders = [configuration / files.FOLDER, configuration / mcp_servers.FOLDER, plugins]
    folders += directory.folders(plugins)
    for top in (secrets.FOLDER, records.FOLDER, "tree"):
        folders.append(state / top)
        for above, below, names in os.walk(state / top):
            if not Path(above).is_relative_to(state / "tree" / LINKS):  # of the tree, and lead nowhere here
                several += (Path(above, name) for name in sorted(names))
            folders += (Path(above, name) for name in sorted(below))
    links = configuration.glob(f"{weights.FOLDER}/*/*{weights.SUFFIX}")
    found = [
        *unused(configuration, state),
        *believed.faults(several),
        *believed.faults(sorted(links), believed.link),
        *believed.faults(folders, believed.folder),
    ]
    return list(dict.fromkeys(found))
