"""The OpenPGP signature of a manifest.json, looked at by gpgv with the keys that an administrator trusts.

It is detached, in base64, of the package's digest: the text sha256:<64 digits>, without an end of line. gpgv
takes no other keys than those of the ring that it is given.

Rules: gpgv is given copies of what is to be checked and no home of anybody's. Where it or the file is missing
nothing is checked, and that is said. Good is only what gpgv calls good and valid; a key that is expired or
revoked signs nothing. What is checked and does not hold refuses the plugin.
This file must never know what follows from a signature.
"""

from __future__ import annotations

import binascii
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from cortexfs.core import starts
from cortexfs.core.errors import Fault, code_of
from cortexfs.core.manifestjson.fields import JsonManifest
from cortexfs.plugins.package import manifest_hash
from cortexfs.state import believed

# gpgv's words (doc/DETAILS of GnuPG) and what each means for a plugin; any one of them refuses it.
REFUSED = {
    "BADSIG": "it is of other files; install the plugin again",
    "ERRSIG": "it cannot be checked",  # NO_PUBKEY, where it is that, comes after it and says more
    "NO_PUBKEY": "its key {0} is not among the trusted ones; trust it if the author says that it is theirs",
    "EXPSIG": "it has expired; ask the author for a new release",
    "EXPKEYSIG": "its key {0} has expired; ask the author for the renewed one",
    "REVKEYSIG": "its key {0} is revoked; do not use this release",
    "NODATA": "it is no OpenPGP signature",
}
_PREFIX = b"[GNUPG:] "


def signature(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise Fault("EBADMSG", "the signature is not base64") from None


def signer_in(status: bytes) -> str:
    """The fingerprint of the one key that signed, from what gpgv wrote to its status-fd; else EBADMSG."""
    lines = [line.removeprefix(_PREFIX).decode("ascii", "replace").split() for line in status.splitlines()
             if line.startswith(_PREFIX)]  # fmt: skip
    for refused in reversed(REFUSED):
        for word, *rest in filter(None, lines):
            if word == refused:
                why = REFUSED[word].format(*rest[:1] or ["?"])
                raise Fault("EBADMSG", f"the signature does not hold: {why}")
    valid = [rest[0] for word, *rest in filter(None, lines) if word == "VALIDSIG" and rest]
    good = [rest for word, *rest in filter(None, lines) if word == "GOODSIG"]
    if len(valid) != 1 or len(good) != 1:
        raise Fault("EBADMSG", "the signature does not hold: there has to be exactly one good signature")
    return valid[0]


KEYS = "plugin-keys.gpg"  # of the configuration directory; what gpg --export writes
MAX_KEYS = 32 << 20
SECONDS = 10.0
MAX_SAID = 1 << 20


def unchecked(manifest: JsonManifest, keys: Path) -> str | None:
    """Why the signature cannot be looked at; None if it can, or there is none."""
    if manifest.signature is None:
        return None
    if _ring(keys) is None:
        return f"its OpenPGP signature is not checked, as no keys are trusted in {keys}"
    if shutil.which("gpgv") is None:
        return "its OpenPGP signature is not checked, as there is no gpgv; install it"
    return None


def run(folder: Path) -> bytes:
    """Returns the words of gpgv about the files in a folder."""
    path = "/usr/local/bin:/usr/bin:/bin"
    words = [sys.executable, *starts.gpgv(shutil.which("gpgv", path=path) or "gpgv", str(folder))]
    try:
        environ = {"PATH": path, "HOME": str(folder)}
        return subprocess.run(words, capture_output=True, env=environ, timeout=SECONDS, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Fault("EHOSTDOWN", f"gpgv cannot be run: {problem}; its signature stays unchecked") from None


def signer(
    manifest: JsonManifest,
    files: Mapping[str, bytes],
    keys: Path,
    run: Callable[[Path], bytes] = run,
    place: Path | None = None,
) -> str:
    """The fingerprint of the key that has signed these files; empty where nothing was checked. `run` runs
    gpgv where this process may not. `place` is where files are written for it."""
    if manifest.signature is None or unchecked(manifest, keys) or (trusted := _ring(keys)) is None:
        return ""
    digest = manifest_hash.package_digest(files)
    with tempfile.TemporaryDirectory(prefix=starts.PREFIX, dir=place) as folder:
        Path(folder, starts.RING).write_bytes(trusted)
        Path(folder, starts.SIGNED).write_bytes(signature(manifest.signature))
        Path(folder, starts.TEXT).write_bytes(digest.encode())
        return signer_in(run(Path(folder)))


def settle(place: Path) -> None:
    """Remove what a killed process left of a check."""
    for left in place.glob(f"{starts.PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


def _ring(keys: Path) -> bytes | None:
    """The keys that are trusted; None where there is no such file. Others' keys are a fault, so that nothing
    is installed as if nobody were trusted."""
    try:
        return believed.read(keys, MAX_KEYS)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise Fault(code_of(problem.errno), f"{keys} cannot be read: {problem.strerror}") from None
