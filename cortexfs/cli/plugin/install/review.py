"""`ctx plugin review` and `ctx plugin test`: what a plugin asks for, what holds it, and whether it works.

Rules: both fetch what a plugin imports, as installing it would. `review` runs nothing of it; `test` opens its
library, imports its module, and with --run calls its tools, all of it in hosts, from a copy. `test` fails if
any check does.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from cortexfs.cli import progress
from cortexfs.cli.daemons import places_at
from cortexfs.cli.plugin.install.install import check_schema, commands_fault, fetched
from cortexfs.core import hostcalls
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault
from cortexfs.core.manifest import governance
from cortexfs.core.manifest.toml import FILE, Manifest
from cortexfs.core.safe_text import within
from cortexfs.linux import kernel_support
from cortexfs.plugins import json_kinds
from cortexfs.plugins.install import fetch, install, json_review, sources
from cortexfs.plugins.install import review as reviewing
from cortexfs.plugins.install.review import InstallCheck
from cortexfs.plugins.package import directory, manifests, package
from cortexfs.plugins.package.package import PackageFiles
from cortexfs.plugins.package.tarball import MAX_PACKED
from cortexfs.plugins.trust import signing
from cortexfs.state import directories


def review(options: argparse.Namespace) -> int:
    path, where = Path(options.directory), places_at(options.root)
    if path.is_dir():
        if wrong := _unread(path):
            return _say_wrong(path, wrong)
        manifest, tree, unread = _read(path, where, options.private)
        return _say(manifest, tree, [*unread, *_checks(manifest, tree, path)])
    tree, unread = _completed(
        package.unpack(sources.bounded(path, MAX_PACKED), str(path)), where, options.private
    )
    with tempfile.TemporaryDirectory(prefix="ctx-plugin-") as folder:
        place = Path(folder) / "plugin"
        install.write(place, tree.files, durable=False)
        return _say(tree.manifest, tree, [*unread, *_checks(tree.manifest, tree, place)])


def test(options: argparse.Namespace) -> int:
    path, where = Path(options.directory), places_at(options.root)
    if wrong := _unread(path):
        return _say_wrong(path, wrong)
    manifest, tree, unread = _read(path, where, options.private)
    checks = [*unread, *_checks(manifest, tree, path)]
    if tree and not any(check.fault for check in checks):
        from cortexfs.cli.plugin.install import trying  # it brings trio

        with progress.shown("loading it"):
            checks += trying.tried(tree, run=options.run)
    _say(manifest, tree, checks)
    return EXIT_FAILED if any(check.fault for check in checks) else EXIT_OK


def _unread(path: Path) -> list[InstallCheck]:
    """All that is wrong with a manifest.json, where that is what there is."""
    return [] if (path / FILE).exists() else json_review.errors(path)


def _say_wrong(path: Path, wrong: list[InstallCheck]) -> int:
    print(within(f"Plugin review: {path}"))
    print("  Checks:")
    for check in wrong:
        print(within(f"    - {check.text}"))
    return EXIT_FAILED


def _read(
    path: Path, where: directories.Places, private: str
) -> tuple[Manifest, PackageFiles | None, list[InstallCheck]]:
    """Returns the readable part of a directory, and the reasons for the rest."""
    try:
        whole = package.read(path)
    except Fault as fault:
        return directory.read(path), None, [InstallCheck("files", fault.message)]
    tree, unread = _completed(whole, where, private)
    return tree.manifest, tree, unread


def _completed(
    tree: PackageFiles, where: directories.Places, private: str
) -> tuple[PackageFiles, list[InstallCheck]]:
    """With what installing would fetch, and why not."""
    if not manifests.is_json(tree.manifest) or tree.manifest.json.kind != hostcalls.ESM:
        return tree, []
    try:
        return fetched(tree, where, private), []
    except Fault as fault:
        return tree, [InstallCheck("modules from elsewhere", fault.message)]


def _checks(manifest: Manifest, tree: PackageFiles | None, place: Path) -> list[InstallCheck]:
    if manifests.is_json(manifest):
        checks = json_review.checks(manifest.json, tree, tuple(json_kinds.KINDS))
        return (
            [*checks, InstallCheck("commands", commands_fault(manifest))]
            if manifest.json.cli_commands
            else checks
        )
    checks = reviewing.checks(manifest, tree, place, kernel_support.available())
    for tool in manifest.native.tools if manifest.native else ():
        if isinstance(tool.input_schema, dict):
            try:
                check_schema(tool)
            except Fault as fault:
                checks.append(InstallCheck(f"tool {tool.name} input_schema", fault.message))
    return checks


def _claims(manifest: Manifest, tree: PackageFiles | None) -> tuple[tuple[str, list[str]], ...]:
    """Returns the plugin's claims, and what holds it, by its kind of manifest."""
    available = kernel_support.available()
    has_landlock = governance.Mechanism.LANDLOCK in available
    if manifests.is_json(manifest):
        return (
            ("Requested capabilities", json_review.capabilities(manifest.json)),
            ("Hooks", json_review.hooked(manifest.json)),
            ("Needs", json_review.needs(manifest.json)),
            ("Commands", json_review.commands(manifest.json)),
            ("Sandbox", json_kinds.held(manifest.json, bool(tree and fetch.pins(tree)), has_landlock)),
            ("Recommended risk profile", json_review.risks(manifest.json)),
        )
    return (
        ("Requested capabilities", reviewing.capabilities(manifest)),
        ("Sandbox", reviewing.sandbox(manifest, available)),
        ("Recommended risk profile", reviewing.risks(manifest)),
    )


def _say(manifest: Manifest, tree: PackageFiles | None, checks: list[InstallCheck]) -> int:
    passed = not any(check.fault for check in checks)
    trust = "".join(part.capitalize() for part in manifest.trust.split("_"))
    own = manifests.told(manifest.warnings) if manifests.is_json(manifest) else []
    lines = [
        f"Plugin review: {manifest.name} v{manifest.version}",
        f"  Trust: {trust}",
        f"  Signature: {signing.verify(tree).text if tree else 'not looked at'}",
        f"  Conformance: {reviewing.conformance(manifest, passed)}",
    ]
    for title, rows in (
        *_claims(manifest, tree),
        ("Fetched", [f"{name} {hash_}" for name, hash_ in fetch.pins(tree).items()] if tree else []),
        ("Left out", list(tree.ignored) if tree else []),
        ("Warnings", [*own, *governance.warnings(manifest)]),
        ("Checks", [check.text for check in checks]),
    ):
        bullet = "" if title == "Recommended risk profile" else "- "
        lines += [f"  {title}:", *(f"    {bullet}{row}" for row in rows)] if rows else []
    for line in lines:
        print(within(line))
    return EXIT_OK
