"""`ctx plugin new`, `keygen`, `sign` and `pack`: the commands of an author and of a publisher."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import cortexfs
from cortexfs.cli import output
from cortexfs.core import names
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.plugins.install import install
from cortexfs.plugins.package import package, templates
from cortexfs.plugins.trust import signing


def new(options: argparse.Namespace) -> int:
    name = names.check(options.name)
    folder = Path(options.directory or f"cortex-plugin-{name}")
    if os.path.lexists(folder):
        raise Fault("EEXIST", f"{folder} is there already; name another directory")
    include = Path(cortexfs.__path__[0]) / "include"
    install.write(folder, templates.files(options.template, name, str(include)))
    builds = {"native": f"make -C {folder} && ", "rust": f"(cd {folder} && cargo build --release) && "}
    first = builds.get(options.template, "")
    output.say(f"made {folder}; next: {first}ctx plugin test {folder} --run")
    return EXIT_OK


def keygen(options: argparse.Namespace) -> int:
    path = Path(options.file)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = signing.keygen(path)
    output.say(f"Created signing key: {path}")
    output.say(f"Public key: {key.public_key}")
    output.say(f"Public key SHA-256: {key.fingerprint}")
    return EXIT_OK


def sign(options: argparse.Namespace) -> int:
    folder = Path(options.directory)
    tree = package.read(folder)
    metadata = signing.sign(tree, signing.read_key(Path(options.key)), options.publisher)
    signing.write_package(folder, metadata)
    verdict = signing.verify(signing.signed(tree, metadata))
    output.say(f"signed {tree.manifest.name} {tree.manifest.version}: {verdict.text}")
    return EXIT_OK


def pack(options: argparse.Namespace) -> int:
    """As upstream does, names the package after the directory, and writes it into the current directory."""
    folder = Path(options.directory)
    tree = package.read(folder)
    out = Path(options.out or package.archive_name(folder.resolve().name, tree.manifest))
    data = package.pack(tree)
    package.unpack(data, str(out))  # a package that cannot be installed is not written
    out.write_bytes(data)
    output.say(f"packed {len(tree.files)} files into {out}; {signing.verify(tree).text}")
    print(package.checksum(data, out.name), end="")
    return EXIT_OK
