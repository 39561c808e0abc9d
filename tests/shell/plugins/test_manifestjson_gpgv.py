"""A signature as gpgv judges it; no stand-in can take the place of gpgv (abi.md 9.10)."""

from __future__ import annotations

import base64
import shutil
from pathlib import Path

import pytest

from cortexfs.core import starts
from cortexfs.core.errors import Fault
from cortexfs.plugins.trust import openpgp

# Made with gpg for these tests: a key and its signature of TEXT, another key, and a key valid for a day.
TEXT = "sha256:" + "0" * 64
FINGERPRINT = "BC9CF7D22C7AE6BF68370F915260A66FD32DC152"
KEY = (
    "mDMEZZN9JRYJKwYBBAHaRw8BAQdA9ywXwg1JzIDlo3BzmOueEGwLHBfEXJc7agp3R5KZ3VO0FkF1dGhvciA8YUBleGFtcGxlLmNvbT6I"
    "kAQTFggAOBYhBLyc99Iseua/aDcPkVJgpm/TLcFSBQJlk30lAhsDBQsJCAcCBhUKCQgLAgQWAgMBAh4BAheAAAoJEFJgpm/TLcFS6MgB"
    "AIr3REHJ55sKj6bhB2W7XLpfvl/yOG4vttj+GSZaopfHAQDZLohuRwLkn7CbHVVeJuHLtskvUX7/U7MSe+I5ggGZBA=="
)
SIGNATURE = (
    "iIQEABYIACwWIQS8nPfSLHrmv2g3D5FSYKZv0y3BUgUCZZN9JQ4cYUBleGFtcGxlLmNvbQAKCRBSYKZv0y3BUpSgAP9xqS724bXsX5wS"
    "KgeBOiwACXE56SPgDmxsQbPGtfiDVAEAn2PHM+M8lt/VFSdsW6ltlSxYTx5sycfpFAlLR24FZgs="
)
OTHER_KEY = (
    "mDMEZZN9JRYJKwYBBAHaRw8BAQdActn5Y+mVxI4DmXm+t9zt+WNTFlFZFuvHOV0LbfbIgJa0FU90aGVyIDxvQGV4YW1wbGUuY29tPoiQ"
    "BBMWCAA4FiEEvW+LMHoRHeRn5WCslmrh7X4TTdoFAmWTfSUCGwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQlmrh7X4TTdpcuAD5"
    "AXvxWmZ7tBF1R8C4yCPJj69GF9R4As4pcZs64ZWCeqEA/2nmii4tpvqS3LbmdCt7EoBIG8BvmeU0m5wJpSJnhiwH"
)
OLD_KEY = (
    "mDMEZZN9JRYJKwYBBAHaRw8BAQdAJLrMUtIYSnEiMTZGPVNxp5OkgKE0zHRIYJuBMHmULpm0FEdvbmUgPGdAZXhhbXBsZS5jb20+iJYE"
    "ExYIAD4WIQRsURETarXbULgevmdHDT90OLMk4gUCZZN9JQIbAwUJAAFRgAULCQgHAgYVCgkICwIEFgIDAQIeAQIXgAAKCRBHDT90OLMk"
    "4mZzAQDz5ZTnqfZtuwFeF01hDHxJVdBcXq9l4fnTHH2MUYQQWwD/RSIFYK5nQ2W4epHLBpe9UorOJ9Zq+Xd1+xETE4GZGQk="
)
OLD_SIGNATURE = (
    "iIQEABYIACwWIQRsURETarXbULgevmdHDT90OLMk4gUCZZN9JQ4cZ0BleGFtcGxlLmNvbQAKCRBHDT90OLMk4rc6AQCJitxIcSd91uaR"
    "1hQVwDbXDQXGsFrPhRHI5v4jh0j1nQD/Z3OUkXQzwn8lLDMwhUMd1KP8O4MhThAZE/AJT47c3gk="
)


def gpgv(tmp_path: Path, key: str, signature: bytes, package_digest: str) -> bytes:
    """Returns the output of gpgv on its status-fd."""
    (tmp_path / starts.RING).write_bytes(base64.b64decode(key))
    (tmp_path / starts.SIGNED).write_bytes(signature)
    (tmp_path / starts.TEXT).write_bytes(package_digest.encode())
    return openpgp.run(tmp_path)


@pytest.mark.skipif(shutil.which("gpgv") is None, reason="gpgv, which alone can judge, is not installed")
def test_a_signature_holds_for_its_key_and_its_files_alone(tmp_path: Path) -> None:
    # abi.md 9.10
    good = base64.b64decode(SIGNATURE)
    assert base64.b64encode(good).decode() == SIGNATURE
    assert openpgp.signer_in(gpgv(tmp_path, KEY, good, TEXT)) == FINGERPRINT
    for key, signature, text, why in (
        (KEY, good, "sha256:" + "1" * 64, "it signs other files"),
        (OTHER_KEY, good, TEXT, "its key 5260A66FD32DC152 is not among the trusted ones"),
        (OLD_KEY, base64.b64decode(OLD_SIGNATURE), TEXT, "its key 470D3F7438B324E2 has expired"),
        (KEY, b"nothing of the sort", TEXT, "it is no OpenPGP signature"),
        (KEY, good + good, TEXT, ""),
    ):
        with pytest.raises(Fault, match=rf"^EBADMSG: the signature does not hold: {why}"):
            openpgp.signer_in(gpgv(tmp_path, key, signature, text))
