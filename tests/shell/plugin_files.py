"""Plugins for tests: directories, trees and archives, sound and hostile."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

from cortexfs.plugins.package import package
from cortexfs.plugins.package.package import PackageFiles

# A signing key of 32 bytes, and the key that verifies its signatures.
SECRET = bytes(range(32))
PUBLIC = "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="
MANIFEST = """\
name = "hello"
version = "0.1.0"
description = "Says hello"
author = "Ann"
cortex_version = "1.6.0"
"""
TOOL = (
    '[capabilities]\nprovides = ["tools"]\n'
    '[[native.tools]]\nname = "hello"\ndescription = "Says hello"\ncommand = "%s"\ninput_schema = {}\n'
)
NATIVE = (
    'trust = "trusted_native"\n[capabilities]\nprovides = ["tools"]\n'
    '[native]\nisolation = "trusted_in_process"\nabi_version = 1\nlibrary = "%s"\n'
)


def plugin(where: Path, text: str = "", files: dict[str, str] | None = None) -> Path:
    """Create a plugin directory; files under bin/ are programs."""
    for name, content in {"manifest.toml": MANIFEST + text, **(files or {})}.items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755 if "bin" in path.parts else 0o644)
    return where


def tree(where: Path, text: str = "", files: dict[str, str] | None = None) -> PackageFiles:
    return package.read(plugin(where, text, files))


def full(where: Path) -> PackageFiles:
    """Create a process plugin with files of every kind."""
    files = {
        "bin/hello": "#!/bin/sh\necho '\"hello\"'\n",
        "bin/part": "x",
        "lib/words.txt": "hello",
        "skills/a/x.md": "a",
        "skills/a-b/x.md": "b",
        "prompts/p.md": "p",
        "risk.toml": "",
    }
    return tree(where, TOOL % "bin/hello", files)


def member(
    name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, mode: int = 0o644
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode = kind, len(data), mode
    return info, data


def tar(
    *members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT, manifest: str = MANIFEST
) -> bytes:
    """Returns an unpacked archive that begins with a valid manifest, unless `manifest` is empty."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        for info, data in ([member("manifest.toml", manifest.encode())] if manifest else []) + list(members):
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def cpx(
    *members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.GNU_FORMAT, manifest: str = MANIFEST
) -> bytes:
    return gzip.compress(tar(*members, form=form, manifest=manifest))


def summed(data: bytes, at: int) -> bytes:
    """Returns the data with the right checksum in the header at `at`."""
    header = bytearray(data[at : at + 512])
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return data[:at] + bytes(header) + data[at + 512 :]
