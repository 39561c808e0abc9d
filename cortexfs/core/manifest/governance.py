"""The checks of a plugin's manifest, and the mechanisms that hold the plugin to its claims.

Rules: the checks have one order, and the first that fails is the fault. Mechanisms of this machine's kernel
enforce each claim of [sandbox], or the plugin is refused: no claim is accepted and then ignored. A key that a
manifest leaves out is no claim. A fault ends in its remedy.
This file must never know how a mechanism is found or applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from cortexfs.core import hostcalls
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import nearest, shown
from cortexfs.core.manifest.toml import (
    FILE,
    Confirmation,
    DeclaredProcessTool,
    EffectKind,
    Manifest,
    ManifestSandbox,
    Reversibility,
)

# The version of the plugin interfaces that this host has. A manifest names the oldest version that it needs.
# If that is newer than ours, only a higher first number refuses the plugin, as the ABI may then differ.
HOST_VERSION = "1.6.9"
NATIVE_ABI = 1
EVERYTHING = "**"  # as a path: all paths that the caller may use
PROVIDES = ("tools", "skills", "prompts", "llm", "memory")
_RANGE = re.compile(r"[<>^~*]")
_TARGET = re.compile(r"([0-9]{1,20})\.([0-9]{1,20})\.([0-9]{1,20})", re.ASCII)
_LARGEST = (1 << 64) - 1


class Mechanism(StrEnum):
    """The means of the kernel to confine a plugin. Reviews show the values."""

    PROCESS = "a process of its own"
    RLIMITS = "resource limits"
    LANDLOCK = "Landlock"
    SECCOMP = "seccomp"


class Claim(msgspec.Struct, frozen=True):
    """One claim of [sandbox], and the mechanisms that enforce it."""

    key: str
    value: str
    needs: frozenset[Mechanism] | None  # None: no mechanism of ours enforces it
    refusal: str
    mend: str

    def kept(self, available: frozenset[Mechanism]) -> bool:
        return self.needs is not None and self.needs <= available

    @property
    def text(self) -> str:
        """Returns the claim as a line of a review."""
        by = f"held by {' and '.join(sorted(self.needs))}" if self.needs else "not limited"
        return f"{self.key} = {self.value}: {by}"


# The mechanisms for each level. trusted_in_process is a process of its own too, as no plugin's code runs in
# the daemon. Levels with another user id are refused, as uid_drop is, because a tool runs as its caller.
LEVELS: dict[str, frozenset[Mechanism] | None] = {
    "trusted_in_process": frozenset((Mechanism.PROCESS,)),
    "child_process": frozenset((Mechanism.PROCESS,)),
    "uid_no_network": None,
    "system_sandbox": None,
    "container_vm": None,
    "remote_worker": None,
}
SECCOMP_PROFILES = ("default",)


def claims(sandbox: ManifestSandbox) -> Iterator[Claim]:
    """Yields the claims of the sandbox, in the order in which they are checked."""
    level = sandbox.level
    remote = "remote_worker isolation is not provided by this runtime"
    refusal = remote if level == "remote_worker" else f"{level} is not enforced by this runtime"
    weaker = 'choose another level, as "child_process"'
    yield Claim("sandbox.level", level, LEVELS[level], refusal, weaker)
    if sandbox.uid_drop:
        text = "uid_drop is not enforced by this runtime"
        mend = "leave it out, as tools run as their callers; confine them with filesystem and network"
        yield _claim("uid_drop", "true", None, text, mend)
    if profile := sandbox.seccomp:
        needs = Mechanism.SECCOMP if profile in SECCOMP_PROFILES else None
        text = "seccomp profiles are not enforced by this runtime"
        mend = f"leave it out, or choose {', '.join(SECCOMP_PROFILES)}"
        yield _claim("seccomp", shown(profile)[1:-1], needs, text, mend)
    if sandbox.network == "none":
        text = "sandbox.network=none is not kernel-enforced by this runtime"
        # Landlock too: a process that may write another's memory can use the other's sockets.
        mechanisms = frozenset((Mechanism.SECCOMP, Mechanism.LANDLOCK))
        yield Claim("sandbox.network", "none", mechanisms, text, "leave it out")
    if sandbox.network == "allowlist":
        text = "sandbox.network=allowlist is not enforced by this runtime"
        yield _claim("network", "allowlist", None, text, 'choose network = "none" or "inherit"')
    places = ", ".join(sandbox.writable_paths)
    if EVERYTHING in sandbox.writable_paths:
        yield Claim("sandbox.writable_paths", shown(places)[1:-1], frozenset(), "", "")
        places = ""
    for key, value, mechanism in (
        ("filesystem", sandbox.filesystem, Mechanism.LANDLOCK),
        ("writable_paths", shown(places)[1:-1] or None, Mechanism.LANDLOCK),
        ("memory_mb", sandbox.memory_mb, Mechanism.RLIMITS),
        ("cpu_seconds", sandbox.cpu_seconds, Mechanism.RLIMITS),
    ):
        if value is not None:
            yield _claim(key, str(value), mechanism, f"sandbox.{key} is not enforced by this runtime")


def _claim(key: str, value: str, needs: Mechanism | None, refusal: str, mend: str = "leave it out") -> Claim:
    return Claim(f"sandbox.{key}", value, frozenset((needs,)) if needs else None, refusal, mend)


def check_version(manifest: Manifest) -> None:
    """Raises a Fault if a plugin needs a newer host. The code that loads it adds the plugin's name."""
    version = manifest.cortex_version
    if not version:
        mend = f'write cortex_version = "{HOST_VERSION}", or the oldest version that it runs on'
        raise Fault("EINVAL", f"cortex_version is required; {mend}")
    if _RANGE.search(version):
        mend = "name the oldest version that it runs on"
        raise Fault("EINVAL", f"version ranges are not accepted: {shown(version)[1:-1]}; {mend}")
    if _numbers(version)[0] > _numbers(HOST_VERSION)[0]:
        raise Fault("ENOTSUP", f"it needs {version} or newer, and this host has {HOST_VERSION}")


