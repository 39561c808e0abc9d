"""`ctx service`: have systemd keep the mount, or its page, running.

Rules: without systemd nothing is written, and the error names a command to run instead. A unit that was not
made here is replaced only with --replace. Only units made here are removed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
from pathlib import Path

from cortexfs.cli import daemons, mounts, output
from cortexfs.cli.mount import umount
from cortexfs.cli.output import say
from cortexfs.cli.parser import JSON, MOUNTED, Command, arg, flag
from cortexfs.cli.service import systemd
from cortexfs.cli.service.systemd import MOUNT, PAGE, ServiceUnit
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault, os_faults
from cortexfs.run import shebang
from cortexfs.state import believed, directories, whole_files

HEADS = ("unit", "state", "begins")
BOOTED = "/run/systemd/system"  # sd_booted(3)
SYSTEM = Path("/etc/systemd/system")
MARK = "# Made by ctx service install, which replaces it; changes belong into: systemctl edit\n"


def install(options: argparse.Namespace) -> None:
    system = _is_system(options)
    units = _units(options, system)
    if options.print:
        for unit in units:
            print(unit.text, end="")
        return
    _needs_systemd(options, system)
    folder = _folder(system)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    for unit in units:
        path = folder / unit.name
        if path.exists() and not _is_ours(path) and not options.replace:
            raise Fault("EEXIST", f"ctx service did not make {path}; look at it, then say --replace")
        with os_faults(f"{path} cannot be written"):
            whole_files.replace(path, [MARK.encode(), unit.text.encode()], 0o644)
    systemd.tell(system, "daemon-reload")
    if not options.web:
        _take_over(_root(options))
    for unit in units:
        systemd.tell(system, "enable", "--now", unit.name)
        say(f"{unit.name} runs, and begins with {'the machine' if system else 'your session'}")
    if not system:
        say("to have it run without a login, let root run: loginctl enable-linger $USER")


def _take_over(root: str) -> None:
    """End a mount that was made by hand. Else the unit's daemon would find it there, and end at once."""
    found = mounts.mounted_at(root)
    daemon = daemons.of(found) if found and found.owner == os.getuid() else None
    if daemon:
        daemon.process.close()
        if systemd.keeps(daemon) is None:
            umount.run(argparse.Namespace(point=root, root=None))


def remove(options: argparse.Namespace) -> None:
    system = _is_system(options)
    names = [PAGE] if options.web else [PAGE, MOUNT]
    found = [path for name in names if _is_ours(path := _folder(system) / f"{name}.service")]
    if not found:
        raise Fault("ENOENT", f"no unit that ctx service install made is in {_folder(system)}")
    if _runs_here(system):
        for path in found:
            systemd.tell(system, "disable", "--now", path.name)
    for path in found:
        with os_faults(f"{path} cannot be removed"):
            path.unlink()
        say(f"removed {path}")
    if _runs_here(system):
        systemd.tell(system, "daemon-reload")


def status(options: argparse.Namespace) -> int:
    system = _is_system(options)
    found = []
    for name in (MOUNT, PAGE):
        path = _folder(system) / f"{name}.service"
        if path.exists():
            about = _properties(system, path.name)
            states = [about.get(key, "unknown") for key in ("ActiveState", "UnitFileState")]
            found.append((path.name, *states))
    rows = [dict(zip(HEADS, row, strict=True)) for row in found]
    nothing = f"no service of CortexFS is installed in {_folder(system)}; see: ctx service install --help"
    output.print_rows(options.json, rows, HEADS, rows, nothing)
    return EXIT_OK if found and all(state == "active" for _, state, _ in found) else EXIT_FAILED


def _units(options: argparse.Namespace, system: bool) -> list[ServiceUnit]:
    root = _root(options)
    program = shebang.program("ctx")
    if options.web:
        return [systemd.page_unit(program, root, system=system)]
    if not system:
        _check_point(root)
    where = daemons.places_of(options)
    return [systemd.mount_unit(program, root, str(where.state), str(where.config), system=system)]


def _root(options: argparse.Namespace) -> str:
    return mounts.absolute(options.root) if options.root else mounts.root(None)


def _check_point(root: str) -> None:
    """Refuse a place where this user's daemon cannot mount, such as that of root's mount."""
    found = mounts.mounted_at(root)
    if found and found.owner != os.getuid():
        why = f"{root} is the mount of {'root' if not found.owner else f'uid {found.owner}'}"
    elif not found and not os.access(root if os.path.lexists(root) else os.path.dirname(root), os.W_OK):
        why = f"{root} is not yours to mount on"
    else:
        return
    raise Fault("EACCES", f"{why}; name a directory of your own: ctx service install --root DIR")


def _is_system(options: argparse.Namespace) -> bool:
    """Returns True for the machine's systemd. Root uses it by default."""
    system: bool = options.system or (not options.user and os.geteuid() == 0)
    return system


def _needs_systemd(options: argparse.Namespace, system: bool) -> None:
    if system and os.geteuid() != 0:
        raise Fault("EPERM", "units of the machine are root's: run this as root, or say --user")
    if _runs_here(system):
        return
    program, root = shebang.program("ctx"), _root(options)
    words = (program, "--root", root, "web", "--no-browser") if options.web else (program, "mount", root)
    why = "no systemd runs here" if system else "no systemd of yours runs here"
    raise Fault(
        "EHOSTDOWN",
        f"{why}; at the start of {'the machine' if system else 'your session'}, run: {shlex.join(words)}",
    )


def _runs_here(system: bool) -> bool:
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    folder = BOOTED if system else os.path.join(runtime, "systemd")
    return os.path.isdir(folder) and shutil.which("systemctl") is not None


def _folder(system: bool) -> Path:
    if system:
        return SYSTEM
    where = directories.places(os.environ, os.getuid() or -1)  # in root's home, too
    return where.config.parent / "systemd/user"


def _is_ours(path: Path) -> bool:
    data = believed.content_of(path, 1 << 20, "unit")
    return data is not None and data.startswith(MARK.encode())


def _properties(system: bool, name: str) -> dict[str, str]:
    if not _runs_here(system):
        return {}
    text = systemd.tell(system, "show", "--property=ActiveState,UnitFileState", name)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


_WHOSE = (
    flag("--user", "use your own systemd, without root"),
    flag("--system", "use the machine's systemd (the default of root)"),
)
_WEB = arg("web", "web", "the page of the mount (ctx web) in place of the mount", nargs="?", choices=("web",))
COMMANDS = {
    "service": Command(
        verbs={
            "install": Command(
                install,
                (
                    _WEB,
                    *_WHOSE,
                    *MOUNTED,
                    flag("--print", "print the unit, and write nothing"),
                    flag("--replace", "replace a unit of that name that ctx service did not make"),
                ),
                ("ctx service install", "ctx service install --user web", "ctx service install --print"),
                "have systemd mount it now and each time it begins",
            ),
            "status": Command(
                status, (*_WHOSE, JSON), ("ctx service status",), "say what is installed and runs"
            ),
            "remove": Command(
                remove,
                (_WEB, *_WHOSE),
                ("ctx service remove", "ctx service remove web"),
                "end and remove what was installed",
            ),
        },
    ),
}
