"""The machines of a team that are there, and how busy each is, by their word every second and a half.

Rules: a machine is there for as long as it was heard of within GONE_SECONDS by the clock here: nobody's
word about a time counts. It is no proof of anything: what is done is signed, and answered in time or not.
This file must never know what machines do for each other.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from cortexfs.core.errors import Fault
from cortexfs.team import messages, subjects
from cortexfs.team.nats_client import Client
from cortexfs.team.nats_wire import Delivery

BEAT_SECONDS = 1.5
GONE_SECONDS = 5.0
_MAX_MACHINES = 4096


class Presence:
    def __init__(self, client: Client, machine: str, changed: Callable[[str, bool], None]) -> None:
        self._client = client
        self._machine = machine
        self._changed = changed
        self._heard: dict[str, float] = {}
        self.busy: dict[str, int] = {}

    def is_live(self, machine: str) -> bool:
        return machine in self._heard

    @property
    def live(self) -> list[str]:
        return sorted(self._heard)

    def hear(self, delivery: Delivery) -> None:
        machine = messages.check_machine(delivery.subject.rpartition(".")[2])
        if machine not in self._heard and len(self._heard) >= _MAX_MACHINES:
            raise Fault("EAGAIN", "there are too many machines")
        was_there = machine in self._heard
        if delivery.data == b"gone":
            self.forget(machine)
            return
        self._heard[machine] = trio.current_time()
        self.busy[machine] = int(delivery.data) if delivery.data.isdigit() and len(delivery.data) < 7 else 0
        if not was_there:
            self._changed(machine, True)
            self.beat()  # so that it knows us as soon

    def forget(self, machine: str) -> None:
        if self._heard.pop(machine, None) is not None:
            self.busy.pop(machine, None)
            self._changed(machine, False)

    def beat(self, said: bytes = b"") -> None:
        try:
            self._client.publish(subjects.live(self._machine), said or b"%d" % self.calls())
        except Fault:
            return  # the connection is away, and others will notice

    calls: Callable[[], int] = staticmethod(lambda: 0)

    async def run(self) -> None:
        while True:
            self.beat()
            await trio.sleep(BEAT_SECONDS)
            limit = trio.current_time() - GONE_SECONDS
            for machine in [each for each, when in self._heard.items() if when < limit]:
                self.forget(machine)
