"""`ctx tool`: scripts that are tools, each one executable file with a comment at its top (docs/tools.md).

    ctx tool add ./greet.sh      live, in one's own home of the mount; by root a copy, for all
    ctx tool list
    ctx tool rm greet

Rules: one's own is made as a file of the mount, which every user can do by hand. One for all is a plugin of
one file, so it is kept, copied, enabled and removed as plugins are.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cortexfs.cli import mounts, objects, output, parser, reload
from cortexfs.cli.agent import own
from cortexfs.cli.daemons import places_of
from cortexfs.cli.parser import JSON, MOUNTED, Command, arg, flag
from cortexfs.core import names
from cortexfs.core.errors import EXIT_OK, Fault, os_faults
from cortexfs.core.manifest import own_script, script
from cortexfs.state import script_files

CLASS = "tool"
HEADS = ("name", "status", "script", "description")
PROTOCOL = "argv"
MAX_FILE = 16 << 20


def add(options: argparse.Namespace) -> int:
    path = os.path.realpath(options.script)
    if os.getuid() == 0 and not options.home:
        return _add_for_all(options, path)
    header = script_files.header(path)
    said = script.parsed(header)
    name = _name(options, path, said)
    root = mounts.answering(options.root)
    place = f"{root}/{own.path_of(name, CLASS)}"
    if not (there := own.has(root, name, CLASS)):
        own.create(root, name, CLASS)
    try:
        own.write(f"{place}.d/{own_script.CONTROL}", own_script.OwnScript(path, header).text)
    except OSError as problem:
        if not there:
            os.unlink(place)
        raise own.refused(own_script.CONTROL, problem) from None
    status = _settled(place, said.description)
    output.say(f"made {own.path_of(name, CLASS)}, as {path} is at each call; {status}")
    return EXIT_OK


def _name(options: argparse.Namespace, path: str, said: script.Script) -> str:
    return names.check_object(CLASS, options.name or said.name or names.clean(Path(path).stem))


def _settled(place: str, description: str) -> str:
    """Wait until the daemon shows it; its status."""
    end = time.monotonic() + reload.RELOAD_SECONDS
    while True:
        with os_faults(f"{place}.d cannot be read"):
            shown = [Path(f"{place}.d/{name}").read_text().rstrip("\n") for name in ("description", "status")]
        if shown[0] == description or time.monotonic() > end:
            return shown[1]
        time.sleep(reload.POLL_SECONDS)


def _add_for_all(options: argparse.Namespace, path: str) -> int:
    from cortexfs.cli.plugin.install import (
        install,
    )  # what checks and keeps plugins is imported for them alone
    from cortexfs.core import tomltext
    from cortexfs.core.manifest import governance, toml
    from cortexfs.plugins.install import sources
    from cortexfs.plugins.package import manifests, package

    data = sources.bounded(Path(path), MAX_FILE)
    if len(data) > MAX_FILE:
        raise Fault("EMSGSIZE", f"{path} is over {MAX_FILE >> 20} MiB, which no script is")
    said = script.parsed(script.header_of(data))
    name = _name(options, path, said)
    command = f"bin/{name}"
    tool = {
        "name": name,
        "description": said.description,
        "command": command,
        "input_schema": said.schema,
        "timeout_secs": said.timeout,
        "effects": [{field: getattr(one, field) for field in one.__struct_fields__} for one in said.effects],
    }
    manifest = tomltext.lines(
        {
            "name": name,
            "version": "1.0.0",
            "description": said.description,
            "cortex_version": governance.HOST_VERSION,
            "capabilities": {"provides": ["tools"]},
            "native": {"protocol": PROTOCOL, "tools": [tool]},
        }
    )
    text = "".join(f"{line}\n" for line in manifest).encode()
    files = {toml.FILE: package.File(text), command: package.File(data, executable=True)}
    tree = package.PackageFiles(files, manifests.parse(text))
    options.yes, options.private = True, ""
    return install.installed(options, sources.PluginSource(tree, packaged=False, told=path))


def listing(options: argparse.Namespace) -> int:
    rows = [*_own(mounts.answering(options.root)), *_for_all(places_of(options).state)]
    if options.json:
        output.emit(rows)
    else:
        output.table(HEADS, [tuple(row[head] for head in HEADS) for row in rows])
    return EXIT_OK


def _own(root: str) -> Iterator[dict[str, Any]]:
    folder = f"{root}/home/{os.getuid()}/{CLASS}"
    for path in objects.paths_of(root, CLASS):
        if path.startswith(f"{folder}/") and not os.path.islink(path):
            row = objects.listed(root, path)
            with os_faults(f"{path}.d cannot be read"), open(f"{path}.d/{own_script.CONTROL}") as file:
                told = file.readline().rstrip("\n")
            yield {"name": row.object, "status": row.status, "script": told, "description": row.description}


def names_of(root: str, state: Path) -> list[str]:
    """The tools that `rm` can remove."""
    return [row["name"].rpartition("/")[2] for row in (*_own(root), *_for_all(state))]


def _for_all(state: Path) -> Iterator[dict[str, Any]]:
    """Those that are kept where this user may look."""
    from cortexfs.plugins.package import directory, records

    for folder in directory.folders(state / directory.FOLDER):
        if tool := _script_of(folder):
            told = f"a copy of {records.read(folder).source}"
            yield {
                "name": f"{CLASS}/{folder.name}",
                "status": "installed",
                "script": told,
                "description": tool,
            }


def _script_of(folder: Path) -> str | None:
    """The description of the script that such a plugin is; None for any other."""
    from cortexfs.plugins.package import directory, manifests

    manifest = directory.read(folder)
    if manifests.is_json(manifest) or manifest.native is None or manifest.native.protocol != PROTOCOL:
        return None
    return manifest.description


def remove(options: argparse.Namespace) -> int:
    root = mounts.answering(options.root)
    name = options.name.removeprefix(f"home/{os.getuid()}/").removeprefix(f"{CLASS}/")
    if own.has(root, name, CLASS):
        own.remove(root, name, CLASS)
        output.say(f"removed {own.path_of(name, CLASS)}; its script stays where it lies")
        return EXIT_OK
    from cortexfs.cli.plugin.install import install
    from cortexfs.plugins.package import directory

    there = {folder.name: folder for folder in directory.folders(places_of(options).state / directory.FOLDER)}
    if name not in there or _script_of(there[name]) is None:
        hint = parser.nearest(name, names_of(root, places_of(options).state)) or "; see: ctx tool list"
        raise Fault("ENOENT", f"there is no script {name!r} of yours to remove{hint}")
    options.name, options.purge = name, True
    return install.uninstall(options)


COMMANDS = {
    "tool": Command(
        verbs={
            "add": Command(
                add,
                (
                    *MOUNTED,
                    arg(
                        "script", "SCRIPT", "an executable file with a line `# tool: DESCRIPTION` at its top"
                    ),
                    arg("--name", "WORD", "the tool's name (default: its line `# name:`, else the file's)"),
                    flag("--home", "by root: live and for root alone, as those of other users are"),
                    flag(
                        "--replace", "let a copy take the place of another publisher's, and of others' names"
                    ),
                ),
                ("ctx tool add ./greet.sh", "sudo ctx tool add ./backup.py --name backup"),
                "make a script a tool: your own is live, and root's is copied for all",
            ),
            "list": Command(
                listing,
                (*MOUNTED, JSON),
                ("ctx tool list", "ctx tool list --json"),
                "list the scripts that are tools",
            ),
            "rm": Command(
                remove,
                (*MOUNTED, arg("name", "ADDED", "greet, or home/1000/tool/greet")),
                ("ctx tool rm greet",),
                "remove such a tool; your script stays",
            ),
        },
    )
}
