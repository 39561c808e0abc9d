"""Signatures: the data that they cover, and the reasons for a refusal."""

from __future__ import annotations

import base64
import builtins
import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.manifest.toml import CertificationCheck, Conformance, Package
from cortexfs.plugins.install import install
from cortexfs.plugins.package import manifests, package
from cortexfs.plugins.package.package import File, PackageFiles
from cortexfs.plugins.trust import signing
from cortexfs.plugins.trust.signing import COMPLETE, UPSTREAM, payload, read_key, sign, signed, verify
from tests.shell.plugin_files import NATIVE, PUBLIC, SECRET, TOOL, full, plugin, tree

pytest.importorskip("cryptography")


def made(tree: PackageFiles, publisher: str = "example.dev") -> PackageFiles:
    return signed(tree, sign(tree, SECRET, publisher))


def changed(tree: PackageFiles, name: str, data: bytes | None, executable: bool = False) -> PackageFiles:
    """Returns the tree with a file replaced, added or removed, parsed anew."""
    files = {each: file for each, file in tree.files.items() if each != name}
    if data is not None:
        files[name] = File(data, executable)
    manifest = manifests.parse(files["manifest.toml"].data, files["package.toml"].data)
    return PackageFiles(files, manifest)


def test_the_key_of_the_test_vector(tmp_path: Path) -> None:
    # abi.md 11.19
    package = sign(tree(tmp_path), SECRET)
    assert package.public_key == PUBLIC
    assert signing.fingerprint_of(PUBLIC) == hashlib.sha256(base64.b64decode(PUBLIC)).hexdigest()


def test_the_payload_is_that_of_upstream(tmp_path: Path) -> None:
    # abi.md 11.19
    files = {"lib/libhello.so": "elf", "skills/a/x": "1", "skills/a-b/x": "2", "sbom.spdx.json": "{}"}
    found = tree(tmp_path, NATIVE % "lib/libhello.so", files)
    certificate = Conformance(
        "suite", True, "today", (CertificationCheck("abi", True, ""), CertificationCheck("cwd", False, "no"))
    )
    kept = msgspec.structs.replace(
        found.manifest, package=Package(sbom="s", risk_profile="r", conformance=certificate)
    )
    package = sign(PackageFiles(found.files, kept), SECRET, "example.dev")
    hashes = {name: hashlib.sha256(file.data).hexdigest() for name, file in found.files.items()}
    assert payload(found, package, UPSTREAM).decode() == (
        "cortex-plugin-signature-v1\npublisher_id=example.dev\nalgorithm=ed25519\n"
        f"public_key={PUBLIC}\nmanifest_sha256={hashes['manifest.toml']}\n"
        f"binary_sha256={hashes['lib/libhello.so']}\nsbom=s\nrisk_profile=r\n"
        "conformance.suite=suite\nconformance.passed=true\nconformance.checked_at=today\n"
        "conformance.check\tabi\ttrue\t\nconformance.check\tcwd\tfalse\tno\n"
        f"file\tlib/libhello.so\t{hashes['lib/libhello.so']}\nfile\tmanifest.toml\t{hashes['manifest.toml']}\n"
        f"file\tsbom.spdx.json\t{hashes['sbom.spdx.json']}\n"
        f"file\tskills/a/x\t{hashes['skills/a/x']}\nfile\tskills/a-b/x\t{hashes['skills/a-b/x']}\n"
    )