def _numbers(version: str) -> tuple[int, ...]:
    found = _TARGET.fullmatch(version)
    numbers = tuple(int(part) for part in found.groups()) if found else ()
    if not numbers or max(numbers) > _LARGEST:
        mend = f"write three numbers, as {HOST_VERSION}"
        raise Fault("EINVAL", f"invalid cortex version target: {shown(version)[1:-1]}; {mend}")
    return numbers


def faults(manifest: Manifest, available: frozenset[Mechanism]) -> Iterator[Fault]:
    """Yields all faults, in their order. `available` has the mechanisms that this host can apply."""
    for code, phrase, mend in _phrases(manifest):
        yield Fault(code, f"plugin '{manifest.name}' {phrase}; {mend}")
    for claim in claims(manifest.sandbox):
        if not claim.kept(available):
            text = f"declares unsupported sandbox enforcement: {claim.refusal}"
            mend = f"in {FILE}, {claim.key}: {claim.mend}"
            yield Fault("ENOTSUP", f"plugin '{manifest.name}' {text}; {mend}")


def check(manifest: Manifest, available: frozenset[Mechanism]) -> None:
    """Raises the first fault, if there is one."""
    for fault in faults(manifest, available):
        raise fault


def _is_trusted(manifest: Manifest) -> bool:
    return manifest.native is not None and manifest.native.isolation == "trusted_in_process"


def camel(word: str) -> str:
    return "".join(part.capitalize() for part in word.split("_"))


