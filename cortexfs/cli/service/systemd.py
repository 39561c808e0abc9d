"""systemd: the units of a mount and of its page as text, and commands through the program systemctl.

Rules: the mount's unit has no setting that gives it a mount namespace (systemd.exec(5): Private*, Protect*,
Read*Paths, BindPaths and others), as then no other process would see its mount. It has no filter of system
calls and no no_new_privs: tools, in hosts below the daemon, would inherit them, and fusermount3 is setuid. A
client's unit, which calls the mount, has no filter either, or the daemon would refuse it (abi.md 4.41, 4.42).
This file must never know which units are installed.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from cortexfs.cli.daemons import RunningDaemon
from cortexfs.core.errors import Fault

WATCHDOG_SECONDS = 60
MOUNT, PAGE = "cortexfs", "cortexfs-web"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:=@,")
_UNIT = re.compile(rf"(?m)^(?:0:|\d+:name=systemd):(.*/{MOUNT}\.service)(?:/|$)")


class ServiceUnit(NamedTuple):
    name: str
    text: str


def mount_unit(program: str, root: str, state: str, config: str, *, system: bool) -> ServiceUnit:
    words = (program, "mount", root, "--foreground", "--state", state, "--config", config)
    after = "After=local-fs.target\n" if system else ""
    text = f"""[Unit]
Description=CortexFS at {_escaped(root)}
Documentation=man:ctx(1) man:ctx(7)
{after}
[Service]
Type=notify
NotifyAccess=main
ExecStart={command(words)}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=2
TimeoutStartSec=120
TimeoutStopSec=20
WatchdogSec={WATCHDOG_SECONDS}
# Hosts are counted by control groups of their own, and one that takes too much memory ends alone.
Delegate=yes
OOMPolicy=continue
# By default one user's processes could take the share of all. [limits] of config.toml bounds each user's.
TasksMax=infinity
KillMode=mixed
UMask=0022

[Install]
WantedBy={"multi-user.target" if system else "default.target"}
"""
    return ServiceUnit(f"{MOUNT}.service", text)


def page_unit(program: str, root: str, *, system: bool) -> ServiceUnit:
    text = f"""[Unit]
Description=The page of CortexFS at {_escaped(root)}
Documentation=man:ctx-web(1)
After={MOUNT}.service
Requires={MOUNT}.service

[Service]
ExecStart={command((program, "--root", root, "web", "--no-browser"))}
Restart=on-failure
RestartSec=2
NoNewPrivileges=yes
UMask=0077

[Install]
WantedBy={"multi-user.target" if system else "default.target"}
"""
    return ServiceUnit(f"{PAGE}.service", text)


def command(words: Sequence[str]) -> str:
    """Returns a command line as systemd.service(5) reads it."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word and set(word) <= _PLAIN:
        return word
    inner = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("$", "$$")
    return f'"{_escaped(inner)}"'


def _escaped(text: str) -> str:
    """Returns `text` without specifiers, and on one line."""
    return text.replace("%", "%%").replace("\n", "\\n")


def tell(system: bool, *words: str) -> str:
    """Returns the output of systemctl. Raises EHOSTDOWN if it fails."""
    command = ["systemctl", "--system" if system else "--user", "--no-pager", *words]
    environ = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ}  # after su, it is not set
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environ, check=False
    )
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise Fault("EHOSTDOWN", f"systemctl {' '.join(words)} failed: {message}; see: journalctl -u {MOUNT}")
    return done.stdout


def keeps(daemon: RunningDaemon) -> bool | None:
    """Returns True if the daemon is that of the machine's unit, False for a user's unit, None for neither. A
    process that a tool started is in the unit's control group too, but does not count."""
    if not (unit := _UNIT.search(daemon.groups)):
        return None
    system = "/user@" not in unit[1]
    with suppress(Fault, OSError):  # there may be no systemd to ask
        output = tell(system, "show", "--property=MainPID", "--value", MOUNT)
        return system if output.strip() == str(daemon.process.pid) else None
    return None
