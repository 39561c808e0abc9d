"""Signatures of plugins: Ed25519 over a list of their files.

There are two payloads. Upstream's lists manifest.toml, the other files of FILES and all of lib/, skills/ and
prompts/. A plugin with more (bin/, programs elsewhere, executable files) is signed by the second payload,
which lists every file, and marks programs. A signature of the first kind counts only if it covers every
file, so that no unsigned program travels under an old signature.

Rules: the verified bytes are the bytes that will be used. Text in the payload has no control characters, as
lines and tabs divide it. Keys are 32 raw bytes in a file that has mode 0600 from its first moment. The
library of cryptography is needed only to sign or to verify.
This file must never know the trusted publishers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from cortexfs.core import tomltext
from cortexfs.core.errors import Fault, os_faults
from cortexfs.core.jsontext import shown
from cortexfs.core.manifest.toml import PACKAGE_FILE, Package
from cortexfs.core.manifestjson.fetched import is_fetched
from cortexfs.plugins.package.package import FILES, LIBRARIES, File, PackageFiles, library_of, order
from cortexfs.state import whole_files

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


ALGORITHM = "ed25519"
KEY_BYTES = 32
UPSTREAM = "cortex-plugin-signature-v1"
COMPLETE = "cortexfs-plugin-signature-v2"
_UPSTREAM_FOLDERS = ("lib", "skills", "prompts")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class SignatureVerdict(msgspec.Struct, frozen=True):
    status: Literal["unsigned", "verified", "invalid"]
    why: str = ""
    publisher: str = ""
    public_key: str = ""
    fingerprint: str = ""

    @property
    def text(self) -> str:
        if self.status == "verified":
            return f"verified {ALGORITHM}; publisher={self.publisher}; fingerprint={self.fingerprint}"
        return f"{self.status} ({self.why})"


def fingerprint_of(public_key: str) -> str:
    return hashlib.sha256(base64.b64decode(public_key)).hexdigest()


def keygen(path: Path) -> str:
    """Create a signing key, and return its public half in base64. An existing key is never overwritten."""
    private = _private_key()
    try:
        # Written without a draft, as a memory stick for keys may have no links, and with an exact mode, as a
        # umask may take away too much.
        whole_files.write(path, [private.private_bytes_raw()], 0o600, exact=True)
        whole_files.sync(path.parent)
    except FileExistsError:
        raise Fault("EEXIST", f"signing key already exists: {path}; name another file") from None
    return _public(private)


def read_key(path: Path) -> bytes:
    """Returns the secret half of a key. Raises EACCES if other users could have read it."""
    with os_faults(f"the key {path} cannot be read"), open(path, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        data = file.read(KEY_BYTES + 1)
        size = len(data) if len(data) <= KEY_BYTES else max(os.fstat(file.fileno()).st_size, len(data))
    if mode & 0o077:
        mend = "make another one with: ctx plugin keygen"
        raise Fault("EACCES", f"the key {path} is open to others (mode {mode:04o}); {mend}")
    if size != KEY_BYTES:
        raise Fault("EINVAL", f"ed25519 signing key must be {KEY_BYTES} raw bytes, got {size}: {path}")
    return data


def sign(tree: PackageFiles, secret: bytes, publisher: str = "") -> Package:
    """Returns the metadata that signs the tree. Its SBOM, risk profile and certificate are kept."""
    private = _private_key(secret)
    publisher = publisher or tree.manifest.package.publisher_id or tree.manifest.author
    if not publisher.strip():
        mend = f"name it with --publisher, or as author in {tree.manifest_file}"
        raise Fault("EINVAL", f"publisher_id is required before signing; {mend}")
    package = msgspec.structs.replace(
        tree.manifest.package,
        publisher_id=publisher,
        manifest_sha256=tree.files[tree.manifest_file].sha256,
        binary_sha256=next(iter(_binaries(tree)), ""),
        signature_algorithm=ALGORITHM,
        public_key=_public(private),
        signature="",
    )
    form = UPSTREAM if _upstream_suffices(tree) else COMPLETE
    signature = private.sign(payload(tree, package, form))
    return msgspec.structs.replace(package, signature=base64.b64encode(signature).decode())


def signed(tree: PackageFiles, package: Package) -> PackageFiles:
    files = {**tree.files, PACKAGE_FILE: File(encode_package(package))}
    manifest = msgspec.structs.replace(tree.manifest, package=package)
    return PackageFiles({name: files[name] for name in sorted(files, key=order)}, manifest, tree.ignored)


def write_package(folder: Path, package: Package) -> None:
    """Replace the package.toml of a directory. A reader sees the old one or the new one."""
    with os_faults(f"{folder / PACKAGE_FILE} cannot be written"):
        whole_files.replace(folder / PACKAGE_FILE, [encode_package(package)], 0o666)


def verify(tree: PackageFiles) -> SignatureVerdict:
    """Check the tree against the package metadata in it."""
    package = tree.manifest.package
    signed = bool(package.signature.strip())
    states: list[str] = []
    for name, digest, found in (
        ("manifest", package.manifest_sha256, [tree.files[tree.manifest_file].sha256]),
        ("binary", package.binary_sha256, _binaries(tree)),
    ):
        state = _hash_state(digest, found)
        states.append(f"{name} hash {state}")
        if state == "mismatch" or (signed and state == "missing"):
            return SignatureVerdict("invalid", "; ".join(states))
    if not signed:
        return SignatureVerdict("unsigned", "; ".join([*states, "signature missing"]))
    try:
        return _verified(tree, package)
    except Fault as fault:
        if fault.code == "EHOSTDOWN":
            raise
        return SignatureVerdict("invalid", "; ".join([*states, fault.message]))


def _hash_state(digest: str, found: list[str]) -> str:
    if digest:
        return "verified" if digest in found else "mismatch"
    return "missing" if found else "not applicable"


def _verified(tree: PackageFiles, package: Package) -> SignatureVerdict:
    if package.signature_algorithm != ALGORITHM:
        raise Fault("EINVAL", f"signature algorithm {shown(package.signature_algorithm)} is unknown")
    if not package.publisher_id.strip():
        raise Fault("EINVAL", "publisher_id is missing")
    key = _decoded(package.public_key, KEY_BYTES, "public key")
    signature = _decoded(package.signature, 64, "signature")
    if not any(_holds(key, signature, payload(tree, package, form)) for form in _forms(tree)):
        uncovered = [name for name in _listed(tree) if not _upstream_covers(tree, name)]
        old = _holds(key, signature, payload(tree, package, UPSTREAM)) if uncovered else False
        outside = f"it does not cover {', '.join(map(shown, uncovered[:3]))}; sign the plugin again"
        raise Fault("EINVAL", outside if old else "signature does not match the files")
    public = package.public_key
    return SignatureVerdict("verified", "", package.publisher_id, public, fingerprint_of(public))


def _forms(tree: PackageFiles) -> list[str]:
    """Returns the payloads with which this tree may be signed."""
    covered = all(_upstream_covers(tree, name) for name in _listed(tree))
    return [COMPLETE, UPSTREAM] if covered else [COMPLETE]


def payload(tree: PackageFiles, package: Package, form: str) -> bytes:
    lines = [form, *_facts(package)]
    for name in _listed(tree):
        file = tree.files[name]
        if form == COMPLETE:
            lines.append(f"{'program' if file.executable else 'file'}\t{name}\t{file.sha256}")
        elif _upstream_covers(tree, name):
            lines.append(f"file\t{name}\t{file.sha256}")
    for line in lines:
        if _CONTROL.search(line.replace("\t", "")):
            raise Fault("EINVAL", f"control characters cannot be signed: {shown(line)}")
    return ("\n".join(lines) + "\n").encode()


def _facts(package: Package) -> Iterator[str]:
    facts = {
        "publisher_id": package.publisher_id,
        "algorithm": ALGORITHM,
        "public_key": package.public_key,
        "manifest_sha256": package.manifest_sha256,
        "binary_sha256": package.binary_sha256,
        "sbom": package.sbom,
        "risk_profile": package.risk_profile,
    }
    for key, value in facts.items():
        yield f"{key}={_plain(value, key)}"
    if found := package.conformance:
        yield f"conformance.suite={_plain(found.suite, 'suite')}"
        yield f"conformance.passed={_bool(found.passed)}"
        yield f"conformance.checked_at={_plain(found.checked_at, 'checked_at')}"
        for check in found.checks:
            name, message = _plain(check.name, "name"), _plain(check.message, "message")
            yield f"conformance.check\t{name}\t{_bool(check.passed)}\t{message}"


def _plain(value: str, field: str) -> str:
    if _CONTROL.search(value):
        raise Fault("EINVAL", f"{field} holds a control character, which cannot be signed: {shown(value)}")
    return value


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _listed(tree: PackageFiles) -> list[str]:
    """Returns all files but that of the signature, in the order of the payload. Files that the installation
    fetched are left out, as the manifest's hash covers them (plugins/install/fetch.py)."""
    return sorted((name for name in tree.files if name != PACKAGE_FILE and not is_fetched(name)), key=order)


