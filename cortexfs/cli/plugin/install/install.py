"""`ctx plugin install`, `uninstall`, `enable` and `disable`: what is there to load, and what is loaded.

Main path of `install`: read the source once, check it, ask about what it replaces and about its publisher,
write it, enable it, and tell the running daemon, whose answer is waited for.

Rules: everything is checked before anything is written. A plugin whose tools have the names of others is not
left enabled without consent, and what that plugin had for an earlier publisher is not consent.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cortexfs import config
from cortexfs.cli import mounts, output, parser, plugin_commands, progress, reload
from cortexfs.cli.daemons import places_of
from cortexfs.cli.output import sure
from cortexfs.cli.plugin.decided import folder_of, networks
from cortexfs.cli.plugin.install import checks
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault
from cortexfs.core.hooks import UNINSTALL, UNINSTALL_SECONDS
from cortexfs.core.manifest import governance
from cortexfs.core.manifest.toml import Manifest
from cortexfs.core.manifestjson import settings
from cortexfs.host.call import plugin_state
from cortexfs.net import web
from cortexfs.plugins import dependencies
from cortexfs.plugins.install import decisions, fetch, sources
from cortexfs.plugins.install import install as installing
from cortexfs.plugins.install.entry_points import found
from cortexfs.plugins.install.fetch import Modules
from cortexfs.plugins.install.sources import PluginSource
from cortexfs.plugins.package import directory, manifests, package, records
from cortexfs.plugins.package.package import File, PackageFiles, library_of
from cortexfs.plugins.trust import openpgp, signing, succession, trust
from cortexfs.plugins.trust.signing import SignatureVerdict
from cortexfs.state import directories
from cortexfs.state.directories import kept_of

CONSENT = "--replace"  # in what the daemon says of a plugin that needs it
# That the mount may take for last hooks: also to check the plugin and to start a host.
HOOKS_SECONDS = UNINSTALL_SECONDS + 30
MODULE_SECONDS = 300.0  # for a module of WebAssembly


def install(options: argparse.Namespace) -> int:
    with progress.shown(f"reading {options.source}"):
        source = sources.read(options.source)
    return installed(options, source)


def installed(options: argparse.Namespace, source: PluginSource) -> int:
    """Check what was read, keep it, and enable it."""
    where = places_of(options)
    source = source._replace(tree=fetched(source.tree, where, options.private))
    name = source.tree.manifest.name
    checks.refuse(name, checks.of_tree(source.tree))
    directories.create(where)
    verdict = signing.verify(source.tree)
    key, unchecked = _openpgp(source.tree, where)
    after = succession.Copy(source.tree.manifest.version, verdict.publisher, verdict.fingerprint, key)
    is_other = _replaces(options, where, name, after)
    _allow(options, where, source.tree.manifest)
    is_new = _is_trusted(options, where, verdict, source.packaged and not key)
    _try(source.tree)
    if is_new:
        trust.TrustStore(where.state).add(verdict, datetime.now(UTC).isoformat(timespec="seconds"))
    record = records.PluginRecord(
        source.told, records.files_of(source.tree), verdict.publisher, verdict.fingerprint, key
    )
    files = {**source.tree.files, records.FILE: records.file(record)}
    before = _installed(where.state / directory.FOLDER / name)
    installing.install(where.state / directory.FOLDER, name, files)
    signers = [verdict.publisher, f"the OpenPGP key {key}" if key else ""]
    by = f"signed by {' and '.join(filter(None, signers))}" if any(signers) else "unsigned"
    by += unchecked + _told(source.tree, where)
    for warning in checks.warnings(source.tree.manifest, source.tree):
        output.say(f"warning: {warning}")
    kept = config.choices(where.config).get(name) == config.REPLACE and not is_other
    if (why := _lacks(where, name)) and name not in config.enabled(config.load(where)):
        output.say(f"installed {name} {source.tree.manifest.version}, {by}; it is not enabled: {why}")
        return EXIT_FAILED
    said, refused = _choose(options, where, name, config.REPLACE if options.replace or kept else True)
    if (
        refused
        and manifests.is_json(source.tree.manifest)
        and not settings.settings_of(source.tree.manifest.json)
    ):
        _undo(options, where, name, before)
        raise Fault("EINVAL", f"{name} is not installed, and all is as it was: {said}")
    output.say(f"installed {name} {source.tree.manifest.version}, {by}; {said}")
    return EXIT_FAILED if refused else EXIT_OK


def _replaces(
    options: argparse.Namespace, where: directories.Places, name: str, after: succession.Copy
) -> bool:
    """Returns True where it replaces another publisher's. Raises a Fault where nobody consents to that."""
    base = where.state / directory.FOLDER
    installing.settle(base)
    before = succession.installed(base / name)
    why = succession.unlike(before, after) if before and after != before else ""
    is_other = before is not None and (before.key, before.openpgp) != (after.key, after.openpgp)
    if not before or not why or options.replace:
        return is_other
    both = f"{name} {before.told} is installed, and this is {after.told}: {why}"
    if options.yes or not sys.stdin.isatty():
        raise Fault("EPERM", f"{both}; where that is meant say --replace, or answer at a terminal")
    if not sure(f"{both}. Replace it, and leave its settings, permissions and data to this?"):
        raise Fault("EPERM", f"{name} stays as it was; nothing was installed")
    return is_other