def _phrases(manifest: Manifest) -> Iterator[tuple[str, str, str]]:
    """Yields the broken rules in their order, each as a code, a phrase for the fault, and the remedy."""
    trust, sandbox, is_trusted = manifest.trust, manifest.sandbox, _is_trusted(manifest)
    if trust in ("disabled", "quarantined"):
        yield "EPERM", f"is {camel(trust)}", f"review it, and change trust in {FILE}"
    if is_trusted and trust != "trusted_native":
        phrase = f"uses trusted_in_process native code but trust is {camel(trust)}"
        yield "EINVAL", phrase, f'write trust = "trusted_native" in {FILE}'
    if trust == "trusted_native" and not is_trusted:
        phrase = "declares trusted_native without trusted_in_process native isolation"
        yield "EINVAL", phrase, 'write isolation = "trusted_in_process" in [native], or another trust'
    if manifest.capabilities.secrets and trust == "unreviewed_process":
        phrase = "is unreviewed but requests secrets capability"
        yield "EPERM", phrase, 'review it and write trust = "reviewed_process", or drop capabilities.secrets'
    if sandbox.network == "none" and manifest.capabilities.network:
        phrase = "requests network hosts but sandbox.network is none"
        yield "EINVAL", phrase, "drop capabilities.network, or choose another sandbox.network"
    if sandbox.level == "trusted_in_process" and not is_trusted:
        phrase = "requests trusted_in_process sandbox without native trusted isolation"
        yield "EINVAL", phrase, 'write sandbox.level = "child_process"'


def library_of(manifest: Manifest) -> str | None:
    """Returns the path of a native plugin's library in its directory. The default name is that of cargo."""
    if manifest.native is None or not _is_trusted(manifest):
        return None
    return manifest.native.library or f"lib{manifest.name.replace('-', '_')}.so"


def newer(manifest: Manifest) -> list[str]:
    """Returns the warning about a plugin that was made for a newer host with the same ABI, if it was."""
    version = manifest.cortex_version
    if not _TARGET.fullmatch(version) or _numbers(version) <= _numbers(HOST_VERSION):
        return []
    unknown = f"features newer than {HOST_VERSION} are missing here"
    return [f"cortex_version: it was made for {version}; it runs, as the ABI is the same, and {unknown}"]


def wants_everything(manifest: Manifest) -> str:
    """Returns the access that it claims to all files: "read", "write", "read and write", or "" for none."""
    access = {
        "read": manifest.capabilities.file_read,
        "write": (*manifest.capabilities.file_write, *manifest.sandbox.writable_paths),
    }
    return " and ".join(verb for verb, paths in access.items() if EVERYTHING in paths)


def check_boundary(manifest: Manifest) -> None:
    """Raises a Fault if an enabled plugin lacks the right ABI of its library, or sound process tools."""
    native, subject = manifest.native, f"plugin '{manifest.name}'"
    if manifest.python is not None:
        if native is not None:
            raise Fault("EINVAL", f"{subject} has both [python] and [native]; make two plugins of it")
        return
    if native is not None and _is_trusted(manifest):
        if native.abi_version != NATIVE_ABI:
            abi = "no abi_version" if native.abi_version is None else f"abi_version {native.abi_version}"
            text = f"has {abi} of its library, and this host takes {NATIVE_ABI}"
            raise Fault("EINVAL", f"{subject} {text}; write abi_version = {NATIVE_ABI} in [native]")
        return
    if "tools" not in manifest.capabilities.provides:
        return
    if native is None:
        raise Fault("EINVAL", f"{subject} requests process isolation but has no [native] section; add one")
    if not native.tools:
        mend = 'add one, or drop "tools" from capabilities.provides'
        raise Fault("EINVAL", f"{subject} declares no [[native.tools]]; {mend}")
    for tool in native.tools:
        if not tool.name.strip():
            raise Fault("EINVAL", f"{subject} declares a process tool with an empty name; name it")
        if not tool.description.strip():
            raise Fault("EINVAL", f"process tool '{tool.name}' has an empty description; say what it does")


