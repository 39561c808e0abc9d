"""The machines of a team that are present, and the load of each, which each reports every 1.5 seconds.

Rules: a machine is present if its last report is at most GONE_SECONDS old by the clock here; times in
messages do not count. A machine that comes and goes faster than QUIET_SECONDS is not followed in that.
Presence proves nothing: actions are signed, and answered in time or not. A link is silent while its daemon is
stopped, so that callers see the machine as stopped too.
This file must never know what machines do for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import trio

from cortexfs.core.errors import Fault
from cortexfs.team import messages, subjects
from cortexfs.team.nats_client import Client
from cortexfs.team.nats_wire import Delivery

BEAT_SECONDS = 1.5
QUIET_SECONDS = 1.0  # between two changes of one machine, and between two answers to arriving machines
GONE_SECONDS = 5.0


class Presence:
    def __init__(
        self, client: Client, machines: Collection[str], changed: Callable[[str, bool], None]
    ) -> None:
        self._machines = machines
        self._client = client
        self._changed = changed
        self._beats: dict[str, float] = {}  # the time of the last beat, by machine
        self._moved: dict[str, float] = {}  # the time at which it came or went
        self._answered = -math.inf
        self.busy: dict[str, int] = {}

    def is_live(self, machine: str) -> bool:
        return machine in self._beats

    @property
    def live(self) -> list[str]:
        return sorted(self._beats)

    def hear(self, delivery: Delivery) -> None:
        machine = messages.check_machine(delivery.subject.rpartition(".")[2])
        if machine not in self._machines:
            return
        now, was_there, is_gone = trio.current_time(), machine in self._beats, delivery.data == b"gone"
        if was_there == is_gone:
            if now - self._moved.get(machine, -math.inf) < QUIET_SECONDS:
                return
            self._moved[machine] = now
        if is_gone:
            self.forget(machine)
            return
        self._beats[machine] = now
        self.busy[machine] = int(delivery.data) if delivery.data.isdigit() and len(delivery.data) < 7 else 0
        if not was_there:
            self._changed(machine, True)
            if now - self._answered >= QUIET_SECONDS:
                self._answered = now
                self.beat()  # so that the new machine knows us as soon

    def forget(self, machine: str) -> None:
        if self._beats.pop(machine, None) is not None:
            self.busy.pop(machine, None)
            self._changed(machine, False)

    def beat(self, data: bytes = b"") -> None:
        try:
            self._client.publish(subjects.live(self._client.name), data or b"%d" % self.calls())
        except Fault:
            return  # the connection is away, and others will notice

    calls: Callable[[], int] = staticmethod(lambda: 0)

    is_stopped: Callable[[], bool] = staticmethod(lambda: False)  # the daemon

    async def run(self) -> None:
        while True:
            if not self.is_stopped():
                self.beat()
            await trio.sleep(BEAT_SECONDS)
            now = trio.current_time()
            self._moved = {each: when for each, when in self._moved.items() if when > now - QUIET_SECONDS}
            limit = now - GONE_SECONDS
            for machine in [each for each, when in self._beats.items() if when < limit]:
                self.forget(machine)
