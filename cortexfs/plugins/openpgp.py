"""Whose OpenPGP signature a manifest.json holds, by gpgv and the keys that an administrator trusts.

Rules: gpgv is given copies of what is to be checked and no home of anybody's. Where it or the file is missing
nothing is checked, and that is said. What is checked and does not hold refuses the plugin.
This file must never know what follows from a signature.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cortexfs.core.errors import Fault
from cortexfs.core.manifestjson.fields import Manifest
from cortexfs.plugins import manifesthash, manifestsignature

KEYS = "plugin-keys.gpg"  # of the configuration directory; what gpg --export writes
SECONDS = 10.0


def unchecked(manifest: Manifest, keys: Path) -> str | None:
    """Why the signature cannot be looked at; None if it can, or there is none."""
    if manifest.signature is None:
        return None
    if not keys.is_file():
        return f"its OpenPGP signature is not checked, as no keys are trusted in {keys}"
    if shutil.which("gpgv") is None:
        return "its OpenPGP signature is not checked, as there is no gpgv; install it"
    return None


def signer(manifest: Manifest, files: Mapping[str, bytes], keys: Path) -> str:
    """The fingerprint of the key that has signed these files; empty where nothing was checked."""
    if manifest.signature is None or unchecked(manifest, keys):
        return ""
    digest = manifesthash.package_digest(files)
    with tempfile.TemporaryDirectory(prefix="ctx-plugin-") as folder:
        given, text = Path(folder, "signature"), Path(folder, "text")
        given.write_bytes(manifestsignature.signature(manifest.signature))
        text.write_bytes(manifestsignature.signed_text(digest))
        words = manifestsignature.command(str(keys.resolve()), str(given), str(text))
        path = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": folder}
        try:
            done = subprocess.run(words, capture_output=True, env=path, timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as problem:
            raise Fault(
                "EHOSTDOWN", f"gpgv cannot be run: {problem}; its signature stays unchecked"
            ) from None
    return manifestsignature.signer(done.stdout)
