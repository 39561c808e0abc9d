"""`ctx plugin new`: a plugin that works, to begin with."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import cortexfs
from cortexfs.cli import output
from cortexfs.core import names
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.plugins.install import install
from cortexfs.plugins.package import templates
from cortexfs.state import directories


def new(options: argparse.Namespace, where: directories.Places) -> int:
    del where
    name = names.check(options.name)
    folder = Path(options.directory or f"cortex-plugin-{name}")
    if os.path.lexists(folder):
        raise Fault("EEXIST", f"{folder} is there already; name another directory")
    include = Path(cortexfs.__path__[0]) / "include"
    install.write(folder, templates.files(options.template, name, str(include)))
    first = f"make -C {folder} && " if options.template == "native" else ""
    output.say(f"made {folder}; next: {first}ctx plugin test {folder} --run")
    return EXIT_OK
