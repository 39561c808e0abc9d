"""`ctx plugin review` and `ctx plugin test`: a plugin's requests, its limits, and if it works.

Rules: both fetch the modules that a plugin imports, as an installation would. `review` runs nothing of the
plugin. `test` opens its library, imports its module, and with --run calls its tools, all in hosts, from a
copy. `test` fails if any check does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cortexfs import config
from cortexfs.cli import ended, mounts, objects, output
from cortexfs.cli.daemons import places_at
from cortexfs.cli.output import sure
from cortexfs.cli.plugin.install import checks as checking
from cortexfs.cli.plugin.install import placing
from cortexfs.cli.plugin.install.install import fetched
from cortexfs.core import hostcalls
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault
from cortexfs.core.manifest import governance
from cortexfs.core.manifest.toml import Manifest
from cortexfs.core.registry import Object
from cortexfs.core.safe_text import within
from cortexfs.linux import kernel_support
from cortexfs.plugins.install import fetch, json_review
from cortexfs.plugins.install import review as reviewing
from cortexfs.plugins.install.review import InstallCheck
from cortexfs.plugins.package import directory, manifests, package
from cortexfs.plugins.package.package import PackageFiles
from cortexfs.plugins.package.tarball import MAX_PACKED
from cortexfs.plugins.trust import signing
from cortexfs.state import directories

if TYPE_CHECKING:
    from cortexfs.cli.plugin.install import trying


@ended.put_away()
def review(options: argparse.Namespace) -> int:
    path, where = Path(options.directory), places_at(options.root)
    if path.is_dir():
        if wrong := checking.unread(path):
            return _say_wrong(path, wrong, options.json)
        return _say(*_read(path, where, options.private), options.json)
    packed = package.unpack(directory.bounded(path, MAX_PACKED), str(path))
    tree, unread = _with_modules(packed, where, options.private)
    return _say(tree.manifest, tree, [*unread, *checking.of_tree(tree)], options.json)


@ended.put_away()
def test(options: argparse.Namespace) -> int:
    path, where = Path(options.directory), places_at(options.root)
    if wrong := checking.unread(path):
        return _say_wrong(path, wrong, options.json)
    manifest, tree, checks = _read(path, where, options.private)
    if tree and not any(check.fault for check in checks):
        from cortexfs.cli.plugin.install import trying  # imports trio

        results, new_objects = trying.load_and_call(tree, _sure(options) if options.run else None)
        checks += [*results, *_checks_here(options.root, where, tree.manifest, new_objects)]
    _say(manifest, tree, checks, options.json)
    return EXIT_FAILED if any(check.fault for check in checks) else EXIT_OK


def _sure(options: argparse.Namespace) -> trying.Ask:
    """Returns the question that is asked before tools are called, as the calls are real."""

    def ask(calls: list[str]) -> bool:
        for line in ("these calls are for real; they begin in an empty folder:", *calls):
            output.say(line)
        return options.yes or sure("Call them?")

    return ask


def _say_wrong(path: Path, wrong: list[InstallCheck], as_json: bool) -> int:
    if as_json:
        output.emit({"plugin": None, "checks": _rows(wrong)})
        return EXIT_FAILED
    print(within(f"Plugin review: {path}"))
    print("  Checks:")
    for check in wrong:
        print(within(f"    - {check.text}"))
    return EXIT_FAILED


def _read(
    path: Path, where: directories.Places, private: str
) -> tuple[Manifest, PackageFiles | None, list[InstallCheck]]:
    """Returns the readable part of a directory, and all checks of it."""
    try:
        source = package.read(path)
    except Fault as fault:
        manifest = directory.read(path)
        checks = checking.of_manifest(manifest, None, path)
        return manifest, None, [InstallCheck("files", fault.message), *checks]
    tree, unread = _with_modules(source, where, private)
    return tree.manifest, tree, [*unread, *checking.of_tree(tree)]


def _with_modules(
    tree: PackageFiles, where: directories.Places, private: str
) -> tuple[PackageFiles, list[InstallCheck]]:
    """Returns the plugin with the modules that an installation would fetch, and the fault if that fails."""
    if not manifests.is_json(tree.manifest) or tree.manifest.json.kind != hostcalls.ESM:
        return tree, []
    try:
        return fetched(tree, where, private), []
    except Fault as fault:
        return tree, [InstallCheck("modules from elsewhere", fault.message)]


def _checks_here(
    root_option: str | None, where: directories.Places, manifest: Manifest, new_objects: Iterable[Object]
) -> Iterator[InstallCheck]:
    """Yields the rest of the judgement: if it could be enabled here, beside the others. A failure fails an
    installation without --replace. If no mount answers, the taken names are unknown."""
    if why := placing.lacks(where, manifest.name, manifest):
        yield InstallCheck("needs", why)
    if not (root := mounts.if_answering(root_option)):
        return
    consent = config.consents(config.load(where)).get(manifest.name, ())
    for name in ("/".join(each.key) for each in new_objects):
        row = objects.row_of(root, f"{root}/{name}")
        is_own = row.status == "unreadable" or row.origin.startswith(f"plugin:{manifest.name}@")
        if not is_own and consent != config.REPLACE and name not in consent:
            holder = row.origin.split(" ")[0]
            yield InstallCheck(name, f"it is already one of {holder}; to take that name: --replace")


def _claims(manifest: Manifest, tree: PackageFiles | None) -> tuple[tuple[str, list[str]], ...]:
    """Returns the plugin's claims and limits, by its kind of manifest."""
    available = kernel_support.available()
    has_landlock = governance.Mechanism.LANDLOCK in available
    if manifests.is_json(manifest):
        return json_review.claims(manifest.json, bool(tree and fetch.pins(tree)), has_landlock)
    return (
        ("Requested capabilities", reviewing.capabilities(manifest)),
        ("Sandbox", reviewing.sandbox(manifest, available)),
        ("Recommended risk profile", reviewing.risks(manifest)),
    )


def _rows(checks: list[InstallCheck]) -> list[dict[str, str | None]]:
    return [{"check": check.name, "fault": check.fault} for check in checks]


def _say(manifest: Manifest, tree: PackageFiles | None, checks: list[InstallCheck], as_json: bool) -> int:
    has_passed = not any(check.fault for check in checks)
    signature = signing.verify(tree).text if tree else "not looked at"
    conformance = reviewing.conformance(manifest, has_passed)
    parts: dict[str, list[str]] = {
        **dict(_claims(manifest, tree)),
        "Fetched": [f"{name} {hash_}" for name, hash_ in fetch.pins(tree).items()] if tree else [],
        "Left out": list(tree.ignored) if tree else [],
        "Warnings": [*checking.warnings(manifest, tree), *governance.warnings(manifest)],
    }
    if as_json:
        about = {"plugin": manifest.name, "version": manifest.version, "trust": manifest.trust}
        about |= {"signature": signature, "conformance": conformance}
        more = {title.lower().replace(" ", "_"): rows for title, rows in parts.items()}
        output.emit({**about, **more, "checks": _rows(checks)})
        return EXIT_OK
    trust = "".join(part.capitalize() for part in manifest.trust.split("_"))
    lines = [
        f"Plugin review: {manifest.name} v{manifest.version}",
        f"  Trust: {trust}",
        f"  Signature: {signature}",
        f"  Conformance: {conformance}",
    ]
    for title, rows in (parts | {"Checks": [check.text for check in checks]}).items():
        bullet = "" if title == "Recommended risk profile" else "- "
        lines += [f"  {title}:", *(f"    {bullet}{row}" for row in rows)] if rows else []
    for line in lines:
        print(within(line))
    return EXIT_OK