def test_what_upstream_can_verify_is_signed_as_upstream_does(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(SECRET)
    for place, text, files, form in (
        ("a", "", {"lib/words": "", "skills/x": ""}, UPSTREAM),
        ("b", NATIVE % "lib/x.so", {"lib/x.so": "elf"}, UPSTREAM),
        ("c", TOOL % "bin/hello", {"bin/hello": ""}, COMPLETE),
        ("d", TOOL % "tools/hello", {"tools/hello": ""}, COMPLETE),
    ):
        found = made(tree(tmp_path / place, text, files))
        signature = base64.b64encode(key.sign(payload(found, found.manifest.package, form))).decode()
        assert found.manifest.package.signature == signature
        assert verify(found).status == "verified"


def test_programs_are_signed_too(tmp_path: Path) -> None:
    # abi.md 11.19; issue: "is signed here too"
    found = made(full(tmp_path))
    text = payload(found, found.manifest.package, COMPLETE).decode()
    assert text.startswith("cortexfs-plugin-signature-v2\npublisher_id=example.dev\n")
    assert f"program\tbin/hello\t{found.files['bin/hello'].sha256}\n" in text
    assert f"file\tlib/words.txt\t{found.files['lib/words.txt'].sha256}\n" in text
    assert verify(changed(found, "bin/hello", b"evil", True)).status == "invalid"
    assert verify(changed(found, "bin/more", b"evil", True)).status == "invalid"
    # the signature also covers which files are programs
    assert verify(changed(found, "bin/part", b"x", False)).status == "invalid"


def test_an_old_signature_lends_itself_to_nothing_unsigned(tmp_path: Path) -> None:
    old = made(tree(tmp_path, "", {"lib/x": "1"}))
    assert verify(old).status == "verified"
    verdict = verify(changed(old, "bin/evil", b"evil", True))
    assert verdict.status == "invalid"
    assert verdict.why.endswith('it does not cover "bin/evil"; sign the plugin again')


def test_a_verdict_says_what_was_verified(tmp_path: Path) -> None:
    # abi.md 11.22
    plain = tree(tmp_path)
    assert (
        verify(plain).text
        == "unsigned (manifest hash missing; binary hash not applicable; signature missing)"
    )
    found = made(plain)
    fingerprint = signing.fingerprint_of(PUBLIC)
    assert verify(found).text == f"verified ed25519; publisher=example.dev; fingerprint={fingerprint}"
    hashed = msgspec.structs.replace(found.manifest.package, signature="")
    # "Why text e.g. `manifest hash verified; binary hash not applicable; signature missing`"
    why = "manifest hash verified; binary hash not applicable; signature missing"
    assert verify(signed(plain, hashed)).text == f"unsigned ({why})"


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        # "hash missing while signed, or mismatch -> Invalid"
        ("manifest_sha256", "", "manifest hash missing"),
        ("manifest_sha256", "0" * 64, "manifest hash mismatch"),
        ("binary_sha256", "0" * 64, "manifest hash verified; binary hash mismatch"),
        ("signature_algorithm", "rsa", 'signature algorithm "rsa" is unknown'),
        ("signature_algorithm", "", 'signature algorithm "" is unknown'),
        ("publisher_id", "", "publisher_id is missing"),
        ("publisher_id", "other.dev", "signature does not match the files"),
        ("public_key", "AAAA", "public key is not base64 of 32 bytes"),
        ("public_key", "A" * 43 + "=", "signature does not match the files"),
        ("signature", "AAAA", "signature is not base64 of 64 bytes"),
        ("signature", "\u00e9", "signature is not base64 of 64 bytes"),
        ("sbom", "x", "signature does not match the files"),
        ("sbom", "a\nb", "sbom holds a control character, which cannot be signed"),
        ("risk_profile", "x", "signature does not match the files"),
        ("conformance", Conformance("s"), "signature does not match the files"),
    ],
)
def test_metadata_that_differs_refuses(tmp_path: Path, field: str, value: Any, why: str) -> None:
    found = made(tree(tmp_path))
    package = msgspec.structs.replace(found.manifest.package, **{field: value})
    verdict = verify(signed(found, package))
    assert verdict.status == "invalid"
    assert why in verdict.text


def test_the_library_has_a_hash_of_its_own(tmp_path: Path) -> None:
    # abi.md 11.19
    found = made(tree(tmp_path / "a", NATIVE % "lib/b.so", {"lib/a.so": "a", "lib/b.so": "b"}))
    assert found.manifest.package.binary_sha256 == hashlib.sha256(b"b").hexdigest()
    unnamed = tree(tmp_path / "b", "", {"lib/a.so": "a", "lib/b.so": "b"})
    other = msgspec.structs.replace(sign(unnamed, SECRET), binary_sha256=hashlib.sha256(b"b").hexdigest())
    # whichever of the two libraries upstream met first, the hash is not the reason for the refusal
    assert "binary hash verified" in verify(signed(unnamed, other)).why
    without = msgspec.structs.replace(found.manifest.package, binary_sha256="")
    assert verify(signed(found, without)).text == "invalid (manifest hash verified; binary hash missing)"


