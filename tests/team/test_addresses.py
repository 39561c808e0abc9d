"""A team whose server gets another address."""

from __future__ import annotations

import contextlib
from pathlib import Path

from cortexfs.team import keys
from cortexfs.team.joining import Invitation
from tests.team.machines import free_port, machine
from tests.waiting import until


def test_a_server_moves_and_the_others_follow(python: Path) -> None:
    # abi.md 14.28
    with contextlib.ExitStack() as stack:
        laptop, box, third = (
            stack.enter_context(machine(python, name)) for name in ("laptop", "box", "third")
        )
        port = free_port()
        where = ("--listen", f"0.0.0.0:{port}", "--address", "127.0.0.1")
        laptop.team("join", box.team("init", "--name", "box", *where).stdout.strip(), "--name", "laptop")
        moved = box.team("init", "--address", "127.0.0.2")
        assert f"box is reached at 127.0.0.2:{port}; the change is in effect" in moved.stderr
        facts = laptop.folder / "facts.json"
        until(lambda: facts.read_text() if facts.exists() else "", lambda seen: f"127.0.0.2:{port}" in seen)
        token, program = moved.stdout.strip(), [laptop.ctx.python, "-I", "-m", "cortexfs.cli.main"]
        for more in (("--name", "other"), ("--server",), ("--listen", "0.0.0.0:4333")):
            refused = laptop.team("join", token, *more, check=False)
            assert (refused.returncode, f"already, and keeps its {more[0]};" in refused.stderr) == (1, True)
        broken = f" {token[:60]}\n {token[60:]}\r\n"  # as a message shows it
        again = laptop.ctx.run([*map(str, program), "team", "join", "-"], input=broken)
        assert f"laptop looks for the team team at 127.0.0.2:{port}" in again.stderr  # had it been away
        until(lambda: laptop.status["server"], lambda seen: seen == f"127.0.0.2:{port}")
        third.team("join", token, "--name", "third")  # that did not use the token up
        other = third.team("join", "--name", "third", _token_of_another(), check=False)
        assert (other.returncode, "is in the team team already" in other.stderr) == (1, True), other.stderr


def _token_of_another() -> str:
    return Invitation.new(["h:1"], bytes(32), keys.Key.new(keys.ACCOUNT)).text
