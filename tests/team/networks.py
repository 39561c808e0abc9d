"""A network for tests: a switch with a namespace for each machine, whose cable can be pulled.

    with network("laptop", "box") as found: found["box"].cut(); found["box"].join()

Packets to a machine that is cut off are dropped without an error. The network ends with its namespaces.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Place:
    """A machine's place in a network, where commands can run (the `space` of mounted/ctx_mount.py)."""

    def __init__(self, hub: str, number: int) -> None:
        self._hub = hub
        self._cable = f"c{number}"
        self.name = f"{hub}-{number}"
        self.address = f"10.99.0.{number}"
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.name, "link", "set", "eth0", "up")
        _ip("-n", hub, "link", "set", self._cable, "up")
        self.join()

    def words(self, uid: int, cwd: Path) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.name}", f"--wdns={cwd}", "-S", str(uid)]

    def cut(self) -> None:
        _ip("-n", self._hub, "link", "set", self._cable, "nomaster")

    def join(self) -> None:
        _ip("-n", self._hub, "link", "set", self._cable, "master", "switch")


@contextlib.contextmanager
def network(*names: str) -> Iterator[dict[str, Place]]:
    hub = f"ctx-{os.getpid()}"
    _ip("netns", "add", hub)
    places: dict[str, Place] = {}
    try:
        _ip("-n", hub, "link", "add", "switch", "type", "bridge")
        _ip("-n", hub, "link", "set", "switch", "up")
        for number, name in enumerate(names, 1):
            places[name] = Place(hub, number)
        yield places
    finally:
        for each in (*(one.name for one in places.values()), hub):
            _ip("netns", "del", each)
