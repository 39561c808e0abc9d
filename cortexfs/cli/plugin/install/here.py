"""The rest of the judgement about a plugin: if it could be enabled here, beside the others.

Rules: a failure here fails an installation without --replace. If no mount answers, the taken names are
unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cortexfs import config
from cortexfs.cli import mounts, objects
from cortexfs.cli.plugin.install import placing
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.toml import Manifest
from cortexfs.core.registry import Object
from cortexfs.plugins.install.review import InstallCheck
from cortexfs.state import directories


def checks(
    given: str | None, where: directories.Places, manifest: Manifest, brought: Iterable[Object]
) -> Iterator[InstallCheck]:
    if why := placing.lacks(where, manifest.name, manifest):
        yield InstallCheck("needs", why)
    try:
        root = mounts.answering(given)
    except Fault:
        return
    consent = config.consents(config.load(where)).get(manifest.name, ())
    for name in ("/".join(one.key) for one in brought):
        row = objects.listed(root, f"{root}/{name}")
        is_own = row.status == "unreadable" or row.origin.startswith(f"plugin:{manifest.name}@")
        if not is_own and consent != config.REPLACE and name not in consent:
            holder = row.origin.split(" ")[0]
            yield InstallCheck(name, f"it is already one of {holder}; to take that name: --replace")
