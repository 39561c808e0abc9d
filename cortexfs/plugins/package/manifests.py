"""A plugin's manifest and package.toml, from bytes. A manifest.json becomes a manifest of this host.

Records, copies, signatures and listings use a `JsonPluginManifest` like any other manifest. Its field `json`
has the file's own content, for code that needs the kind.

Rules: files are bounded before they are parsed. A package.toml replaces [package] as a whole. An unreadable
one is a fault, never ignored. A field that a manifest.json lacks has the default of a manifest.toml.
This file must never know the source of the bytes: checks and uses of a package parse the same bytes.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import msgspec

from cortexfs.core import tomltext
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.governance import HOST_VERSION
from cortexfs.core.manifest.toml import (
    FILE,
    PACKAGE_FILE,
    Manifest,
    ManifestCapabilities,
    Package,
    decode,
    decode_package,
)
from cortexfs.core.manifestjson import FILE as JSON_FILE
from cortexfs.core.manifestjson import checked, fields
from cortexfs.core.manifestjson.problems import WARNINGS, Problem

SHOWN = 3  # places that are shown for a repeated warning
MAX_FILE = 1 << 20  # room for the schemas of many tools in a file that a person wrote


def parse(manifest: bytes, package: bytes | None = None, folder: str = "") -> Manifest:
    """Returns the manifest with its package.toml merged. `folder` names the place of the files in faults."""
    where = f"manifest {folder}/{FILE}" if folder else FILE
    found = decode(_table(manifest, where), where)
    return found if package is None else msgspec.structs.replace(found, package=metadata(package, folder))


def metadata(package: bytes, folder: str = "") -> Package:
    where = f"package metadata {folder}/{PACKAGE_FILE}" if folder else PACKAGE_FILE
    return decode_package(_table(package, where), where)


def _table(data: bytes, where: str) -> dict[str, Any]:
    if len(data) > MAX_FILE:
        raise Fault("EMSGSIZE", f"invalid {where}: is over {MAX_FILE >> 20} MiB")
    return tomltext.table(data, f"invalid {where}")


class JsonPluginManifest(Manifest, frozen=True, kw_only=True):
    json: fields.JsonManifest
    warnings: tuple[Problem, ...] = ()


def is_json(manifest: Manifest) -> TypeGuard[JsonPluginManifest]:
    return isinstance(manifest, JsonPluginManifest)


def parse_json(data: bytes, package: bytes | None = None, folder: str = "") -> JsonPluginManifest:
    """Returns the manifest with its package.toml merged. `folder` names the place of the files in faults."""
    manifest, warnings = checked(data, f"{folder}/{JSON_FILE}" if folder else JSON_FILE)
    return JsonPluginManifest(
        name=manifest.name,
        version=manifest.version,
        description=manifest.description,
        author=manifest.author or "",
        cortex_version=HOST_VERSION,
        capabilities=ManifestCapabilities(provides=("tools",) if "tools" in manifest.capabilities else ()),
        package=Package() if package is None else metadata(package, folder),
        json=manifest,
        warnings=warnings,
    )


def warning_lines(warnings: tuple[Problem, ...]) -> list[str]:
    """Returns a line for each kind of warning, with the count and the first places of it."""
    kinds: dict[str, list[Problem]] = {}
    for problem in warnings:
        kinds.setdefault(problem.category, []).append(problem)
    return [_line(*found) for found in kinds.values()]


def _line(first: Problem, *others: Problem) -> str:
    if not others:
        return first.sentence(JSON_FILE)
    places = [problem.path for problem in (first, *others)]
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    where = f"{', '.join(places[:SHOWN])}{more}"
    return f"{JSON_FILE}: {len(places)} times {WARNINGS[first.category]}: {where}"