def _upstream_covers(tree: PackageFiles, name: str) -> bool:
    if name in FILES or name.split("/")[0] in _UPSTREAM_FOLDERS:
        return True
    has_lib = any(each.startswith("lib/") for each in tree.files)
    return name == library_of(tree.manifest) and not has_lib


def _upstream_suffices(tree: PackageFiles) -> bool:
    """Returns True if upstream's payload covers all files. Then upstream's hosts can verify our signature."""
    return all(_upstream_covers(tree, name) and not tree.files[name].executable for name in _listed(tree))


def _binaries(tree: PackageFiles) -> list[str]:
    """Returns the valid values of binary_sha256: the hash of the named library, or else of any library, as
    upstream takes the first that its file system lists."""
    path = tree.manifest.native.library if tree.manifest.native else ""
    if path and (library := posixpath.normpath(path)) in tree.files:
        return [tree.files[library].sha256]
    libraries = [name for name in tree.files if name.endswith(LIBRARIES)]
    in_lib = [name for name in libraries if name.startswith("lib/") and name.count("/") == 1]
    beside = [name for name in libraries if "/" not in name]
    return [tree.files[name].sha256 for name in in_lib or beside]


def encode_package(package: Package) -> bytes:
    """Returns the text of package.toml, which is written beside the manifest."""
    values = msgspec.to_builtins(package)
    certificate = values.pop("conformance")
    lines = tomltext.lines(values)
    if certificate:
        checks = certificate.pop("checks")
        lines += ["", "[conformance]", *tomltext.lines(certificate)]
        for check in checks:
            lines += ["", "[[conformance.checks]]", *tomltext.lines(check)]
    return ("\n".join(lines) + "\n").encode()


def _decoded(text: str, size: int, subject: str) -> bytes:
    """Decode base64 in its one canonical spelling, so that no other text has the same meaning."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != size or base64.b64encode(data).decode() != text:
        raise Fault("EINVAL", f"{subject} is not base64 of {size} bytes")
    return data


@contextmanager
def needed_for(subject: str) -> Iterator[None]:
    """Wraps imports of the package cryptography. Raises EHOSTDOWN with the remedy if it is not installed."""
    try:
        yield
    except ImportError:
        mend = "install it with: pip install 'cortexfs[plugins]'"
        raise Fault("EHOSTDOWN", f"{subject} need the package cryptography; {mend}") from None


def _private_key(secret: bytes | None = None) -> Ed25519PrivateKey:
    with needed_for("signatures"):
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(secret) if secret else Ed25519PrivateKey.generate()


def _public(private: Ed25519PrivateKey) -> str:
    return base64.b64encode(private.public_key().public_bytes_raw()).decode()


def _holds(key: bytes, signature: bytes, signed: bytes) -> bool:
    with needed_for("signatures"):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True
