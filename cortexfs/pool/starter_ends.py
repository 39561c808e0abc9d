"""Begins the starter's process, and holds the daemon's ends of its channels.

Rules: it begins before the daemon opens anything, and before the daemon's modules are read. These take a
quarter of a second, in which starter and fork server read theirs. Nothing here imports trio or msgspec.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cortexfs.core.starter_command import STARTER, needed


class StarterEnds(NamedTuple):
    process: subprocess.Popen[bytes]
    control: socket.socket  # for core/starts.py
    looks: socket.socket  # for lookers


def begin(
    root: Path | None = None,
    state: Path | None = None,
    config: Path | None = None,
    engine: Sequence[str] = (),
) -> StarterEnds:
    """Start a starter. `engine` replaces the package's own command for engines."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    looks, their_looks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    options = ["--daemon", str(os.getpid())]
    options += ["--root", str(root)] if root else []
    options += ["--state", os.path.abspath(state)] if state else []
    options += ["--config", os.path.realpath(config)] if config else []
    options += ["--engine", json.dumps(list(engine))] if engine else []
    with theirs, their_looks:
        channels = [theirs.fileno(), their_looks.fileno()]
        process = subprocess.Popen(
            [sys.executable, *STARTER, *map(str, channels), *options],
            pass_fds=channels,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={"PATH": os.defpath, **needed(os.environ)},
            start_new_session=True,
        )
    return StarterEnds(process, control, looks)
