"""A manifest.json as a manifest of this host: one plugin system, whatever a plugin's manifest is called.

`JsonPluginManifest` is what records, copies, signatures and listings take for any other manifest; beside it
stands what the file says itself, for whoever needs to know its kind.

Rules: what is not said by a manifest.json has the default of a manifest.toml. The signature of a publisher is
in package.toml here too, whose sections are the same.
This file must never know where a manifest lies, nor what runs a kind.
"""

from __future__ import annotations

from typing import TypeGuard

from cortexfs.core.manifest.governance import HOST_VERSION
from cortexfs.core.manifest.toml import Manifest, ManifestCapabilities, Package
from cortexfs.core.manifestjson import FILE, checked, fields
from cortexfs.core.manifestjson.problems import Problem
from cortexfs.plugins.package import manifests


class JsonPluginManifest(Manifest, frozen=True, kw_only=True):
    json: fields.JsonManifest
    warnings: tuple[Problem, ...] = ()


def is_json(manifest: Manifest) -> TypeGuard[JsonPluginManifest]:
    return isinstance(manifest, JsonPluginManifest)


def parse(data: bytes, package: bytes | None = None, folder: str = "") -> JsonPluginManifest:
    """The manifest with its package.toml merged; `folder` is where a person finds the files."""
    said, warnings = checked(data, f"{folder}/{FILE}" if folder else FILE)
    return JsonPluginManifest(
        name=said.name,
        version=said.version,
        description=said.description,
        author=said.author or "",
        cortex_version=HOST_VERSION,
        capabilities=ManifestCapabilities(provides=("tools",) if "tools" in said.capabilities else ()),
        package=Package() if package is None else manifests.metadata(package, folder),
        json=said,
        warnings=warnings,
    )


def told(warnings: tuple[Problem, ...]) -> list[str]:
    return [problem.told(FILE) for problem in warnings]