def _allow(options: argparse.Namespace, where: directories.Places, manifest: Manifest) -> None:
    """Raises a Fault where it asks for everything, and nobody says yes to that, now or of a former copy."""
    wanted = governance.wants_everything(manifest)
    if not wanted or options.yes:
        return
    with contextlib.suppress(Fault):
        former = directory.read(where.state / directory.FOLDER / manifest.name)
        if governance.wants_everything(former) == wanted:
            return
    asks = f"{manifest.name} asks to {wanted} every file that its callers may ({governance.EVERYTHING})"
    if not sys.stdin.isatty():
        raise Fault("EPERM", f"{asks}; where that is meant say --yes, or answer at a terminal")
    if not sure(f"{asks}. Install it?"):
        raise Fault("EPERM", f"{manifest.name} may not {wanted} everything; nothing was installed")


def _openpgp(tree: PackageFiles, where: directories.Places) -> tuple[str, str]:
    """The key that has signed a manifest.json, and what to say where that was not looked at."""
    if not manifests.is_json(tree.manifest):
        return "", ""
    keys = where.config / openpgp.KEYS
    why = openpgp.unchecked(tree.manifest.json, keys)
    return openpgp.signer(tree.manifest.json, tree.contents, keys), f" ({why})" if why else ""


def _lacks(where: directories.Places, name: str) -> str | None:
    """Returns the needs of the plugin that nothing meets."""
    enabled = config.enabled(config.load(where))
    return dependencies.why_not(where.state / directory.FOLDER, found(), enabled, name)


def _installed(folder: Path) -> dict[str, File]:
    """Returns the files of what is installed there, as a copy to go back to; none where nothing is whole."""
    with contextlib.suppress(Fault):
        tree = package.read(folder)
        return {**tree.files, records.FILE: records.file(records.read(folder))}
    return {}


def _undo(options: argparse.Namespace, where: directories.Places, name: str, before: dict[str, File]) -> None:
    """Go back to what was installed, where a module does not load. One that may need its settings stays."""
    if before:
        installing.install(where.state / directory.FOLDER, name, before)
    else:
        config.choose(where.config, name, None)
        installing.remove(where.state / directory.FOLDER, name)
    reload.told(options.root)


def _try(tree: PackageFiles) -> None:
    """Raises a Fault where a library or a Python module does not load. A module of JavaScript or WebAssembly
    may need its settings first, and a program is seen to be one without being run."""
    if not manifests.is_json(tree.manifest) and (tree.manifest.python or library_of(tree.manifest)):
        from cortexfs.cli.plugin.install import trying  # it brings trio

        found = trying.tried(tree)
        checks.refuse(tree.manifest.name, found)
        for check in found:
            if check.is_warning:
                output.say(f"warning: {check.name}")


def _is_trusted(
    options: argparse.Namespace, where: directories.Places, verdict: SignatureVerdict, packaged: bool
) -> bool:
    """Returns True where its publisher is to be trusted from now on. Raises a Fault where that is needed and
    nobody wants it."""
    store = trust.TrustStore(where.state)
    trusted = verdict.status == "verified" and store.trusts(verdict)
    decision = trust.decide(
        verdict, trusted=trusted, packaged=packaged, yes=options.yes, interactive=sys.stdin.isatty()
    )
    if decision == "ask":
        who = f"{verdict.publisher} with the key {verdict.fingerprint}"
        if not sure(f"The publisher {who} is not known here. Trust it, now and from now on?"):
            raise Fault("EPERM", f"the publisher {verdict.publisher} is not trusted; nothing was installed")
    return decision != "install"


def uninstall(options: argparse.Namespace) -> int:
    where, name = places_of(options), options.name
    folder_of(where, name)
    if plugin_state.has_begun(kept_of(where.state) / name, os.getuid()) and (
        why := _last_hooks(options.root, name)
    ):
        output.say(f"{name} goes, though its last hooks were not all called in good order: {why}")
    said, _ = _choose(options, where, name, None if options.purge else False)
    if options.purge:
        installing.remove(where.state / directory.FOLDER, name)
        decisions.forget(where.state, name)
        reload.told(options.root)  # it knows the commands of what is disabled
        output.say(f"removed {name}; {said}")
    else:
        output.say(f"disabled {name}; {said}; its files stay until: ctx plugin uninstall {name} --purge")
    return EXIT_OK


