"""The starter's work for the daemon: programs for plugins and providers, and the end of the mount.

This file must never know when any of it is wanted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pyfuse3
import trio

from cortexfs.core import starts
from cortexfs.core.errors import Fault
from cortexfs.models.providers.secrets import COMMAND_SECONDS, MAX_KEY
from cortexfs.plugins.trust import openpgp
from cortexfs.pool.pool import Pool
from cortexfs.pool.starter import Starter

log = logging.getLogger("cortexfs")


def signatures(starter: Starter) -> Callable[[Path], bytes]:
    """Answers what gpgv says of the files in a folder, in a thread."""
    return lambda folder: trio.from_thread.run(_signature, starter, folder)


async def _signature(starter: Starter, folder: Path) -> bytes:
    asked = starts.SIGNATURE, str(folder), openpgp.SECONDS, openpgp.MAX_SAID
    try:
        return (await starter.output(*asked))[0]
    except OSError as error:
        why = f"gpgv cannot be run: {error.strerror}; its signature stays unchecked"
        raise Fault("EHOSTDOWN", why) from None


async def key(starter: Starter, provider: str, command: tuple[str, ...]) -> tuple[bytes, int]:
    """Returns the output and status of the command that a provider's file names."""
    del command  # the starter reads it itself
    return await starter.output(starts.KEY, provider, COMMAND_SECONDS, MAX_KEY)


def end(pool: Pool, root: Path) -> None:
    """Serve the mount no more, unmount it, and end all processes of ours."""
    if os.geteuid():
        pool.stop()
        pyfuse3.close(unmount=True)
        return
    pool.dismiss()
    pyfuse3.close(unmount=False)
    try:
        pool.starter.unmount(pool.device)
    except OSError as error:
        log.error("%s cannot be unmounted: %s; unmount it with umount", root, error.strerror)
    pool.stop()
