"""The OpenPGP signature of a manifest.json, checked by gpgv with the keys that an administrator trusts.

The signature is detached, in base64, and covers the package's digest: the text sha256:<64 digits>, without an
end of line. gpgv uses only the keys of the ring that is passed to it.

Rules: gpgv gets copies of the checked files, and no user's home. Without gpgv or the file of keys no
signature is checked, and a warning tells that. Only a signature that gpgv calls good and valid counts, so an
expired or revoked key does not. A signature that was checked and does not hold refuses the plugin.
This file must never know the consequences of a signature.
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
from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson.fields import JsonManifest
from cortexfs.plugins.package import manifest_hash
from cortexfs.state import believed

# gpgv's words (doc/DETAILS of GnuPG), each of which refuses a plugin, and their meaning.
REFUSED = {
    "BADSIG": "it signs other files; install the plugin again",
    "ERRSIG": "it cannot be checked",  # if the key is missing, NO_PUBKEY follows and tells more
    "NO_PUBKEY": "its key {0} is not among the trusted ones; trust it if the author says that it is theirs",
    "EXPSIG": "it has expired; ask the author for a new release",
    "EXPKEYSIG": "its key {0} has expired; ask the author for the renewed one",
    "REVKEYSIG": "its key {0} is revoked; do not use this release",
    "NODATA": "it is no OpenPGP signature",
}
_PREFIX = b"[GNUPG:] "


def signer_in(status: bytes) -> str:
    """Returns the fingerprint of the one key that signed, from gpgv's status output. Raises EBADMSG."""
    lines = [line.removeprefix(_PREFIX).decode("ascii", "replace").split() for line in status.splitlines()
             if line.startswith(_PREFIX)]  # fmt: skip
    for code in reversed(REFUSED):
        for word, *rest in filter(None, lines):
            if word == code:
                why = REFUSED[word].format(*rest[:1] or ["?"])
                raise Fault("EBADMSG", f"the signature does not hold: {why}")
    valid = [rest[0] for word, *rest in filter(None, lines) if word == "VALIDSIG" and rest]
    good = [rest for word, *rest in filter(None, lines) if word == "GOODSIG"]
    if len(valid) != 1 or len(good) != 1:
        raise Fault("EBADMSG", "the signature does not hold: there must be exactly one good signature")
    return valid[0]


KEYS = "plugin-keys.gpg"  # in the configuration directory; the output of gpg --export
MAX_KEYS = 32 << 20
SECONDS = 10.0
MAX_SAID = 1 << 20


def unchecked(manifest: JsonManifest, keys: Path) -> str | None:
    """Returns the reason why the signature cannot be checked. None if it can be, or if there is none."""
    if manifest.signature is None:
        return None
    if _ring(keys) is None:
        return f"its OpenPGP signature is not checked, as no keys are trusted in {keys}"
    if shutil.which("gpgv") is None:
        return "its OpenPGP signature is not checked, as there is no gpgv; install it"
    return None


def run(folder: Path) -> bytes:
    """Returns the output of gpgv about the files in a folder."""
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
    """Returns the fingerprint of the key that has signed these files, or "" if no signature was checked.
    `run` runs gpgv for a process that may not. `place` is the folder for gpgv's files."""
    if manifest.signature is None or unchecked(manifest, keys) or (trusted := _ring(keys)) is None:
        return ""
    digest = manifest_hash.package_digest(files)
    with tempfile.TemporaryDirectory(prefix=starts.PREFIX, dir=place) as folder:
        Path(folder, starts.RING).write_bytes(trusted)
        Path(folder, starts.SIGNED).write_bytes(binascii.a2b_base64(manifest.signature, strict_mode=True))
        Path(folder, starts.TEXT).write_bytes(digest.encode())
        return signer_in(run(Path(folder)))


def settle(place: Path) -> None:
    """Remove the files of checks that a killed process left."""
    for path in place.glob(f"{starts.PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)


def _ring(keys: Path) -> bytes | None:
    """Returns the trusted keys, or None without such a file. A file that others may write is a fault, so that
    no plugin is installed as if no keys were trusted."""
    return believed.content_of(keys, MAX_KEYS, "trusted keys")
