"""A team's server that is removed before there are three servers."""

from __future__ import annotations

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
