"""`ctx plugin review` and `ctx plugin test`: what a plugin asks for, what holds it, and whether it works.

Rules: both fetch what a plugin imports, as installing it would. `review` runs nothing of it; `test` opens its
library, imports its module, and with --run calls its tools, all of it in hosts, from a copy. `test` fails if
any check does.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from cortexfs import config, manifestkinds, mechanisms
from cortexfs.cli import output, plugin_fetching
from cortexfs.cli.plugin_install import check_schema, commands_fault
from cortexfs.core import governance
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault
from cortexfs.core.manifest import FILE, Manifest
from cortexfs.host import esm
from cortexfs.plugins import (
    directory,
    fetching,
    installing,
    jsonmanifests,
    jsonreviewing,
    package,
    reviewing,
    signing,
)
from cortexfs.plugins.package import Tree
from cortexfs.plugins.reviewing import Check
from cortexfs.plugins.tarball import MAX_PACKED


def review(options: argparse.Namespace, where: config.Places) -> int:
    path = Path(options.directory)
    if path.is_dir():
        if wrong := _unread(path):
            return _say_wrong(path, wrong)
        manifest, tree, unread = _read(path, where, options.private)
        return _say(manifest, tree, [*unread, *_checks(manifest, tree, path)])
    tree, unread = _completed(package.unpack(_bytes(path), str(path)), where, options.private)
    with tempfile.TemporaryDirectory(prefix="ctx-plugin-") as folder:
        place = Path(folder) / "plugin"
        installing.write(place, tree.files, durable=False)
        return _say(tree.manifest, tree, [*unread, *_checks(tree.manifest, tree, place)])


def test(options: argparse.Namespace, where: config.Places) -> int:
    path = Path(options.directory)
    if wrong := _unread(path):
        return _say_wrong(path, wrong)
    manifest, tree, unread = _read(path, where, options.private)
    checks = [*unread, *_checks(manifest, tree, path)]
    if tree and not any(check.fault for check in checks):
        from cortexfs.cli import plugin_trying  # it brings trio

        checks += plugin_trying.tried(tree, run=options.run)
    _say(manifest, tree, checks)
    return EXIT_FAILED if any(check.fault for check in checks) else EXIT_OK


def _unread(path: Path) -> list[Check]:
    """All that is wrong with a manifest.json, where that is what there is."""
    return [] if (path / FILE).exists() else jsonreviewing.errors(path)


def _say_wrong(path: Path, wrong: list[Check]) -> int:
    print(output.printable(f"Plugin review: {path}"))
    print("  Checks:")
    for check in wrong:
        print(output.printable(f"    - {check.text}"))
    return EXIT_FAILED


def _read(path: Path, where: config.Places, private: str) -> tuple[Manifest, Tree | None, list[Check]]:
    """What can be read of a directory, and why not all of it."""
    try:
        whole = package.read(path)
    except Fault as fault:
        return directory.read(path), None, [Check("files", fault.message)]
    tree, unread = _completed(whole, where, private)
    return tree.manifest, tree, unread


def _completed(tree: Tree, where: config.Places, private: str) -> tuple[Tree, list[Check]]:
    """With what installing would fetch, and why not."""
    if not jsonmanifests.is_json(tree.manifest) or tree.manifest.json.kind != esm.KIND:
        return tree, []
    try:
        return plugin_fetching.completed(tree, where, private), []
    except Fault as fault:
        return tree, [Check("modules from elsewhere", fault.message)]


def _bytes(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(MAX_PACKED + 1)


def _checks(manifest: Manifest, tree: Tree | None, place: Path) -> list[Check]:
    if jsonmanifests.is_json(manifest):
        checks = jsonreviewing.checks(manifest.json, tree, tuple(manifestkinds.KINDS))
        return (
            [*checks, Check("commands", commands_fault(manifest))] if manifest.json.cli_commands else checks
        )
    checks = reviewing.checks(manifest, tree, place, mechanisms.available())
    for tool in manifest.native.tools if manifest.native else ():
        if isinstance(tool.input_schema, dict):
            try:
                check_schema(tool)
            except Fault as fault:
                checks.append(Check(f"tool {tool.name} input_schema", fault.message))
    return checks


def _claims(manifest: Manifest, tree: Tree | None) -> tuple[tuple[str, list[str]], ...]:
    """What it asks for, and what holds it, by its kind of manifest."""
    available = mechanisms.available()
    has_landlock = governance.Mechanism.LANDLOCK in available
    if jsonmanifests.is_json(manifest):
        return (
            ("Requested capabilities", jsonreviewing.capabilities(manifest.json)),
            ("Hooks", jsonreviewing.hooked(manifest.json)),
            ("Needs", jsonreviewing.needs(manifest.json)),
            ("Commands", jsonreviewing.commands(manifest.json)),
            ("Sandbox", manifestkinds.held(manifest.json, bool(tree and fetching.pins(tree)), has_landlock)),
            ("Recommended risk profile", jsonreviewing.risks(manifest.json)),
        )
    return (
        ("Requested capabilities", reviewing.capabilities(manifest)),
        ("Sandbox", reviewing.sandbox(manifest, available)),
        ("Recommended risk profile", reviewing.risks(manifest)),
    )


def _own_warnings(manifest: Manifest) -> list[str]:
    return jsonmanifests.told(manifest.warnings) if jsonmanifests.is_json(manifest) else []


def _say(manifest: Manifest, tree: Tree | None, checks: list[Check]) -> int:
    passed = not any(check.fault for check in checks)
    trust = "".join(part.capitalize() for part in manifest.trust.split("_"))
    lines = [
        f"Plugin review: {manifest.name} v{manifest.version}",
        f"  Trust: {trust}",
        f"  Signature: {signing.verify(tree).text if tree else 'not looked at'}",
        f"  Conformance: {reviewing.conformance(manifest, passed)}",
    ]
    for title, rows in (
        *_claims(manifest, tree),
        ("Fetched", [f"{name} {hash_}" for name, hash_ in fetching.pins(tree).items()] if tree else []),
        ("Left out", list(tree.ignored) if tree else []),
        ("Warnings", [*_own_warnings(manifest), *governance.warnings(manifest)]),
        ("Checks", [check.text for check in checks]),
    ):
        bullet = "" if title == "Recommended risk profile" else "- "
        lines += [f"  {title}:", *(f"    {bullet}{row}" for row in rows)] if rows else []
    for line in lines:
        print(output.printable(line))
    return EXIT_OK