def _last_hooks(given: str | None, name: str) -> str:
    """Have them called in a host of whoever uninstalls it. Returns the reason of a failure, which holds
    nothing up; nothing, else. Plugins that were never told of their installation have none."""
    try:
        point = mounts.answering(given)
    except Fault as fault:
        return fault.message
    try:
        with progress.shown(f"{name} puts away what it has"):
            done = subprocess.run(
                [f"{point}/{plugin_commands.RUNNER}", f"{point}/{plugin_commands.FILE}", UNINSTALL, name],
                env=os.environ | {"CTX_OUTPUT": "text"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=HOOKS_SECONDS,
            )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    return done.stderr.strip() if done.returncode else ""


def enable(options: argparse.Namespace) -> int:
    where, name = places_of(options), options.name
    known = _known(where)
    if name not in known:
        hint = parser.nearest(name, known) or "; install it first, see: ctx plugin install --help"
        raise Fault("ENOENT", f"there is no plugin {name!r}{hint}")
    if why := known[name]:
        raise Fault("EINVAL", f"the plugin {name} cannot be enabled: {why}")
    if why := _lacks(where, name):
        raise Fault("EPERM", f"the plugin {name} cannot be enabled: {why}")
    said, refused = _choose(options, where, name, config.REPLACE if options.replace else True)
    output.say(f"enabled {name}; {said}")
    return EXIT_FAILED if refused else EXIT_OK


def _known(where: directories.Places) -> dict[str, str | None]:
    """The plugins of Python packages, with what is wrong with each, and those that are installed."""
    folders = directory.folders(where.state / directory.FOLDER)
    return {one.plugin.name: one.fault for one in found()} | {folder.name: None for folder in folders}


def disable(options: argparse.Namespace) -> int:
    where, name = places_of(options), options.name
    known = {*_known(where), *config.enabled(config.load(where))}
    if name not in known:
        hint = parser.nearest(name, known) or "; see: ctx plugin list"
        raise Fault("ENOENT", f"there is no plugin {name!r}{hint}")
    said, _ = _choose(options, where, name, False)
    output.say(f"disabled {name}; {said}")
    return EXIT_OK


def _choose(
    options: argparse.Namespace, where: directories.Places, name: str, choice: config.Choice | None
) -> tuple[str, bool]:
    """Write the choice down and tell the daemon; what it says, and whether it refused the plugin."""
    before = config.choices(where.config).get(name)
    config.choose(where.config, name, choice)
    refusals: list[str] = []

    def outcome(facts: dict[str, list[str]]) -> str | None:
        refusals.extend(filter(None, [mounts.broken(facts, "plugin").get(name)]))
        wrong = mounts.wrong(facts).get(name)
        told = f"some of its tools cannot be called: {wrong}" if wrong else None
        return f"it does not load: {refusals[0]}" if refusals else told

    said = reload.told(options.root, outcome)
    if refusals and CONSENT in refusals[0] and choice is True and not before:
        config.choose(where.config, name, False)
        reload.told(options.root)
        raise Fault("EEXIST", f"{name} is not enabled: {refusals[0]}")
    return said, bool(refusals)


def fetched(tree: PackageFiles, where: directories.Places, private: str) -> PackageFiles:
    """With all that it needs; from the network, unless the very same plugin is installed."""
    installed = where.state / directory.FOLDER / tree.manifest.name
    own = networks(private)
    download = partial(web.download, seconds=MODULE_SECONDS, private=own)
    with progress.shown("looking at what it needs"):
        return fetch.completed(tree, download, partial(_modules, private=own), installed)


def _told(tree: PackageFiles, where: directories.Places) -> str:
    """For the line that says that it is installed."""
    if not (count := len(fetch.pins(tree))):
        return ""
    see = where.state / directory.FOLDER / tree.manifest.name
    return f", with {count} module{'s' * (count > 1)} from elsewhere (see: ctx plugin review {see})"


def _modules(modules: Modules, private: tuple[str, ...]) -> dict[str, bytes]:
    from cortexfs.host.esm import fetch as esmfetch  # what it takes is for those who fetch

    with _put_away(), progress.shown("fetching what it imports") as now:

        def told(connections: int, size: int) -> None:
            now(f"fetching what it imports: {connections} connections, {size / (1 << 20):.1f} MiB")

        return esmfetch.fetch(esmfetch.FetchRequest(*modules), private, told)


@contextlib.contextmanager
def _put_away() -> Iterator[None]:
    """Whoever is told to end, or whose terminal closes, puts away what was begun, as with an interrupt."""
    ours = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]
    for each in ours:
        signal.signal(each, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
