"""The facts for `ctx policy`, read from the tree's own files: the caller, the object, and the policies.

Rules: control files are read in the tree, as every user would read them; a missing file means its default.
The mount has answered before a path on it is touched.
"""

from __future__ import annotations

import os
import pwd
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from cortexfs.agents.permissions import STARTING
from cortexfs.cli import mounts, objects, texts
from cortexfs.cli.daemons import places_at
from cortexfs.core import registry
from cortexfs.core.errors import Fault, naming, os_faults
from cortexfs.core.manifest import governance
from cortexfs.core.names import CLASSES
from cortexfs.core.policy import risk, rules
from cortexfs.core.policy.confirming import CallerKind
from cortexfs.core.policy.decision import Bits, PolicyCaller, Thing
from cortexfs.core.policy.lint import LintedAgent, LintedPlugin, LintInput, PolicyText
from cortexfs.core.policy.risk import FILE, RatedTool, RiskSettings, effects_of
from cortexfs.core.value_formats import U32
from cortexfs.linux import kernel_support
from cortexfs.plugins.package import directory
from cortexfs.state import believed, directories

_OBJECT = re.compile(r"(?:home/([0-9]+)/)?(?:(model)/([^/]+/[^/]+)|(tool|agent)/([^/]+))")
_PLUGIN = re.compile(r"plugin:([^@]+)(?:@.*)?")


class Real(NamedTuple):
    """An object, with links followed."""

    below: str  # its path below the root
    class_: str
    name: str
    home: int | None  # the uid in whose home it is

    @property
    def in_policy(self) -> str:
        """Returns its name in policy lines."""
        if self.home is None or self.class_ == "tool":
            return self.name
        return registry.own_key(self.class_, self.home, self.name)[1]


def real(root: str, path: str) -> Real:
    """Returns the object that a path means."""
    target = os.path.realpath(path)
    below = os.path.relpath(target, os.path.realpath(root))
    if not (found := _OBJECT.fullmatch(below)):
        raise Fault("EINVAL", f"{path!r} is no object of this mount; see: ctx ls")
    return Real(below, found[2] or found[4], found[3] or found[5], int(found[1]) if found[1] else None)


def thing(root: str, word: str) -> Thing:
    """Returns the object that a word names, with all facts that decide who may have it."""
    typed_path = objects.resolve(root, word)
    target = real(root, typed_path)
    below, class_, name, _ = target
    path = os.path.join(root, below)
    bits = []  # of the root, the folders on the way and the object: each must let the caller through
    for step in ("", *(str(folder) for folder in reversed(Path(below).parents) if folder.name), below):
        status = os.stat(os.path.join(root, step))
        bits.append(Bits(step or root, status.st_uid, status.st_gid, status.st_mode))
    return Thing(
        class_,
        target.in_policy,
        bits=tuple(bits),
        rules=() if class_ == "agent" else _rules(path, below),  # it holds for calls by the agent
        file=f"{below}.d/policy",
        tool=tool(path, name) if class_ == "tool" else STARTING if class_ == "agent" else None,
        alias=os.path.basename(typed_path) if typed_path in _aliases(root) else "",
        path=os.path.join(os.path.realpath(root), below),
    )


def _aliases(root: str) -> list[str]:
    """Returns the links in model/, by which an agent may ask for a model."""
    paths = objects.paths_of(root, "model")
    return [path for path in paths if os.path.dirname(path) == f"{root}/model" and os.path.islink(path)]


def _rules(path: str, below: str) -> tuple[rules.Rule, ...]:
    if not os.path.exists(f"{path}.d/policy"):
        why = f"{below}.d/policy was removed, but its last lines still apply"
        raise Fault("ENOENT", f"{why}; write it again, or: ctx policy reset {below}")
    with naming(f"{below}.d/policy"):
        return rules.parse(objects.control(path, "policy"), f"{below}.d/policy")


def tool(path: str, name: str) -> RatedTool:
    with naming(f"tool/{name}.d/effects"):
        effects = effects_of(objects.control(path, "effects"))
    builtin = objects.control(path, "origin").strip() == "builtin"
    words = objects.control(path, "cap").split()
    flags = (word in words for word in ("background_safe", "dry_run_flag", "dry_run_trusted"))
    return RatedTool(name, effects, builtin, *flags)


def caller(root: str, word: str, user: str | None) -> PolicyCaller:
    """Returns a user, or an agent that works for `user` (you, unless named)."""
    if "/" not in word:
        if user:
            raise Fault("EINVAL", "--user goes with an agent alone; leave it out for a user")
        return person(word)
    below, class_, _, home = real(root, objects.resolve(root, word))
    if class_ != "agent":
        raise Fault("EINVAL", f"{word!r} is not a caller; name a user, a uid or agent/NAME")
    path = os.path.join(root, below)
    if objects.is_elsewhere(path):
        raise Fault("EINVAL", f"the policy of {below} is on its own machine; run this there")
    owner = person(user or str(os.getuid() if home is None else home))
    if home not in (None, owner.uid):
        raise Fault("EINVAL", f"{below} works only for uid {home}, its owner")
    return PolicyCaller(
        below,
        owner.uid,
        owner.groups,
        CallerKind.AGENT,
        rules.type_of(objects.control(path, "label")),
        _rules(path, below),
        f"{below}.d/policy",
        mounts=objects.control(path, "mount"),
        always_ask=objects.control(path, "approval").strip() == "ask",
        home=home,
    )


