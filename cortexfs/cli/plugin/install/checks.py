"""The one judgement about a plugin, for `ctx plugin review`, `test` and `install` alike.

Rules: all faults are reported at once. Nothing of the plugin runs here. Tools' descriptions of themselves are
no part of this: only a host asks for them.
This file must never know how a review is printed, or where the plugin will lie.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from cortexfs.cli import output, parser
from cortexfs.core.arguments.schema import unknown_required
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import governance
from cortexfs.core.manifest.toml import FILE, DeclaredProcessTool, Manifest
from cortexfs.host.call.validation import Validator
from cortexfs.linux import kernel_support
from cortexfs.plugins import enabled as offers
from cortexfs.plugins import texts
from cortexfs.plugins.install import install as installing
from cortexfs.plugins.install import json_review, review
from cortexfs.plugins.install.entry_points import found
from cortexfs.plugins.install.review import InstallCheck, tried
from cortexfs.plugins.package import manifests
from cortexfs.plugins.package.package import PackageFiles


def of_tree(tree: PackageFiles) -> list[InstallCheck]:
    """Returns all checks of a plugin whose files could all be read."""
    with copy_of(tree) as place:  # a copy shows commands that lead outside, and files that are no library
        checks = of_manifest(tree.manifest, tree, place)
        if not any(check.fault for check in checks):
            checks.append(tried("files as it would be loaded", lambda: offers.declared(tree, place)))
    return checks


def of_manifest(manifest: Manifest, tree: PackageFiles | None, place: Path) -> list[InstallCheck]:
    """Returns the checks of all that could be read. `place` has the files."""
    if manifests.is_json(manifest):
        checks = json_review.checks(manifest.json, tree)
        if manifest.json.cli_commands:
            checks.append(InstallCheck("commands", _commands_fault(manifest)))
    else:
        checks = review.checks(manifest, tree, place, kernel_support.available())
        for tool in manifest.native.tools if manifest.native else ():
            if isinstance(tool.input_schema, dict):
                checks.append(tried(f"tool {tool.name} schema", partial(_check_schema, tool)))
        checks += _texts(tree) if tree else ()
    return [*checks, tried("name", lambda: _check_name(manifest.name))]


def unread(path: Path) -> list[InstallCheck]:
    """Returns all faults of a manifest.json, if the folder has no manifest.toml."""
    return [] if (path / FILE).exists() else json_review.errors(path)


def warnings(manifest: Manifest, tree: PackageFiles | None) -> list[str]:
    """Returns the warnings, which prevent nothing."""
    own = manifests.warning_lines(manifest.warnings) if manifests.is_json(manifest) else []
    if tree and manifests.is_json(manifest):
        own += json_review.warnings(manifest.json, tree)
    if tree:
        own += [why for kind in texts.FOLDERS for why in texts.judged(tree.contents, kind)[1]]
    own += [why for tool in manifest.native.tools if (why := _unknown(tool))] if manifest.native else []
    return [*own, *governance.unknown_provides(manifest), *governance.newer(manifest)]


def _unknown(tool: DeclaredProcessTool) -> str:
    """Returns the warning about required names that are no properties, if the tool has any."""
    schema = tool.input_schema if isinstance(tool.input_schema, dict) else {}
    if not (names := unknown_required(schema)):
        return ""
    hint = parser.nearest(names[0], schema.get("properties", ())) or "; mend it, or add the property"
    return f"tool {tool.name}: input_schema requires {', '.join(names)}, and has no such property{hint}"


def _texts(tree: PackageFiles) -> Iterator[InstallCheck]:
    """Yields the check that a plugin has some of the texts which it provides."""
    provides = tree.manifest.capabilities.provides
    provided = {kind: folder for kind, folder in texts.FOLDERS.items() if folder in provides}
    judged = [texts.judged(tree.contents, kind) for kind in provided]
    wrong = [why for _, faults in judged for why in faults]
    folders = " and ".join(provided.values())
    missing = wrong[0] if wrong else f"provides names {folders}, and the plugin has none"
    if provided:
        yield InstallCheck(folders, None if any(found for found, _ in judged) else missing)


def refuse(name: str, checks: list[InstallCheck]) -> None:
    """Raises a Fault if any check has failed. If several have, prints each."""
    failed = [check for check in checks if check.fault]
    if len(failed) > 1:
        for check in failed:
            output.say(check.text)
        message = f"plugin '{name}' fails {len(failed)} checks, and is not installed; see: ctx plugin test"
        raise Fault(failed[0].code or "EINVAL", message)
    for check in failed:
        if check.code:
            message = str(check.fault)
            raise Fault(check.code, message if f"'{name}'" in message else f"plugin '{name}': {message}")
        message = f"plugin '{name}' fails the check \"{check.name}\": {check.fault}"
        raise Fault("EINVAL", f"{message}; see: ctx plugin test")


@contextlib.contextmanager
def copy_of(tree: PackageFiles) -> Iterator[Path]:
    """Yields a copy of the plugin, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="ctx-plugin-") as folder:
        place = Path(folder) / tree.manifest.name
        installing.write(place, tree.files, durable=False)
        yield place


def _check_name(name: str) -> None:
    if name in offers.RESERVED:
        raise Fault("EINVAL", f"the name {name} belongs to built-in tools; choose another")
    if any(entry.plugin.name == name for entry in found()):
        mend = "uninstall that with pip first"
        raise Fault("EEXIST", f"a Python package has a plugin {name} already; {mend}")


def _commands_fault(manifest: manifests.JsonPluginManifest) -> str | None:
    """Returns why its commands cannot be called: a command of ours has the name of one."""
    for command in manifest.json.cli_commands:
        if parser.is_ours(command.name):
            of = f"{command.name} is a command of {parser.program()} itself"
            return f"cliCommands: {of}; name it otherwise"
    return None


def _check_schema(tool: DeclaredProcessTool) -> None:
    """Check in this process: the daemon compiles no schema, and a host only does so to use it."""
    try:
        Validator(tool.input_schema).check({})
    except Fault as fault:
        if fault.code == "EPROTO":  # EINVAL is about the input, which was made up
            raise Fault("EINVAL", f"process tool '{tool.name}' has no sound input_schema: {fault}") from None
