"""`ctx plugin keygen`, `sign` and `pack`: what a publisher does with a plugin."""

from __future__ import annotations

import argparse
from pathlib import Path

from cortexfs.cli import output
from cortexfs.core.errors import EXIT_OK
from cortexfs.plugins.package import package
from cortexfs.plugins.trust import signing
from cortexfs.state import directories


def keygen(options: argparse.Namespace, where: directories.Places) -> int:
    del where
    path = Path(options.file)
    key = signing.keygen(path)
    output.say(f"Created signing key: {path}")
    output.say(f"Public key: {key.public_key}")
    output.say(f"Public key SHA-256: {key.fingerprint}")
    return EXIT_OK


def sign(options: argparse.Namespace, where: directories.Places) -> int:
    del where
    folder = Path(options.directory)
    tree = package.read(folder)
    metadata = signing.sign(tree, signing.read_key(Path(options.key)), options.publisher)
    signing.write_package(folder, metadata)
    verdict = signing.verify(signing.signed(tree, metadata))
    output.say(f"signed {tree.manifest.name} {tree.manifest.version}: {verdict.text}")
    return EXIT_OK


def pack(options: argparse.Namespace, where: directories.Places) -> int:
    """Like upstream, the package is named after the directory and lies where the command is given."""
    del where
    folder = Path(options.directory)
    tree = package.read(folder)
    out = Path(options.out or package.archive_name(folder.resolve().name, tree.manifest))
    data = package.pack(tree)
    package.unpack(data, str(out))  # what nobody could install is not made
    out.write_bytes(data)
    output.say(f"packed {len(tree.files)} files into {out}; {signing.verify(tree).text}")
    print(package.checksum(data, out.name), end="")
    return EXIT_OK
