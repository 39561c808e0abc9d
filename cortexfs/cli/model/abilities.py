"""`ctx provider abilities`: the table of models' abilities, for providers that do not list them.

Rules: nothing is fetched unless --renew names an address. A running daemon follows.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from cortexfs.cli import output, progress, reload
from cortexfs.cli.model import own
from cortexfs.cli.model.provider import ProviderFolder
from cortexfs.core.errors import Fault, os_faults
from cortexfs.models.providers import abilities
from cortexfs.models.providers.abilities import MAX_SOURCE, AbilityTable
from cortexfs.state import directories

SECONDS = 300.0


def run(options: argparse.Namespace) -> None:
    place = ProviderFolder(options)
    if options.renew:
        return _renew(options, place)
    table = place.providers.abilities.table()
    if not table.models and not options.json:
        return output.say("there is no table; see: ctx provider abilities --help")
    part = (options.model or "").lower()
    rows = {name: known for name, known in sorted(table.models.items()) if part in name.lower()}
    if options.json:
        models = [{"model": name, "limit": known.limit, "cap": known.cap} for name, known in rows.items()]
        output.emit({"source": table.source, "time": table.time, "models": models})
    elif options.model:
        cells = [(name, str(known.limit or "unknown"), " ".join(known.cap)) for name, known in rows.items()]
        output.table(("model", "limit", "cap"), cells)
    else:
        print(_about(table))


def _renew(options: argparse.Namespace, place: ProviderFolder) -> None:
    if root := own.root_of(options.root):
        raise Fault("EACCES", f"the table of {root} is root's; let root renew it")
    with progress.shown(f"reading {options.renew}"):
        table = abilities.read(_source(options.renew), options.renew, time.time())
    directories.create(place.where)
    place.providers.abilities.keep(table)
    output.say(f"{_about(table)}; {reload.tell(options.root)}")


def _about(table: AbilityTable) -> str:
    when = time.strftime("%Y-%m-%d", time.localtime(table.time))
    return f"{len(table.models):,} models, of {table.source}, {when}"


def _source(source: str) -> bytes:
    if source.lower().startswith(("http://", "https://")):
        from cortexfs.net import web  # a slow import that only an address needs

        return web.download(source, MAX_SOURCE, SECONDS)
    path = Path(os.path.expanduser(source))
    with os_faults(f"{path} cannot be read"):
        if not path.is_file():
            raise Fault("EINVAL", f"{path} is no regular file; name litellm's list of models, or its wheel")
        with path.open("rb") as file:
            data = file.read(MAX_SOURCE + 1)
    if len(data) > MAX_SOURCE:
        raise Fault("EMSGSIZE", f"{path} is over {MAX_SOURCE >> 20} MiB, which no list of models is")
    return data
