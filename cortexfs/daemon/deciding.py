"""The files of configuration and state that decide what is allowed, and which of them are not used.

Rules: this module reads only owners and modes. Only `every` has files that `status` reports in a line of
their own (a provider, a server, an agent).
This file must never know what a file allows.
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
    """Returns a sentence for each unused file among those that exist only once."""
    names = (config.FILE, config.CHOICES, risk.FILE, openpgp.KEYS)
    stores = (state / trust.STORE, state / decisions.STORE)
    return believed.faults([*(configuration / name for name in names), *stores])


def every(configuration: Path, state: Path) -> list[str]:
    """Returns a sentence for each unused file among all of them."""
    plugins = state / directory.FOLDER
    several = [
        *sorted(configuration.glob(f"{files.FOLDER}/*{files.SUFFIX}")),
        *sorted(configuration.glob(f"{mcp_servers.FOLDER}/*{mcp_servers.SUFFIX}")),
        *sorted(state.glob(f"{directory.FOLDER}/*/{plugin_records.FILE}")),
    ]
    # Folders that cannot be read, too.
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
