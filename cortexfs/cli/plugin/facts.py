"""The facts about installed plugins for policy, read from their manifests (core/policy/lint.py).

Rules: what this user cannot read is left out, and the plugin is judged by its tools alone.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from cortexfs.core.errors import Fault
from cortexfs.core.manifest import governance
from cortexfs.core.policy.lint import LintedPlugin
from cortexfs.linux import kernel_support
from cortexfs.plugins.package import directory


def told(plugin: LintedPlugin, state: Path) -> LintedPlugin:
    """The plugin, with what its manifest says of it."""
    folder = state / directory.FOLDER / plugin.name
    if folder not in directory.folders(state / directory.FOLDER):
        return plugin
    try:
        manifest = directory.read(folder)
    except Fault as fault:
        return replace(plugin, fault=plugin.fault or fault.message)
    wrong = ""
    try:
        governance.check(manifest, kernel_support.available())
    except Fault as fault:
        wrong = fault.message
    return replace(
        plugin,
        governance=wrong,
        gaps=tuple(governance.warnings(manifest)),
        trust=manifest.trust,
        native=manifest.native is not None and manifest.native.isolation == "trusted_in_process",
        profiled=bool(manifest.package.risk_profile),
        secrets=manifest.capabilities.secrets,
        background=manifest.capabilities.background,
    )
