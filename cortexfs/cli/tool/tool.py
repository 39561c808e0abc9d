"""`ctx tool`: scripts that are tools, each one executable file with a comment at its top (docs/tools.md).

    ctx tool add ./greet.sh      live, in the user's home of the mount; by root a copy, for all
    ctx tool list
    ctx tool rm greet

Rules: a user's own tool is made as a file of the mount, which every user can do by hand. A tool for all is a
plugin of one file, so it is kept, copied, enabled and removed as plugins are.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from cortexfs.cli import mounts, objects, output, parser, reload
from cortexfs.cli.agent import own
from cortexfs.cli.parser import JSON, MOUNTED, Command, arg, flag
from cortexfs.core import names
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault, naming, os_faults
from cortexfs.version import SCRIPT_VERSION

if TYPE_CHECKING:
    from cortexfs.core.manifest import script

CLASS = "tool"
PROTOCOL = "argv"
MAX_FILE = 16 << 20
SCRIPT = "script"  # the control of a user's own script
SHOWN = (SCRIPT, "description", "schema", "status")


def add(options: argparse.Namespace) -> int:
    import msgspec  # slow imports that listing tools does not need

    from cortexfs.core.manifest import own_script, script
    from cortexfs.state import script_files

    path = os.path.realpath(options.script)
    if os.getuid() == 0 and not options.home:
        return _add_for_all(options, path)
    header = script_files.header(path)
    with naming(path):
        declaration = script.parsed(header)
    name = _name(options, path, declaration)
    root = mounts.answering(options.root)
    place = f"{root}/{own.path_of(name, CLASS)}"
    text = own_script.OwnScript(path, header).text
    if own.has(root, name, CLASS):
        own.write(f"{place}.d/{SCRIPT}", text)
    else:
        own.make(root, name, {SCRIPT: text}, CLASS)
    schema = msgspec.json.encode(declaration.schema).decode()
    status = _wait_until_shown(place, [text, f"{declaration.description}\n", f"{schema}\n", "ready\n"])
    output.say(f"made {own.path_of(name, CLASS)}; each call runs {path} as it is at that time; {status}")
    return EXIT_OK if status == "ready" else EXIT_FAILED


def _name(options: argparse.Namespace, path: str, declaration: script.Script) -> str:
    name = names.check_new(options.name or declaration.name or names.clean(Path(path).stem))
    return names.check_object(CLASS, name)


def _wait_until_shown(place: str, expected: list[str]) -> str:
    """Wait until the daemon shows the wanted texts, or another script. Returns the tool's status."""
    reload.until(lambda: (texts := _texts(place)) == expected or texts[0] != expected[0])
    return _texts(place)[-1].rstrip("\n")


def _texts(place: str) -> list[str]:
    with os_faults(f"{place}.d cannot be read"):
        return [Path(f"{place}.d/{name}").read_text() for name in SHOWN]


def _add_for_all(options: argparse.Namespace, path: str) -> int:
    # Imports what checks and keeps plugins, for these tools alone.
    import msgspec

    from cortexfs.cli.plugin.install import install
    from cortexfs.core import tomltext
    from cortexfs.core.manifest import governance, script, toml
    from cortexfs.plugins.install import sources
    from cortexfs.plugins.package import directory, manifests, package

    data = directory.bounded(Path(path), MAX_FILE)
    if len(data) > MAX_FILE:
        raise Fault("EMSGSIZE", f"{path} is over {MAX_FILE >> 20} MiB, too large for a script")
    with naming(path):
        declaration = script.parsed(script.header_of(data))
    name = _name(options, path, declaration)
    if not options.replace and (holder := _holder(options.root, name) or _plugin(options, name)):
        raise Fault("EEXIST", f"there is {holder}; choose another name with --name")
    about = {"name": name, "description": declaration.description}
    tool = {
        "command": f"bin/{name}",
        "input_schema": declaration.schema,
        "timeout_secs": declaration.timeout,
        "effects": msgspec.to_builtins(declaration.effects),
    }
    table = {
        "version": SCRIPT_VERSION,
        "cortex_version": governance.HOST_VERSION,
        "capabilities": {"provides": ["tools"]},
        "native": {"protocol": PROTOCOL, "tools": [about | tool]},
    }
    text = "\n".join(tomltext.lines(about | table)).encode()
    files = {toml.FILE: package.File(text), f"bin/{name}": package.File(data, executable=True)}
    options.yes, options.private = True, ""
    tree = package.PackageFiles(files, manifests.parse(text))
    return install.keep_and_enable(options, sources.PluginSource(tree, packaged=False, told=path))


def _holder(root_option: str | None, name: str) -> str:
    """Returns the system's tool of this name, if it is no script; empty without a mount."""
    if not (root := mounts.if_answering(root_option)):
        return ""
    row = objects.row_of(root, f"{root}/{CLASS}/{name}")
    is_free = row.status == "unreadable" or row.origin.endswith(SCRIPT_VERSION)
    return "" if is_free else f"{CLASS}/{name} already, of {row.origin}"


def _plugin(options: argparse.Namespace, name: str) -> str:
    """Returns the installed plugin of this name, if it is no script: its files would be replaced."""
    from cortexfs.cli.daemons import places_of
    from cortexfs.plugins.package import directory
    from cortexfs.plugins.trust import succession

    before = succession.installed(places_of(options).state / directory.FOLDER / name)
    return f"a plugin {name} {before.version} already" if before and not before.is_script else ""


def listing(options: argparse.Namespace) -> None:
    rows = added(mounts.answering(options.root))
    output.print_rows(options.json, [row._asdict() for row in rows], objects.ObjectRow._fields, rows)


def added(root: str) -> list[objects.ObjectRow]:
    """Returns the tools that are scripts: the user's own, and the system's."""
    rows = objects.rows(root, objects.paths_of(root, CLASS))
    return [
        row for row in rows if row.origin.startswith("script:") or row.origin.endswith(f"@{SCRIPT_VERSION}")
    ]


def remove(options: argparse.Namespace) -> None:
    root = mounts.answering(options.root)
    name = options.name.removeprefix(f"home/{os.getuid()}/").removeprefix(f"{CLASS}/")
    scripts = {row.object: objects.bare(row.object) for row in added(root)}
    if own.path_of(name, CLASS) in scripts:
        own.remove(root, name, CLASS)
        return output.say(f"removed {own.path_of(name, CLASS)}; its script stays where it lies")
    if f"{CLASS}/{name}" not in scripts:
        hint = parser.nearest(name, scripts.values()) or "; see: ctx tool list"
        raise Fault("ENOENT", f"there is no script {name!r} to remove{hint}")
    mount = mounts.mounted_at(root)
    if mount and os.getuid() not in (0, mount.owner):
        raise Fault("EPERM", f"{CLASS}/{name} is a tool of all users; uid {mount.owner} can remove it")
    from cortexfs.cli.plugin.install import install

    options.name, options.purge = name, True
    install.uninstall(options)


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
                    flag("--home", "for root: make it live and for root alone, as other users' scripts"),
                    flag("--replace", "let a copy replace another publisher's, and take others' names"),
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
