"""The content that a plugin's hash and signature cover; any other content is refused (abi.md 9.9, 9.10)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.plugins.package import manifest_hash
from cortexfs.plugins.trust import openpgp
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
    # the layout of the manifest does not change the hash either
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


def test_only_one_good_and_valid_signature_counts() -> None:
    # GnuPG doc/DETAILS: VALIDSIG is written for expired and revoked keys too
    good, valid = b"[GNUPG:] GOODSIG 12 Me\n", b"[GNUPG:] VALIDSIG AB 2024\n"
    assert openpgp.signer_in(b"[GNUPG:] NEWSIG\n" + good + valid) == "AB"
    wrong = [
        b"",
        good,
        valid,
        good + valid + good + valid,
        b"GOODSIG 12\nVALIDSIG AB\n",
        b"[GNUPG:] \n",
        valid * 2,
    ]
    for word in openpgp.REFUSED:
        wrong += [
            good + valid + b"[GNUPG:] %s 12\n" % word.encode(),
            b"[GNUPG:] %s\n" % word.encode() + valid,
        ]
    for status in wrong:
        with pytest.raises(Fault, match=r"^EBADMSG: the signature does not hold: "):
            openpgp.signer_in(status)