def is_its_model(root: str, caller: PolicyCaller, thing: Thing) -> bool:
    """Returns True for the model of an agent, if asked for by the name in the agent's `model` control."""
    if caller.kind is not CallerKind.AGENT or thing.class_ != "model":
        return False
    model = objects.control(os.path.join(root, caller.name), "model").strip()
    return model == (thing.alias or thing.name)


def person(word: str) -> PolicyCaller:
    """Returns a user by name or number. A number needs no entry in the user database."""
    numeric = word.isascii() and word.isdecimal()
    if numeric and (len(word) > len(str(U32)) or int(word) > U32):
        raise Fault("EINVAL", f"{word} is no uid; the highest is {U32}")
    try:
        entry = pwd.getpwuid(int(word)) if numeric else pwd.getpwnam(word)
    except KeyError:
        if not numeric:
            raise Fault("ENOENT", f"there is no user {word!r}; give a name, a uid or agent/NAME") from None
        return PolicyCaller(f"uid {word}", int(word))
    groups = frozenset(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return PolicyCaller(entry.pw_name, entry.pw_uid, groups)


def serves(root: str) -> int | None:
    """Returns the one user whom a mount's daemon serves, or None if it serves everybody."""
    mount = mounts.mounted_at(root)
    return None if mount is None or mount.everyone else mount.owner


def settings(root: str, directory: str | None) -> RiskSettings:
    """Returns the policy.toml of the daemon's owner, or the defaults without one."""
    owner = os.stat(root).st_uid
    if owner == os.getuid():
        path = places_at(root, directory=directory).config / FILE
    else:  # our environment names our own directories only; the owner's are below the owner's home
        environ = {"HOME": pwd.getpwuid(owner).pw_dir} if owner else os.environ
        path = directories.places(environ, owner, config=directory).config / FILE
    with (
        os_faults(f"{path} cannot be read"),
        suppress(FileNotFoundError),
        believed.opened(path, uid=owner) as file,
    ):
        return risk.decode(file.read().decode(errors="replace"))
    return risk.DEFAULT


def world(root: str, directory: str | None, status: str) -> LintInput:
    """Returns all that `ctx policy lint` checks. Faults of policy.toml are for lint to report."""
    risk_settings, fault = risk.DEFAULT, ""
    try:
        risk_settings = settings(root, directory)
    except Fault as problem:
        fault = problem.message
    paths = {class_: objects.without_aliases(root, class_) for class_ in CLASSES}
    reals = [real(root, path) for group in paths.values() for path in group]
    aliases = [("model", os.path.basename(path)) for path in _aliases(root)]
    where = places_at(root, directory=directory)
    return LintInput(
        root=os.path.realpath(root),
        settings=risk_settings,
        settings_fault=fault,
        tools=tuple(tool(path, os.path.basename(path)) for path in paths["tool"]),
        skills=frozenset(texts.listed(root, texts.SKILL)),
        names=frozenset([*((each.class_, each.in_policy) for each in reals), *aliases]),
        files=tuple(_file(root, path) for class_ in ("tool", "model") for path in paths[class_]),
        agents=tuple(_agent(root, path) for path in paths["agent"] if not objects.is_elsewhere(path)),
        plugins=tuple(_governed(each, where.state) for each in _plugins(paths["tool"], status)),
    )


def _file(root: str, path: str) -> PolicyText:
    is_removed = not os.path.exists(f"{path}.d/policy")
    return PolicyText(f"{objects.short(root, path)}.d/policy", objects.control(path, "policy"), is_removed)


def _agent(root: str, path: str) -> LintedAgent:
    return LintedAgent(
        objects.short(root, path),
        rules.type_of(objects.control(path, "label")),
        _file(root, path),
        tuple(objects.control(path, "tools").split()),
        real(root, path).home,
        model=objects.control(path, "model").strip(),
        mounts=objects.control(path, "mount"),
        skills=tuple(objects.control(path, "skills").split()),
    )


def _plugins(tools: list[str], status: str) -> tuple[LintedPlugin, ...]:
    """Returns the plugins that have a tool here, and the broken ones, which have none."""
    tools_of: dict[str, list[str]] = {}
    for path in tools:
        if found := _PLUGIN.fullmatch(objects.control(path, "origin").strip()):
            tools_of.setdefault(found[1], []).append(os.path.basename(path))
    broken = mounts.by_name(mounts.facts(status), "broken plugin")
    working = (
        LintedPlugin(name, tools=tuple(owned))
        for name, owned in sorted(tools_of.items())
        if name not in broken
    )
    return (*working, *(LintedPlugin(name, fault=why) for name, why in sorted(broken.items())))


def _governed(plugin: LintedPlugin, state: Path) -> LintedPlugin:
    """Returns the plugin with facts from its manifest. If this user cannot read the manifest, the plugin is
    judged by its tools alone."""
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
        gaps=(*governance.warnings(manifest), *governance.unknown_provides(manifest)),
        trust=manifest.trust,
        native=manifest.native is not None and manifest.native.isolation == "trusted_in_process",
        profiled=bool(manifest.package.risk_profile),
        secrets=manifest.capabilities.secrets,
        background=manifest.capabilities.background,
    )
