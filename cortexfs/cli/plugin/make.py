"""`ctx plugin new`, `keygen`, `sign` and `pack`: the commands of an author and of a publisher.

Rules: a template is a folder of `templates`, and `ctx plugin test --run` passes it unchanged. In its texts
and paths, @NAME@ stands for the plugin's name, and @WORD@ for that name as an identifier. @HOST@ is the
version of this host, and @INCLUDE@ the folder of its C header. Files below bin/ are programs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import cortexfs
from cortexfs.cli import output
from cortexfs.core import names
from cortexfs.core.errors import Fault
from cortexfs.core.manifest.governance import HOST_VERSION
from cortexfs.core.manifestjson import FILE as JSON_FILE
from cortexfs.plugins.install import install
from cortexfs.plugins.package import manifests, package
from cortexfs.plugins.package.package import File
from cortexfs.plugins.trust import signing

_TEMPLATES = Path(__file__).parent / "templates"
_END = ".in"  # of each file's name, as no tool may take it for a program or a manifest


def new(options: argparse.Namespace) -> None:
    name = names.check_new(names.check(options.name))
    folder = Path(options.directory or f"cortex-plugin-{name}")
    if os.path.lexists(folder):
        raise Fault("EEXIST", f"{folder} is there already; name another directory")
    files = _files(options.template, name)
    if written := files.get(JSON_FILE):
        manifests.parse_json(written.data)  # its names have stricter rules
    install.write(folder, files)
    builds = {"native": f"make -C {folder} && ", "rust": f"(cd {folder} && cargo build --release) && "}
    first = builds.get(options.template, "")
    output.say(f"made {folder}; next: {first}ctx plugin test {folder} --run")


def _files(template: str, name: str) -> dict[str, File]:
    words = {
        "@NAME@": name,
        "@WORD@": "".join(letter if letter.isalnum() else "_" for letter in name),
        "@HOST@": HOST_VERSION,
        "@INCLUDE@": str(Path(cortexfs.__path__[0]) / "include"),
    }

    def fill(text: str) -> str:
        for mark, value in words.items():
            text = text.replace(mark, value)
        return text

    found = {}
    for source in (_TEMPLATES / template).rglob(f"*{_END}"):
        path = fill(str(source.relative_to(_TEMPLATES / template)).removesuffix(_END))
        found[path] = File(fill(source.read_text()).encode(), path.startswith("bin/"))
    return found


def keygen(options: argparse.Namespace) -> None:
    path = Path(options.file)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    public = signing.keygen(path)
    output.say(f"Created signing key: {path}")
    output.say(f"Public key: {public}")
    output.say(f"Public key SHA-256: {signing.fingerprint_of(public)}")


def sign(options: argparse.Namespace) -> None:
    folder = Path(options.directory)
    tree, key = package.read(folder), Path(options.key)
    if key.resolve() in {(folder / name).resolve() for name in tree.files}:
        raise Fault("EINVAL", f"{key} would be published with the plugin; move it out of {folder}")
    metadata = signing.sign(tree, signing.read_key(key), options.publisher)
    signing.write_package(folder, metadata)
    verdict = signing.verify(signing.signed(tree, metadata))
    output.say(f"signed {tree.manifest.name} {tree.manifest.version}: {verdict.text}")


def pack(options: argparse.Namespace) -> None:
    """As upstream does, names the package after the directory, and writes it into the current directory."""
    folder = Path(options.directory)
    tree = package.read(folder)
    out = Path(options.out or package.archive_name(folder.resolve().name, tree.manifest))
    place, top = out.resolve().parent, folder.resolve()
    if place.is_relative_to(top) and (place != top or manifests.is_json(tree.manifest)):
        mend = f"write it elsewhere, as: ctx plugin pack {folder} {top.parent / out.name}"
        raise Fault("EINVAL", f"{out} would become a file of the plugin itself; {mend}")
    data = package.pack(tree)
    package.unpack(data, str(out))  # a package that cannot be installed is not written
    out.write_bytes(data)
    output.say(f"packed {len(tree.files)} files into {out}; {signing.verify(tree).text}")
    print(package.checksum(data, out.name), end="")
