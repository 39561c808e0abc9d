"""`ctx plugin install`, `uninstall`, `enable` and `disable`: the plugins to load, and the loaded ones.

Main path of `install`: read the source once, check it, ask about the copy that it replaces and about its
publisher, write it, enable it, and tell the running daemon. Then wait for the daemon's answer.

Rules: everything is checked before anything is written. A plugin whose tools have the names of others stays
enabled only with consent. Consent that an earlier publisher's copy had does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cortexfs import config
from cortexfs.cli import ended, mounts, objects, output, parser, plugin_commands, progress, reload
from cortexfs.cli.daemons import places_of
from cortexfs.cli.output import sure
from cortexfs.cli.plugin.decided import folder_of, networks
from cortexfs.cli.plugin.install import checks, placing
from cortexfs.cli.plugin.install.placing import Consented
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault
from cortexfs.core.hooks import UNINSTALL, UNINSTALL_SECONDS
from cortexfs.core.manifest import governance
from cortexfs.core.manifest.toml import Manifest
from cortexfs.core.manifestjson.fetched import FetchRequest
from cortexfs.host.call import plugin_state
from cortexfs.net import web
from cortexfs.plugins.install import decisions, fetch, sources
from cortexfs.plugins.install import install as installing
from cortexfs.plugins.install.entry_points import found
from cortexfs.plugins.install.sources import PluginSource
from cortexfs.plugins.package import directory, manifests, records
from cortexfs.plugins.package.package import PackageFiles, library_of
from cortexfs.plugins.trust import openpgp, signing, succession, trust
from cortexfs.plugins.trust.signing import SignatureVerdict
from cortexfs.state import directories
from cortexfs.state.directories import kept_of

# The time that the mount may take for last hooks, and to check the plugin and start a host.
HOOKS_SECONDS = UNINSTALL_SECONDS + 30
MODULE_SECONDS = 300.0  # for a module of WebAssembly


def install(options: argparse.Namespace) -> int:
    if len(wrong := checks.unread(Path(options.source))) > 1:
        checks.refuse(options.source, wrong)
    with progress.shown(f"reading {options.source}"):
        source = sources.read(options.source)
    return keep_and_enable(options, source)


@ended.put_away()
def keep_and_enable(options: argparse.Namespace, source: PluginSource) -> int:
    """Check the read source, keep it, and enable it."""
    where = places_of(options)
    source = source._replace(tree=fetched(source.tree, where, options.private))
    name = source.tree.manifest.name
    checks.refuse(name, checks.of_tree(source.tree))
    directories.create(where)
    verdict = signing.verify(source.tree)
    key, unchecked = _openpgp(source.tree, where)
    after = succession.Copy(source.tree.manifest.version, verdict.publisher, verdict.fingerprint, key)
    consented = _replaces(options, where, name, after)
    _allow(options, where, source.tree.manifest)
    is_new = _is_trusted(options, where, verdict, source.packaged and not key)
    _try(source.tree)
    if is_new:
        trust.TrustStore(where.state).add(verdict, datetime.now(UTC).isoformat(timespec="seconds"))
    record = records.PluginRecord(
        source.told, records.files_of(source.tree), verdict.publisher, verdict.fingerprint, key
    )
    signers = [verdict.publisher, f"the OpenPGP key {key}" if key else ""]
    by = f"signed by {' and '.join(filter(None, signers))}" if any(signers) else "unsigned"
    by += unchecked + _modules_note(source.tree, where)
    return placing.place(where, options.root, source.tree, record, consented, by)


def _replaces(
    options: argparse.Namespace, where: directories.Places, name: str, after: succession.Copy
) -> Consented:
    """Raises a Fault if the plugin takes the place of an unlike copy without consent."""
    base = where.state / directory.FOLDER
    installing.settle(base)
    before = succession.installed(base / name)
    why = succession.unlike(before, after) if before and after != before else ""
    is_other = before is not None and (before.key, before.openpgp) != (after.key, after.openpgp)
    consented = Consented(options.replace, is_other, why)
    if not before or not why or options.replace:
        return consented
    both = f"{name} {before.told} is installed, and this is {after.told}: {why}"
    if options.yes or not sys.stdin.isatty():
        raise Fault("EPERM", f"{both}; to replace it, say --replace, or run this on a terminal without --yes")
    if not sure(f"{both}. Replace it, and leave its settings, permissions and data to this?"):
        raise Fault("EPERM", f"{name} stays as it was; nothing was installed")
    return consented


def _allow(options: argparse.Namespace, where: directories.Places, manifest: Manifest) -> None:
    """Raises a Fault if the plugin asks for all files, without consent to it now or in a former copy."""
    access = governance.wants_everything(manifest)
    if not access or options.yes:
        return
    with contextlib.suppress(Fault):
        former = directory.read(where.state / directory.FOLDER / manifest.name)
        if governance.wants_everything(former) == access:
            return
    asks = f"{manifest.name} asks to {access} every file that its callers may ({governance.EVERYTHING})"
    if not sys.stdin.isatty():
        raise Fault("EPERM", f"{asks}; to allow that, say --yes, or run this on a terminal")
    if not sure(f"{asks}. Install it?"):
        raise Fault("EPERM", f"{manifest.name} may not {access} everything; nothing was installed")


def _openpgp(tree: PackageFiles, where: directories.Places) -> tuple[str, str]:
    """Returns the key that has signed a manifest.json, and a reason if the signature was not checked."""
    if not manifests.is_json(tree.manifest):
        return "", ""
    keys = where.config / openpgp.KEYS
    why = openpgp.unchecked(tree.manifest.json, keys)
    return openpgp.signer(tree.manifest.json, tree.contents, keys), f" ({why})" if why else ""


def _try(tree: PackageFiles) -> None:
    """Raises a Fault if a library or a Python module does not load. Modules of JavaScript or WebAssembly may
    need settings first, and a program needs no trial run."""
    if not manifests.is_json(tree.manifest) and (tree.manifest.python or library_of(tree.manifest)):
        from cortexfs.cli.plugin.install import trying  # imports trio

        found, _ = trying.load_and_call(tree)
        checks.refuse(tree.manifest.name, found)
        for check in found:
            if check.is_warning:
                output.say(f"warning: {check.name}")


def _is_trusted(
    options: argparse.Namespace, where: directories.Places, verdict: SignatureVerdict, packaged: bool
) -> bool:
    """Returns True if its publisher is to be trusted from now on. Raises a Fault if trust is needed and
    denied."""
    store = trust.TrustStore(where.state)
    trusted = verdict.status == "verified" and store.trusts(verdict)
    decision = trust.decide(
        verdict, trusted=trusted, packaged=packaged, yes=options.yes, interactive=sys.stdin.isatty()
    )
    if decision == "ask":
        publisher = f"{verdict.publisher} with the key {verdict.fingerprint}"
        if not sure(f"The publisher {publisher} is not known here. Trust it, now and from now on?"):
            raise Fault("EPERM", f"the publisher {verdict.publisher} is not trusted; nothing was installed")
    return decision != "install"


def uninstall(options: argparse.Namespace) -> None:
    where, name = places_of(options), options.name
    try:
        folder_of(where, name, options.root)
    except Fault as missing:
        if name not in {*_known(where), *config.enabled(config.load(where))}:
            raise
        mend = f"pip uninstalls a Python package; to disable the plugin: ctx plugin disable {name}"
        raise Fault(missing.code, f"ctx has installed no files of {name}; {mend}") from None
    if plugin_state.has_begun(kept_of(where.state) / name, os.getuid()) and (
        why := _last_hooks(options.root, name)
    ):
        output.say(f"the uninstall of {name} goes on, although not all of its last hooks succeeded: {why}")
    sentence = placing.choose(where, options.root, name, None if options.purge else False).sentence
    if options.purge:
        installing.remove(where.state / directory.FOLDER, name)
        decisions.forget(where.state, name)
        reload.tell(options.root)  # the daemon also knows the commands of disabled plugins
        output.say(f"removed {name}; {sentence}")
    else:
        output.say(f"disabled {name}; {sentence}; its files stay until: ctx plugin uninstall {name} --purge")


def _last_hooks(root_option: str | None, name: str) -> str:
    """Call the last hooks in a host of the uninstalling user. Returns the reason of a failure, which stops
    nothing, or an empty text. Plugins that were never told of their installation have no last hooks."""
    try:
        point = mounts.answering(root_option)
    except Fault as fault:
        return fault.message
    try:
        with progress.shown(f"{name} runs its last hooks"):
            done = subprocess.run(
                [f"{point}/{objects.RUNNER}", f"{point}/{plugin_commands.FILE}", UNINSTALL, name],
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
    mend = "install it first, see: ctx plugin install --help"
    parser.check_known(name, known, f"there is no plugin {name!r}", mend)
    if why := known[name]:
        raise Fault("EINVAL", f"the plugin {name} cannot be enabled: {why}")
    if why := placing.lacks(where, name):
        raise Fault("EPERM", f"the plugin {name} cannot be enabled: {why}")
    before = config.choices(where.config).get(name)
    outcome = placing.choose(where, options.root, name, config.REPLACE if options.replace else before or True)
    if outcome.is_taken and not before:
        placing.leave_disabled(where, options.root, name, outcome)
    output.say(f"enabled {name}; {outcome.sentence}")
    return EXIT_FAILED if outcome.fault else EXIT_OK


def _known(where: directories.Places) -> dict[str, str | None]:
    """Returns the plugins of Python packages, each with its fault, and the installed ones."""
    folders = directory.folders(where.state / directory.FOLDER)
    return {entry.plugin.name: entry.fault for entry in found()} | {folder.name: None for folder in folders}


def disable(options: argparse.Namespace) -> None:
    where, name = places_of(options), options.name
    known = {*_known(where), *config.enabled(config.load(where))}
    parser.check_known(name, known, f"there is no plugin {name!r}", "see: ctx plugin list")
    output.say(f"disabled {name}; {placing.choose(where, options.root, name, False).sentence}")


def fetched(tree: PackageFiles, where: directories.Places, private: str) -> PackageFiles:
    """Returns the plugin with all modules it needs, from the network unless this very plugin is installed."""
    folder = where.state / directory.FOLDER / tree.manifest.name
    own = networks(private)
    download = partial(web.download, seconds=MODULE_SECONDS, private=own)
    with progress.shown("looking at what it needs"):
        return fetch.completed(tree, download, partial(_modules, private=own), folder)


def _modules_note(tree: PackageFiles, where: directories.Places) -> str:
    """Returns the end of the line about the installation."""
    if not (count := len(fetch.pins(tree))):
        return ""
    see = where.state / directory.FOLDER / tree.manifest.name
    return f", with {count} module{'s' * (count > 1)} from elsewhere (see: ctx plugin review {see})"


def _modules(request: FetchRequest, private: tuple[str, ...]) -> dict[str, bytes]:
    from cortexfs.host.esm import fetch as esmfetch  # a slow import that only fetching needs

    with progress.shown("fetching its imports") as now:

        def report(connections: int, size: int) -> None:
            now(f"fetching its imports: {connections} connections, {size / (1 << 20):.1f} MiB")

        return esmfetch.fetch(request, private, report)
