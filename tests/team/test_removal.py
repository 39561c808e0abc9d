"""A team's server that is removed before there are three servers, and a machine of which no file was left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.team.machines import COUNT, free_ports, team
from tests.waiting import until


def test_the_second_of_two_servers_is_removed(python: Path) -> None:
    # abi.md 14.11, 14.12: no cluster has begun, so the first alone serves all along
    with team(python, "desk", "laptop", "box") as machines:
        desk, laptop, box = (machines[name] for name in ("desk", "laptop", "box"))
        desk.team("leave", "--end")
        token = box.team("init", "--server").stdout.strip()
        where = ("--listen", f"127.0.0.1:{free_ports()}", "--address", "127.0.0.1")
        desk.team("join", "--server", "--name", "second", *where, token)
        until(lambda: box.status["servers"], lambda seen: sorted(seen) == ["box", "second"])
        desk.team("export", f"tool/{COUNT}", "--to", "root@laptop", "--as", "daemon")
        laptop.sees(f"tool/{COUNT}+second")
        link = box.link()
        box.team("leave", "--machine", "second")
        laptop.sees_no(f"tool/{COUNT}+second")
        box.team("export", f"tool/{COUNT}", "--to", "root@laptop", "--as", "daemon")
        laptop.sees(f"tool/{COUNT}+box")
        assert box.link() == link
        record = box.folder / "machines/laptop"
        public = json.loads(record.read_text())["public"]
        record.unlink()  # as in a backup that is older than this machine
        os.kill(link, signal.SIGKILL)
        until(lambda: record.read_text() if record.exists() else "", lambda seen: public in seen)
