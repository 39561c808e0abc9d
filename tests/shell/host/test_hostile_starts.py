"""The time between a host's fork and its plugin's first line, when the host's user is hostile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cortexfs.core import hostcalls
from tests.shell.forks import NOBODY, Forks, connection_of, public_directory

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")

USER = hostcalls.Identity(NOBODY, NOBODY, ())

# Imported by every interpreter that finds it. It plays the user who interferes with a starting host.
SITE = """
import ctypes, time
from cortexfs.host.confine import limits
limits.STARTING_SECONDS = 2
real = limits.restrict
def restrict(given, tasks):
    limits.seen = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)  # PR_GET_DUMPABLE
    while given.processes == 7:
        time.sleep(1)
    real(given, tasks)
limits.restrict = restrict
"""


@contextmanager
def forks() -> Iterator[Forks]:
    with public_directory() as place:
        (place / "sitecustomize.py").write_text(SITE)
        with Forks("sh", "-c", 'PYTHONPATH="$0:$PYTHONPATH" exec "$@"', str(place)) as found:
            yield found


def test_nobody_gets_into_a_host_before_it_has_reported() -> None:
    # identity.py: "until then no process of that user can replace this one, or take its descriptors"
    with forks() as server:
        host = server.spawn(USER)
        assert host.ask("from cortexfs.host.confine import limits; answer = limits.seen") == 0
        assert host.ask("answer = open('/proc/self/environ').close()") is None


def test_nobody_gets_into_the_host_that_describes_plugins() -> None:
    # abi.md 4.39, though others may be dumpable
    with forks() as server:
        host = server.spawn(hostcalls.Identity(NOBODY, NOBODY, (), label=hostcalls.DESCRIBER))
        assert host.ask("answer = os.stat('/proc/self/mem').st_uid") == 0
        assert host.ask("open('/proc/self/environ')") == "raised PermissionError"


def test_a_start_that_is_held_up_ends() -> None:
    # limits.py: "A host that does not report by then hangs in its caller's namespaces, or was stopped"
    with forks() as server:
        with connection_of(USER) as connection:
            server.send(USER, connection, hostcalls.HostLimits(1 << 30, 7, 256))
            said = server.hear()
        assert isinstance(said, hostcalls.HostStart)
        assert said.fault is not None
        assert said.fault[0] == "EHOSTDOWN"
        assert server.spawn(USER).ask("answer = 'served'") == "served"
