"""A checked plugin takes its place and is enabled, or everything is restored.

Rules: a plugin that the mount refuses is removed again, and so is an interrupted one. A plugin with settings
stays, as it may need them first. A new plugin whose names are taken also stays, but disabled. --replace lets
a plugin take the names that it takes at that time, and no others: the names that the daemon reports are kept
as the decision. Without a daemon, the consent is to the present files, and to any names that they take.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple, NoReturn

from cortexfs import config
from cortexfs.cli import mounts, output, reload
from cortexfs.cli.plugin.install import checks
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault
from cortexfs.core.manifest.toml import Manifest
from cortexfs.core.manifestjson import settings
from cortexfs.plugins import dependencies
from cortexfs.plugins.install import install as installing
from cortexfs.plugins.install.entry_points import found
from cortexfs.plugins.package import directory, manifests, package, records
from cortexfs.plugins.package.package import File, PackageFiles
from cortexfs.state import directories

_CONSENT = "--replace"  # in the daemon's text about a plugin that needs consent
_MEND = "; to take that name"


class Outcome(NamedTuple):
    sentence: str  # the daemon's sentence, for a person
    fault: str = ""  # the plugin, and why
    names: tuple[str, ...] | None = None  # names of others that it took; None: no daemon has answered

    @property
    def is_taken(self) -> bool:
        """Returns True if the plugin is refused because it has the name of another object."""
        return _CONSENT in self.fault

    @property
    def why(self) -> str:
        """Returns the reason of such a refusal, without the advice for a plugin that stays installed."""
        return self.fault.partition(_MEND)[0]


class Consented(NamedTuple):
    """The answers of a person about this installation."""

    names: bool  # it may take names of others
    is_other: bool  # the copy that was there is another publisher's
    copy: str  # the reason why a person had to agree to this copy; empty if not needed


class FormerPlugin(NamedTuple):
    """The copy that there was, to be restored on a failure."""

    files: dict[str, File]  # none if no whole copy was there
    choice: config.Choice | None

    def restore(self, where: directories.Places, name: str) -> None:
        config.choose(where.config, name, self.choice)
        base = where.state / directory.FOLDER
        if self.files:
            installing.install(base, name, self.files)
        elif (base / name).exists():
            installing.remove(base, name)


def place(
    where: directories.Places,
    root: str | None,
    tree: PackageFiles,
    record: records.PluginRecord,
    consented: Consented,
    by: str,
) -> int:
    """Write the plugin, enable it, and print the result. `by` names its signers."""
    base, name = where.state / directory.FOLDER, tree.manifest.name
    former = FormerPlugin(_installed(base / name), config.choices(where.config).get(name))
    choice = _choice(where, root, tree, former, consented)
    message = f"installed {name} {tree.manifest.version}, {by}"
    try:
        installing.install(base, name, {**tree.files, records.FILE: records.file(record)})
        for warning in checks.warnings(tree.manifest, tree):
            output.say(f"warning: {warning}")
        if (why := lacks(where, name)) and name not in config.enabled(config.load(where)):
            output.say(f"{message}; it is not enabled: {why}")
            return EXIT_FAILED
        outcome = choose(where, root, name, choice)
    except (KeyboardInterrupt, SystemExit):
        former.restore(where, name)
        reload.tell(root, waits=False)
        raise
    if consented.names and consented.copy and outcome.sentence == reload.NOT_MOUNTED:
        config.choose(where.config, name, True)  # the consent was to the copy
    if outcome.fault:
        _take_back(where, root, tree, former, outcome)
    output.say(f"{message}; {outcome.sentence}")
    return EXIT_FAILED if outcome.fault else EXIT_OK


def _choice(
    where: directories.Places,
    root: str | None,
    tree: PackageFiles,
    former: FormerPlugin,
    consented: Consented,
) -> config.Choice:
    if consented.names:
        return config.REPLACE
    files = {name: file for name, file in former.files.items() if name != records.FILE}
    return consented.is_other or _next_choice(where, root, tree.manifest.name, is_same=files == tree.files)


def _take_back(
    where: directories.Places,
    root: str | None,
    tree: PackageFiles,
    former: FormerPlugin,
    outcome: Outcome,
) -> None:
    """Undo the installation and raise a Fault, unless the plugin stays installed and broken."""
    name = tree.manifest.name
    if outcome.is_taken and not former.files:
        leave_disabled(where, root, name, outcome)
    if not outcome.is_taken and manifests.is_json(tree.manifest) and settings.settings_of(tree.manifest.json):
        return
    former.restore(where, name)
    reload.tell(root)
    message = f"{name} is not installed, and nothing has changed"
    if outcome.is_taken:
        raise Fault("EEXIST", f"{message}: {outcome.why}; to let it take that name, say --replace")
    raise Fault("EINVAL", f"{message}: {outcome.sentence}")


def lacks(where: directories.Places, name: str, manifest: Manifest | None = None) -> str | None:
    """Returns the needs that nothing meets. For a copy that is not installed, pass its manifest."""
    enabled = config.enabled(config.load(where))
    return dependencies.why_not(where.state / directory.FOLDER, found(), enabled, name, manifest)


def _installed(folder: Path) -> dict[str, File]:
    """Returns the files of the installed copy, to be restored on a failure; none if it is not whole."""
    with contextlib.suppress(Fault):
        tree = package.read(folder)
        return {**tree.files, records.FILE: records.file(records.read(folder))}
    return {}


# The decision, and the running daemon's answer to it.


def choose(
    where: directories.Places, root_option: str | None, name: str, choice: config.Choice | None
) -> Outcome:
    """Write the choice down and tell the daemon. Consent becomes the names that the daemon reports."""
    config.choose(where.config, name, choice)
    reports: list[dict[str, list[str]]] = []

    def outcome(facts: dict[str, list[str]]) -> str | None:
        reports.append(facts)
        if fault := reload.broken("plugin", name, "does not load")(facts):
            return fault
        wrong = mounts.by_name(facts, "wrong tools").get(name)
        return f"some of its tools cannot be called: {wrong}" if wrong else None

    sentence = reload.tell(root_option, outcome)
    if not reports:
        return Outcome(sentence)
    fault = mounts.by_name(reports[0], "broken plugin").get(name, "")
    names = tuple(mounts.by_name(reports[0], "taken names").get(name, "").split())
    if choice == config.REPLACE and not fault:
        config.choose(where.config, name, names or True)
        sentence += f"; it takes names of others: {', '.join(names)}" if names else ""
    return Outcome(sentence, fault, names)


def leave_disabled(
    where: directories.Places, root_option: str | None, name: str, outcome: Outcome
) -> NoReturn:
    """Disable a new plugin that needs names of others without consent: the daemon is to forget it."""
    config.choose(where.config, name, False)
    reload.tell(root_option)
    raise Fault("EEXIST", f"{name} is not enabled: {outcome.fault}")


def _next_choice(
    where: directories.Places, root_option: str | None, name: str, *, is_same: bool
) -> config.Choice:
    """Returns the choice for the next copy of a plugin: enabled, with the names that it has taken so far. If
    the files are the same, a consent to all names stays."""
    before = config.choices(where.config).get(name) or True
    if before != config.REPLACE or is_same:
        return before
    try:
        facts = mounts.facts(mounts.status_text(mounts.answering(root_option)))
    except Fault:
        return True
    return tuple(mounts.by_name(facts, "taken names").get(name, "").split()) or True
