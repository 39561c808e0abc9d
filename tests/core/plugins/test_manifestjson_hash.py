"""What a plugin's hash and signature are of, and that nothing else passes (abi.md 9.9, 9.10)."""

from __future__ import annotations

import base64
import hashlib
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cortexfs.core import starts
from cortexfs.core.errors import Fault
from cortexfs.plugins.package import manifest_hash
from cortexfs.plugins.trust import manifest_signature, openpgp
from tests.core.manifest_json import SOUND

CODE = b"export const tools = []\n"


def digest(root: Path) -> str:
    files = {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    return manifest_hash.package_digest(files)


def package(root: Path, **changes: Any) -> Path:
    (root / "lib").mkdir(parents=True)
    (root / "manifest.json").write_bytes(msgspec.json.encode(SOUND | changes))
    (root / "mod.ts").write_bytes(CODE)
    (root / "lib" / "a.ts").write_bytes(b"")
    (root / "lib-b.ts").write_bytes(b"\0\xff")
    return root


def test_the_digest_is_that_of_the_description(tmp_path: Path) -> None:
    # docs/manifest-json.md: path NUL length NUL bytes, sorted by path as UTF-8, so lib-b.ts before lib/a.ts
    manifest = (
        b'{"capabilities":["tools","network:fetch"],"description":"Short description",'
        b'"entryPoint":"./mod.ts","kind":"esm","name":"my-plugin","runtime":"deno","version":"1.0.0"}'
    )
    parts = [
        b"lib-b.ts\0002\0\0\xff",
        b"lib/a.ts\0000\0",
        b"manifest.json\000%d\0" % len(manifest) + manifest,
    ]
    parts.append(b"mod.ts\000%d\0" % len(CODE) + CODE)
    wanted = hashlib.sha256(b"".join(parts)).hexdigest()
    assert digest(package(tmp_path / "p")) == f"sha256:{wanted}"


def test_hash_and_signature_do_not_change_what_they_are_of(tmp_path: Path) -> None:
    bare = digest(package(tmp_path / "a"))
    assert digest(package(tmp_path / "b", hash=bare, signature="c2ln")) == bare
    # nor does the way in which the manifest is written
    (tmp_path / "a" / "manifest.json").write_bytes(msgspec.json.format(msgspec.json.encode(SOUND), indent=4))
    assert digest(tmp_path / "a") == bare


def test_any_change_of_a_package_changes_its_digest(tmp_path: Path) -> None:
    # abi.md 9.9
    root = package(tmp_path / "p")
    seen = {digest(root)}
    for change in (
        lambda: (root / "mod.ts").write_bytes(CODE + b" "),
        lambda: (root / "new.ts").write_bytes(b""),
        lambda: (root / "new.ts").rename(root / "lib" / "new.ts"),
        lambda: (root / "lib-b.ts").unlink(),
        lambda: (root / ".hidden").write_bytes(b""),
        lambda: (root / "manifest.json").write_bytes(msgspec.json.encode(SOUND | {"runtime": "wasm"})),
    ):
        change()
        seen.add(digest(root))
    assert len(seen) == 7


def test_a_hash_of_the_package_or_of_the_entry_point_holds_and_no_other(tmp_path: Path) -> None:
    whole = digest(package(tmp_path / "p"))
    entry = manifest_hash.entry_digest(CODE)
    assert entry == f"sha256:{hashlib.sha256(CODE).hexdigest()}"
    assert manifest_hash.verify(whole, whole, entry) == "package"
    assert manifest_hash.verify(whole.upper().replace("SHA256", "sha256"), whole) == "package"
    assert manifest_hash.verify(entry, whole, entry) == "entry"
    # abi.md 9.1: it is optional
    assert manifest_hash.verify(None, whole, entry) == "nothing"
    for claimed, known in ((entry, None), ("sha256:" + "0" * 64, entry), (whole[:-1], entry), ("", entry)):
        with pytest.raises(Fault, match=f"^EBADMSG: manifest[.]json: hash: says {claimed}, but"):
            manifest_hash.verify(claimed, whole, known)


def test_a_manifest_that_is_none_has_no_digest(tmp_path: Path) -> None:
    root = package(tmp_path / "p")
    (root / "manifest.json").write_bytes(b"[]")
    with pytest.raises(Fault, match=r"^EINVAL: manifest.json: is not one JSON object"):
        digest(root)


# Made with gpg for these tests: a key and its signature of TEXT, another key, one that was good for a day.
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
    """What gpgv says to its status-fd."""
    (tmp_path / starts.RING).write_bytes(base64.b64decode(key))
    (tmp_path / starts.SIGNED).write_bytes(signature)
    (tmp_path / starts.TEXT).write_bytes(manifest_signature.signed_text(package_digest))
    return openpgp.run(tmp_path)


# What a signature is worth is what gpgv says to our command: nothing can stand in for it.
@pytest.mark.skipif(shutil.which("gpgv") is None, reason="gpgv, which alone can judge, is not installed")
def test_a_signature_holds_for_its_key_and_its_files_alone(tmp_path: Path) -> None:
    # abi.md 9.10
    good = manifest_signature.signature(SIGNATURE)
    assert manifest_signature.written(good) == SIGNATURE
    assert manifest_signature.signer(gpgv(tmp_path, KEY, good, TEXT)) == FINGERPRINT
    for key, signature, text, why in (
        (KEY, good, "sha256:" + "1" * 64, "it is of other files"),
        (OTHER_KEY, good, TEXT, "its key 5260A66FD32DC152 is not among the trusted ones"),
        (OLD_KEY, manifest_signature.signature(OLD_SIGNATURE), TEXT, "its key 470D3F7438B324E2 has expired"),
        (KEY, b"nothing of the sort", TEXT, "it is no OpenPGP signature"),
        (KEY, good + good, TEXT, ""),
    ):
        with pytest.raises(Fault, match=rf"^EBADMSG: the signature does not hold: {why}"):
            manifest_signature.signer(gpgv(tmp_path, key, signature, text))


def test_only_one_good_and_valid_signature_counts() -> None:
    # GnuPG doc/DETAILS: VALIDSIG is written for expired and revoked keys too
    good, valid = b"[GNUPG:] GOODSIG 12 Me\n", b"[GNUPG:] VALIDSIG AB 2024\n"
    assert manifest_signature.signer(b"[GNUPG:] NEWSIG\n" + good + valid) == "AB"
    wrong = [
        b"",
        good,
        valid,
        good + valid + good + valid,
        b"GOODSIG 12\nVALIDSIG AB\n",
        b"[GNUPG:] \n",
        valid * 2,
    ]
    for word in manifest_signature.REFUSED:
        wrong += [
            good + valid + b"[GNUPG:] %s 12\n" % word.encode(),
            b"[GNUPG:] %s\n" % word.encode() + valid,
        ]
    for status in wrong:
        with pytest.raises(Fault, match=r"^EBADMSG: the signature does not hold: "):
            manifest_signature.signer(status)
    with pytest.raises(Fault, match=r"^EBADMSG: the signature is not base64"):
        manifest_signature.signature("a b")
