"""Secret settings on the disk: encrypted, with a key of this state directory.

A copy of the file with the settings, without the key beside it, reveals none of them.

Rules: a sealed text can be opened only for the plugin and the setting that it was sealed for. The key is
made once, and only its owner may read it. No function here prints or logs a secret.
This file must never know where sealed texts are kept.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
from pathlib import Path

from cortexfs.core.errors import Fault, os_faults
from cortexfs.plugins.trust.signing import needed_for
from cortexfs.state import believed, no_links, whole_files

KEY_FILE = "secrets/.plugin-settings"  # of the state directory
KEY_BYTES = 32
NONCE_BYTES = 12  # NIST SP 800-38D, of AES-GCM


def seal(state: Path, plugin: str, setting: str, secret: str) -> str:
    with needed_for("secret settings"):
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    nonce = os.urandom(NONCE_BYTES)
    ciphertext = AESGCM(_key(state)).encrypt(nonce, secret.encode(), _place(plugin, setting))
    return base64.b64encode(nonce + ciphertext).decode()


def unseal(state: Path, plugin: str, setting: str, ciphertext: str) -> str:
    """Returns the secret. Raises EBADMSG if it was sealed with another key, or for another setting."""
    with needed_for("secret settings"):
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    key = _key(state)
    try:
        data = base64.b64decode(ciphertext, validate=True)
        return AESGCM(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], _place(plugin, setting)).decode()
    except (InvalidTag, ValueError, binascii.Error):
        mend = f"set it again: ctx plugin config {plugin} {setting} -"
        raise Fault(
            "EBADMSG", f"the secret {setting} was not encrypted with the key of this state; {mend}"
        ) from None


def _place(plugin: str, setting: str) -> bytes:
    return f"{plugin}\0{setting}".encode()


def _key(state: Path) -> bytes:
    path = state / KEY_FILE
    with os_faults(f"{path} cannot be read"):
        with no_links.folder(state, os.path.dirname(KEY_FILE), 0o700) as folder:
            if not (target := folder / path.name).exists():
                with contextlib.suppress(FileExistsError):  # if two are made at once, the first counts
                    whole_files.create(target, [os.urandom(KEY_BYTES)], 0o600)
        key = believed.secret(path, KEY_BYTES, f"{path} is", f"close it with: chmod 600 {path}")
    if len(key) != KEY_BYTES:
        raise Fault("EINVAL", f"{path} is not a key; remove it, and set the secrets of plugins again")
    return key