def test_every_bit_of_the_metadata_counts(tmp_path: Path) -> None:
    # issue: "any flipped bit in any file, name or metadata refuses"
    found = made(full(tmp_path))
    data = found.files["package.toml"].data
    for bit in range(len(data) * 8):
        assert not _verifies(found, "package.toml", _flipped(data, bit)), data[bit // 8 :]


def test_every_file_and_every_name_counts(tmp_path: Path) -> None:
    found = made(full(tmp_path))
    for name, file in found.files.items():
        for bit in range(min(len(file.data) * 8, 400)):
            assert not _verifies(found, name, _flipped(file.data, bit), file.executable), name
        files = {each: file for each, file in found.files.items() if each != name}
        for bit in range(len(name.encode()) * 8):
            other = _flipped(name.encode(), bit).decode("latin-1")
            if "manifest.toml" in files:
                assert verify(PackageFiles({**files, other: file}, found.manifest)).status != "verified", (
                    other
                )
        if name not in ("manifest.toml", "package.toml"):
            assert verify(PackageFiles(files, found.manifest)).status == "invalid", name


def _flipped(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes((data[bit // 8] ^ (1 << bit % 8),)) + data[bit // 8 + 1 :]


def _verifies(found: PackageFiles, name: str, data: bytes, executable: bool = False) -> bool:
    try:
        return verify(changed(found, name, data, executable)).status == "verified"
    except Fault:
        return False


def test_any_bit_of_a_package_refuses_or_changes_nothing(tmp_path: Path) -> None:
    """Only gzip's own fields in a .cpx (time, system, unused bits) can differ so that it still unpacks."""
    found = made(full(tmp_path))
    data = package.pack(found)
    same = 0
    for bit in random.Random(7).sample(range(len(data) * 8), 600):
        try:
            other = package.unpack(_flipped(data, bit), "x.cpx")
        except Fault:
            continue
        assert other == found
        same += 1
    assert same < 60


def test_a_round_trip(tmp_path: Path) -> None:
    # issue: "a package signed here verifies after a round trip through pack, sha256sum and install"
    where = plugin(tmp_path / "hello", TOOL % "bin/hello", {"bin/hello": "#!/bin/sh\n", "lib/x": "1"})
    signing.write_package(where, sign(package.read(where), SECRET, "example.dev"))
    found = package.read(where)
    (tmp_path / "hello.cpx").write_bytes(package.pack(found))
    (tmp_path / "sums").write_text(package.checksum(package.pack(found), "hello.cpx"))
    subprocess.run(["sha256sum", "-c", "--quiet", "sums"], cwd=tmp_path, check=True)
    unpacked = package.unpack((tmp_path / "hello.cpx").read_bytes(), "hello.cpx")
    place = install.install(tmp_path / "plugins", "hello", unpacked.files)
    assert package.read(place) == found
    assert verify(package.read(place)).status == "verified"
    # signatures are checked at load, not only at install
    (place / "bin" / "hello").write_text("evil")
    assert verify(package.read(place)).status == "invalid"


def test_metadata_is_written_as_toml(tmp_path: Path) -> None:
    certificate = Conformance(
        "s", True, "t", (CertificationCheck("a", True, "m"), CertificationCheck("b\u2027\"'\\ ü", False))
    )
    made = Package("p", "m", "b", "ed25519", "k", "s", "sbom", "risk\x7f", certificate)
    parsed = manifests.parse(b'name="n"\nversion="1"\ndescription=""', signing.encode_package(made)).package
    assert parsed == made


def test_the_publisher_is_known_before_signing(tmp_path: Path) -> None:
    # abi.md 11.21
    found = tree(tmp_path)
    named = msgspec.structs.replace(found.manifest, package=Package(publisher_id="old.dev"))
    nobody = msgspec.structs.replace(found.manifest, author=" ")
    assert sign(found, SECRET, "new.dev").publisher_id == "new.dev"
    assert sign(PackageFiles(found.files, named), SECRET, "new.dev").publisher_id == "new.dev"
    assert sign(PackageFiles(found.files, named), SECRET).publisher_id == "old.dev"
    assert sign(found, SECRET).publisher_id == "Ann"
    with pytest.raises(Fault, match=r"^EINVAL: publisher_id is required before signing; "):
        sign(PackageFiles(found.files, nobody), SECRET)
    # abi.md 11.19
    for publisher in ("a\nb", "a\tb", "a\u2028b"):
        with pytest.raises(Fault, match="publisher_id holds a control character"):
            sign(found, SECRET, publisher)


def test_a_key_is_32_raw_bytes_and_its_owners(tmp_path: Path) -> None:
    # abi.md 11.20
    path = tmp_path / "key"
    modes: list[int] = []
    real = os.open

    def watched(name: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        modes.append(mode)
        return real(name, flags, mode, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        before = os.umask(0)
        try:
            key = signing.keygen(path)
        finally:
            os.umask(before)
    assert modes[0] == 0o600
    assert (path.stat().st_mode & 0o777, path.stat().st_size) == (0o600, 32)
    assert len(base64.b64decode(key)) == 32
    assert sign(tree(tmp_path / "p"), read_key(path)).public_key == key
    # "refuses to overwrite: `signing key already exists: P`"
    kept = path.read_bytes()
    with pytest.raises(Fault, match=f"signing key already exists: {path}; "):
        signing.keygen(path)
    assert path.read_bytes() == kept
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Fault, match="already exists"):
        signing.keygen(tmp_path / "link")


@pytest.mark.parametrize("size", [0, 31, 33, 64, 100])
def test_a_key_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(bytes(size))
    path.chmod(0o600)
    with pytest.raises(Fault, match=f"ed25519 signing key must be 32 raw bytes, got {size}"):
        read_key(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o611])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    path.chmod(mode)
    with pytest.raises(Fault, match=f"^EACCES: .* is open to others \\(mode {mode:04o}\\)"):
        read_key(path)
    with pytest.raises(Fault, match=r"^ENOENT: "):
        read_key(tmp_path / "none")


def test_without_the_library_the_mend_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = made(tree(tmp_path))
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    for attempt in (
        lambda: verify(found),
        lambda: sign(found, SECRET),
        lambda: signing.keygen(tmp_path / "k"),
    ):
        with pytest.raises(Fault, match=r"pip install 'cortexfs\[plugins\]'"):
            attempt()
    assert not (tmp_path / "k").exists()


def test_the_library_is_loaded_only_when_it_is_used() -> None:
    code = "import sys, cortexfs.plugins.trust.signing as _, cortexfs.plugins.trust.trust as _"
    code += "; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
