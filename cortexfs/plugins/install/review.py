"""The review of a plugin: its requests, the layers that hold it, and its faults.

Rules: a review reads files and runs no code of the plugin. A failed check has the sentence of the fault that
a daemon would raise. A warning stops no installation.
This file must never know how a review is printed, nor the plugin's place when installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from cortexfs.core import hostcalls, wire
from cortexfs.core.errors import Fault
from cortexfs.core.manifest import governance, script
from cortexfs.core.manifest.governance import Mechanism
from cortexfs.core.manifest.toml import DeclaredProcessTool, Manifest
from cortexfs.core.policy import risk
from cortexfs.plugins.package import targets
from cortexfs.plugins.package.package import PackageFiles
from cortexfs.plugins.package.targets import resolve
from cortexfs.plugins.trust import signing
from cortexfs.state import startable


class InstallCheck(msgspec.Struct, frozen=True):
    name: str
    fault: str | None = None
    code: str = ""  # the code of a fault whose sentence needs no prefix
    is_warning: bool = False  # the check has passed with a warning

    @property
    def text(self) -> str:
        return f"fail: {self.name} ({self.fault})" if self.fault else f"ok: {self.name}"


def checks(
    manifest: Manifest, tree: PackageFiles | None, place: Path, available: frozenset[Mechanism]
) -> list[InstallCheck]:
    """Returns all checks. `place` is the folder of the plugin's files, and `tree` has the files in memory."""
    capabilities = manifest.capabilities
    broken = [
        InstallCheck("governance", each.message, each.code) for each in governance.faults(manifest, available)
    ]
    found = [
        *(broken or [InstallCheck("governance")]),
        InstallCheck("manifest identity", None if manifest.name.strip() else "name is blank"),
        InstallCheck("manifest version", None if manifest.version.strip() else "version is blank"),
        tried("cortex version target", lambda: governance.check_version(manifest)),
        InstallCheck(
            "capability declaration",
            None if capabilities.provides else "capabilities.provides must not be empty",
        ),
        tried("plugin boundary", lambda: governance.check_boundary(manifest)),
    ]
    if tree:
        found.append(signature(tree))
    if manifest.native:
        is_script = manifest.native.protocol == "argv"
        for tool in manifest.native.tools:
            found += _tool_checks(tool, place, is_script)
    return found


def _tool_checks(tool: DeclaredProcessTool, place: Path, is_script: bool) -> Iterator[InstallCheck]:
    title = f"tool {tool.name}"
    yield tried(f"{title} command and working_dir", lambda: resolve(tool, place))
    command = place / tool.command
    if command.is_file():
        mend = f"it is not executable: chmod +x {tool.command}"
        why = startable.of_file(command) if command.stat().st_mode & 0o100 else mend
        yield InstallCheck(f"{title} command is a program", why or None)
        if is_script:
            yield InstallCheck(f"{title} command is a script", _no_script(command))
    yield InstallCheck(f"{title} output limit", None if tool.output_limit > 0 else "max_output_bytes is 0")
    is_object = isinstance(tool.input_schema, dict)
    yield InstallCheck(f"{title} input_schema", None if is_object else "it is not a table")
    yield InstallCheck(f"{title} env allowlist", _not_inherited(tool))


def _no_script(command: Path) -> str | None:
    """Returns the reason why the comment of a command describes no tool, or None."""
    try:
        with command.open("rb") as file:
            script.parsed(script.header_of(file.read(script.MAX_HEADER + 1)))
    except Fault as fault:
        return fault.message
    return None


def _not_inherited(tool: DeclaredProcessTool) -> str | None:
    """Returns the reason why a program could never get a variable of its caller, or None."""
    missing = [name for name in tool.inherit_env if not wire.is_passed_on(name.encode())]
    if not (missing := [name for name in missing if name != hostcalls.CALLER_DIRECTORY]):
        return None
    known = " ".join(sorted(name.decode() for name in wire.ENVIRONMENT))
    reason = f"inherit_env names {', '.join(missing)}, which callers do not pass on"
    return f"{reason}; it may name {known} LC_* {hostcalls.CALLER_DIRECTORY}; a fixed value goes under env"


def signature(tree: PackageFiles) -> InstallCheck:
    verdict = signing.verify(tree)
    broken = f"the signature is {verdict.text}; sign it anew, or ask its publisher"
    return (
        InstallCheck("signature", broken, "EPERM")
        if verdict.status == "invalid"
        else InstallCheck("signature")
    )


def tried(name: str, check: Callable[[], object]) -> InstallCheck:
    try:
        check()
    except Fault as fault:
        return InstallCheck(name, fault.message, fault.code)
    return InstallCheck(name)


def capabilities(manifest: Manifest) -> list[str]:
    """Returns the capabilities that the plugin asks for, in words."""
    claims = manifest.capabilities
    lists = {"read files": claims.file_read, "write files": claims.file_write, "network": claims.network}
    lines = [f"{title}: {', '.join(map(_spelt, values))}" for title, values in lists.items() if values]
    lines += ["spawn subprocesses"] if claims.process else []
    lines.append("access host secrets" if claims.secrets else "does not request host secrets")
    return lines + (["run in background"] if claims.background else [])


def _spelt(target: str) -> str:
    return f"{target} (everything that its caller may)" if target == governance.EVERYTHING else target


def sandbox(manifest: Manifest, available: frozenset[Mechanism]) -> list[str]:
    """Returns lines about a plugin's reach (reads, writes, network, programs) and about each claim, with the
    layer that holds it. A refused claim has a line with the refusal."""
    claims = governance.claims(manifest.sandbox)
    try:
        lines = _reach(targets.sandbox(manifest, Path("its own folder")) or hostcalls.Sandbox())
    except Fault:  # a path cannot be held, and a check reports it
        lines = []
    return lines + [
        each.text if each.kept(available) else f"{each.key} = {each.value}: REFUSED, {each.refusal}"
        for each in claims
    ]


_ALL = "everything that its caller may, as its caller: not limited"


def _reach(sandbox: hostcalls.Sandbox) -> list[str]:
    rows = []
    for title, letter in (("reads", "r"), ("writes", "w"), ("runs", "x")):
        paths = [path for path, letters in sandbox.view or (("/", "rwx"),) if letter in letters]
        text = f"{', '.join(paths) or 'nothing'}: held by Landlock"
        rows.append(f"{title}: {_ALL if '/' in paths else text}")
    rows.insert(2, f"reaches: {_ALL if sandbox.network else 'nothing: held by Landlock and seccomp'}")
    return rows


def risks(manifest: Manifest) -> list[str]:
    """Returns the recommended risk profile: a line for each effect whose floor is above allow."""
    return [
        risk_row(tool.name, each)
        for tool in (manifest.native.tools if manifest.native else ())
        for each in governance.tool_effects(manifest, tool)
        if risk.floor(each).level > risk.ALLOW
    ]


def risk_row(tool: str, effect: hostcalls.Effect) -> str:
    kind, floor = governance.camel(effect.kind), governance.camel(risk.floor(effect).level.word)
    target = f' target = "{effect.target}"' if effect.target else ""
    return f"[risk.tools.{tool}] effect = {kind}{target} floor = {floor}"


def conformance(manifest: Manifest, passed: bool) -> str:
    package = manifest.package.conformance
    if package is None:
        certificate = "no package certificate"
    else:
        certificate = f"package certificate {'passed' if package.passed else 'failed'}"
    return f"local checks {'passed' if passed else 'failed'}; {certificate}"