def warnings(manifest: Manifest) -> list[str]:
    """Returns the warnings of a package's gaps, which forbid nothing."""
    package = manifest.package
    certificate = package.conformance
    found = {
        "missing publisher_id": not package.publisher_id,
        "missing package signature": not package.signature,
        "missing SBOM reference": not package.sbom,
        "missing recommended risk profile": not package.risk_profile,
        "missing passing conformance certificate": certificate is None or not certificate.passed,
    }
    return [text for text, is_missing in found.items() if is_missing]


def unknown_provides(manifest: Manifest) -> list[str]:
    """Returns the warnings of words that mean nothing, as the manifest provides them."""
    unknown = [name for name in manifest.capabilities.provides if name not in PROVIDES]
    ignored = "is unknown and is ignored"
    return [f"capabilities.provides: {shown(name)} {ignored}{nearest(name, PROVIDES)}" for name in unknown]


# The kinds that the seed declares with other words than partially_reversible and always.
_HARMLESS = ("read_file", "network_request", "introspect_runtime")
# The kinds of effects that any code in a process can have. The other kinds depend on the purpose of a tool.
_OF_PROCESSES = ("read_file", "write_file", "network_request", "run_process")
_FINAL = (
    "read_secret",
    "delete_file",
    "send_message",
    "spend_money",
    "deploy",
    "modify_credential",
    "publish_content",
)


def effect(kind: EffectKind, target: str, confirmation: Confirmation | None = None) -> hostcalls.Effect:
    """Returns an effect with the usual words for its kind. `confirmation` replaces the usual one."""
    reversibility: Reversibility = "partially_reversible"
    if kind in _HARMLESS:
        reversibility = "reversible"
    elif kind in _FINAL:
        reversibility = "irreversible"
    condition = confirmation or ("on_risk" if kind in _HARMLESS else "always")
    return hostcalls.Effect(kind, reversibility, condition, "not_supported", target)


def capability_effects(manifest: Manifest) -> list[hostcalls.Effect]:
    """Returns the effects that follow from the plugin's capabilities."""
    capabilities = manifest.capabilities
    effects = [effect("read_file", target) for target in capabilities.file_read]
    effects += [effect("write_file", target, "always") for target in capabilities.file_write]
    effects += [effect("network_request", target) for target in capabilities.network]
    if capabilities.process:
        effects.append(_subprocess())
    if capabilities.secrets:
        effects.append(effect("read_secret", "host secrets", "always"))
    if capabilities.background:
        effects.append(effect("schedule_task", "background execution", "always"))
    return effects


def tool_effects(manifest: Manifest, tool: DeclaredProcessTool) -> list[hostcalls.Effect]:
    """Returns the effects of a process tool for policy. run_process is among them, whatever it declares."""
    declared = [
        hostcalls.Effect(e.kind, e.reversibility, e.confirmation, e.dry_run, e.target) for e in tool.effects
    ]
    effects = capability_effects(manifest) + declared
    if not any(each.kind == "run_process" for each in effects):
        effects.append(_subprocess())
    return effects


def process_rights(manifest: Manifest) -> tuple[hostcalls.Effect, ...]:
    """Returns the effects that a Python plugin or a library claims for its process. Any of its tools may have
    them."""
    return tuple(each for each in capability_effects(manifest) if each.kind in _OF_PROCESSES)


def with_rights(
    declared: Sequence[hostcalls.Effect], rights: Sequence[hostcalls.Effect]
) -> tuple[hostcalls.Effect, ...]:
    """Returns the effects that a tool declares, and then the other effects that its process may have."""
    keys = {(each.kind, each.reversibility, each.confirmation, each.target) for each in declared}
    rest = (
        each
        for each in rights
        for words in [(each.kind, each.reversibility, each.confirmation)]
        if keys.isdisjoint(((*words, ""), (*words, each.target)))
    )
    return (*declared, *rest)


def _subprocess() -> hostcalls.Effect:
    return effect("run_process", "plugin subprocess", "always")
