"""The starter's work for the daemon: programs for plugins and providers, and the end of the mount.

This file must never know when the daemon needs that work.
"""

from __future__ import annotations

import logging
import os
import pwd
from pathlib import Path

import pyfuse3
import trio

from cortexfs.core import starts
from cortexfs.core.errors import Fault
from cortexfs.models.providers.secrets import COMMAND_SECONDS, MAX_KEY
from cortexfs.plugins.trust import openpgp
from cortexfs.pool.pool import Pool
from cortexfs.pool.starter import Starter

USER_SECONDS = 10.0  # for a directory service
MAX_USER = 64 << 10
_HOME = 5  # of the fields of passwd(5)

log = logging.getLogger("cortexfs")


async def signature(starter: Starter, folder: Path) -> bytes:
    """Returns gpgv's output about the files in a folder."""
    request = starts.SIGNATURE, folder.name, openpgp.SECONDS, openpgp.MAX_SAID
    try:
        return (await starter.output(*request))[0]
    except OSError as error:
        why = f"gpgv cannot be run: {error.strerror}; the signature stays unchecked"
        raise Fault("EHOSTDOWN", why) from None


async def key(starter: Starter, provider: str, command: tuple[str, ...]) -> tuple[bytes, int]:
    """Returns the output and status of the command that a provider's file names."""
    del command  # the starter reads the provider's file itself
    return await starter.output(starts.KEY, provider, COMMAND_SECONDS, MAX_KEY)


async def home(starter: Starter, uid: int) -> str:
    """Returns a user's home directory; empty if there is none. The daemon of root may open no Unix socket to
    a directory service, so another program looks up a user whom the daemon does not find."""
    found = await trio.to_thread.run_sync(_home, uid)  # the database may be across a network
    if found or os.geteuid():
        return found
    try:
        output, _ = await starter.output(starts.USER, str(uid), USER_SECONDS, MAX_USER)
    except OSError as error:
        log.warning("uid %d cannot be looked up: %s", uid, error.strerror)
        return ""
    fields = os.fsdecode(output.partition(b"\n")[0]).split(":")
    return fields[_HOME] if len(fields) > _HOME else ""


def _home(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return ""


def end(pool: Pool, root: Path) -> None:
    """Stop serving the mount, unmount it, and end all our processes."""
    if os.geteuid():
        pool.stop()
        pyfuse3.close(unmount=True)
        return
    pool.dismiss()
    pyfuse3.close(unmount=False)
    try:
        pool.starter.unmount()
    except OSError as error:
        log.error("%s cannot be unmounted: %s; unmount it with umount", root, error.strerror)
    pool.stop()
