"""The stream that has the sessions of a team: the requests to the server, and the reading of a log here.

Rules: a piece is stored behind the last message about its session that is known here, or not at all.
This file must never know what makes a piece count.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.team import keys, nats_client, subjects
from cortexfs.team.nats_client import ANSWER_SECONDS, Client
from cortexfs.team.nats_wire import Delivery
from cortexfs.team.session_log import LogKey, StreamPiece, TeamLog
from cortexfs.team.session_messages import PIECE, LocalLog, owner_of

BATCH = 128
BATCH_BYTES = 4 << 20
_WRONG_SEQUENCE = 10071


class LogStore:
    def __init__(self, client: Client, machine: str, key: keys.Key) -> None:
        self._client = client
        self._machine = machine
        self._key = key

    async def look(self) -> tuple[str, int]:
        """Returns the time when the stream was made, and the number of its last message."""
        found = await self._client.request(subjects.LOG_INFO, b"", ANSWER_SECONDS)
        answer = nats_client.stream_answer(found)
        if answer.error:
            raise Fault("EHOSTDOWN", f"the team's server refuses: {answer.error.description}")
        return answer.created, answer.state.last_seq

    async def get(self, filter_: str, first: int) -> list[Delivery]:
        """Returns some messages from that number on; none if there are no more."""
        asked = {"seq": first, "batch": BATCH, "max_bytes": BATCH_BYTES, "next_by_subj": filter_}
        return await nats_client.batch(self._client, subjects.LOG_GET, asked)

    async def publish(self, known: TeamLog, start: int, data: bytes) -> int:
        """Store a piece behind the known ones. Returns its number, or 0 if the stream has more."""
        subject = known.key.subject(self._machine)
        now = max(time.time(), (known.removed + 1.5) / 1000)  # after the removal by any clock
        sealed = keys.seal(self._key, subject, msgspec.msgpack.encode(StreamPiece(start, data)), now)
        headers = {
            "Nats-Expected-Last-Subject-Sequence": str(known.sequence),
            "Nats-Expected-Last-Subject-Sequence-Subject": known.key.filter,
        }
        found = await self._client.request(subject, sealed, ANSWER_SECONDS, headers=headers)
        answer = nats_client.stored(found, _WRONG_SEQUENCE)
        if answer.error is not None:
            return 0
        self._client.publish(subjects.said(self._machine), b"")
        return answer.seq


def stream_config(replicas: int) -> dict[str, Any]:
    return {
        "name": subjects.LOGS, "subjects": ["ctx.log.*.*.*.*.*"], "num_replicas": replicas,
        "storage": "file", "retention": "limits", "discard": "new", "allow_direct": True,
        "max_msg_size": 2 << 20,
    }  # fmt: skip


def key_in(local: LocalLog) -> LogKey | None:
    """Returns the session that a log belongs to, from its first line."""
    with suppress(OSError), open(local.path, "rb") as file:
        if owner := owner_of(file.readline(PIECE)):
            return LogKey(owner.user, local.place.class_, local.place.object, local.place.session)
    return None


def lines_of(path: str, start: int, end: int) -> bytes:
    """Returns whole lines of a log, at least one."""
    with open(path, "rb") as file:
        size, data = PIECE, b""
        while not data:
            found = os.pread(file.fileno(), min(size, end - start), start)
            data = found[: found.rfind(b"\n") + 1]
            if not data and (size > 4 * PIECE or len(found) < size):
                raise Fault("EIO", f"{path} has no whole event at byte {start}")
            size *= 2
    return data
