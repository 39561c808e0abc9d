"""A signature as others see it: lines that a person can write down, and that another program verifies.

For abi.md 11.19 there is a test vector, which was not run against the original.
The vector's key is checked in test_signing.py; this file checks the key with its plugin.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from cortexfs.plugins.package import package
from cortexfs.plugins.trust.signing import sign, signed
from tests.shell.plugin_files import PUBLIC, SECRET

pytest.importorskip("cryptography")

MANIFEST = b"""\
name = "hello"
version = "0.1.0"
description = "Says hello"
cortex_version = "1.6.0"

[capabilities]
provides = ["skills"]
"""
MANIFEST_SHA256 = "02131bbf205d4b798d3492591f8ba99f5d20f6c3f3fd64f61b7e6e0afd52f8e5"
PAYLOAD = f"""\
cortex-plugin-signature-v1
publisher_id=example.dev
algorithm=ed25519
public_key={PUBLIC}
manifest_sha256={MANIFEST_SHA256}
binary_sha256=
sbom=
risk_profile=
file\tmanifest.toml\t{MANIFEST_SHA256}
""".encode()
SIGNATURE = "2hBtNPkwwC+jcHIVqk7RxoOyHpZwNPLvxqjDWudV74wB5t+I5uQzgkUt3wxYn86pXeBNRJjel+zbOB2dCgrADg=="


@pytest.fixture
def metadata(tmp_path: Path) -> dict[str, str]:
    """The package.toml of the plugin, signed by the vector's key."""
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "manifest.toml").write_bytes(MANIFEST)
    tree = package.read(folder)
    files = signed(tree, sign(tree, SECRET, "example.dev")).files
    return tomllib.loads(files["package.toml"].data.decode())


def test_a_vector_with_its_plugin(metadata: dict[str, str]) -> None:
    # abi.md 11.19
    assert hashlib.sha256(MANIFEST).hexdigest() == MANIFEST_SHA256 == metadata["manifest_sha256"]
    assert metadata["public_key"] == PUBLIC
    assert metadata["signature"] == SIGNATURE


@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl to hold it against")
def test_another_program_verifies_it(metadata: dict[str, str], tmp_path: Path) -> None:
    # RFC 8410: a public key of Ed25519 is these twelve bytes and its own 32
    key = bytes.fromhex("302a300506032b6570032100") + base64.b64decode(PUBLIC)
    for name, data in {
        "key": key,
        "payload": PAYLOAD,
        "signature": base64.b64decode(metadata["signature"]),
        "other": PAYLOAD.replace(b"sbom=", b"sbom=x"),
    }.items():
        (tmp_path / name).write_bytes(data)
    assert _verified(tmp_path, "payload")
    assert not _verified(tmp_path, "other")


def _verified(where: Path, payload: str) -> bool:
    words = ["openssl", "pkeyutl", "-verify", "-pubin", "-keyform", "DER", "-inkey", "key", "-rawin"]
    files = ["-in", payload, "-sigfile", "signature"]
    done = subprocess.run([*words, *files], cwd=where, capture_output=True, check=False)
    return done.returncode == 0
