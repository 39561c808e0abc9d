"""A manifest.json's signature: a detached OpenPGP signature, in base64, of the package's digest.

What is signed is the text sha256:<64 digits>, without an end of line. Checking is left to gpgv, which takes
no other keys than those of the ring it is given: here is what it is asked, and what its answer means.

Rules: sans-IO. Good is only what gpgv calls good and valid; a key that is expired or revoked signs nothing.
This file must never know which keys are trusted, nor where they lie.
"""

from __future__ import annotations

import base64
import binascii

from cortexfs.core.errors import Fault

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
    """The signature's bytes."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise Fault("EBADMSG", "the signature is not base64") from None


def written(signed: bytes) -> str:
    """A signature as the manifest has it."""
    return base64.b64encode(signed).decode()


def signed_text(package: str) -> bytes:
    """Returns the text that an author signs and gpgv is given: the package's digest."""
    return package.encode()


def signer(status: bytes) -> str:
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
