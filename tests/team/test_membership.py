"""Members of a team: init, join, leave, and machines that come and go."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.team import keys
from cortexfs.team.joining import Invitation
from tests.mounted.ctx_mount import alive, mounted, wait_gone
from tests.team.machines import Machine, free_port, machine, team
from tests.waiting import until

COUNT = "text.word_count"


def token_of(box: Machine) -> str:
    return box.team("init").stdout.strip()


def test_a_token_is_used_once_and_a_name_given_once(machines: dict[str, Machine], python: Path) -> None:
    # abi.md 14.2
    box = machines["box"]
    token = token_of(box)
    with machine(python, "third") as third, machine(python, "fourth") as fourth:
        taken = third.team("join", token, "--name", "laptop", check=False)
        assert (taken.returncode, "choose another --name" in taken.stderr) == (1, True), taken.stderr
        third.team("join", token, "--name", "third")
        again = fourth.team("join", token, "--name", "fourth", check=False)
        assert (again.returncode, "used before" in again.stderr) == (13, True), again.stderr
        assert not (fourth.folder / "member.json").exists()
        until(
            lambda: [one["machine"] for one in box.status["machines"] if one["live"]],
            lambda seen: "third" in seen,
        )
        third.team("leave")
        until(
            lambda: [one["machine"] for one in box.status["machines"] if one["live"]],
            lambda seen: "third" not in seen,
        )
        assert not third.folder.exists()


def test_a_token_that_was_changed_or_is_late_is_none(machines: dict[str, Machine], python: Path) -> None:
    token = token_of(machines["box"])
    good = Invitation.read(token)
    with pytest.raises(Fault, match="copy it whole"):
        Invitation.read(token[:-9])
    account = keys.Key.new(keys.ACCOUNT)
    late = Invitation.new(good.servers, good.pin, account, seconds=-1)
    with pytest.raises(Fault, match="expired"):
        Invitation.read(late.text)
    forged = Invitation.new(good.servers, good.pin, account)  # signed by another team's key
    elsewhere = Invitation.new(good.servers, bytes(32), account)  # of a server with another certificate
    with machine(python, "third") as third:
        refused = third.team("join", forged.text, "--name", "third", check=False)
        assert refused.returncode == 69
        assert "Authorization Violation" in refused.stderr
        pinned = third.team("join", elsewhere.text, "--name", "third", check=False)
        assert "not the one that the token is for" in pinned.stderr
        nobody = Invitation.new([f"127.0.0.1:{free_port()}"], bytes(32), account)
        alone = third.team("join", nobody.text, "--name", "third", check=False)
        assert ": Connection refused; run ctx mount there, or let it name another address" in alone.stderr


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("init", "--name", "other"), 1, "this machine is box in the team team already"),
        (("init", "--team", "other", "--listen", "0.0.0.0:4333"), 1, "and keeps its --team, --listen;"),
        (("init", "--address", "box.example.org:4222"), 2, "write --address HOST, without a port"),
        (("export", COUNT, "--to", "root@laptop"), 2, f"'{COUNT}' cannot be exported; write tool/NAME or"),
        (("export", "--to", "root@laptop"), 2, "say which OBJECT, such as tool/make"),
        (("export", "--stop"), 2, "say which OBJECT, such as tool/make"),
    ],
)
def test_what_is_wrong_is_one_sentence(box: Machine, words: tuple[str, ...], status: int, said: str) -> None:
    done = box.team(*words, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (status, "", 1)
    assert said in done.stderr


def test_an_alias_is_not_exported(box: Machine) -> None:
    alias = box.ctx.root / "model/short"
    alias.symlink_to("debug/echo")
    try:
        refused = box.team("export", "model/short", "--to", "root@laptop", check=False)
        assert refused.returncode == 2
        assert "model/short is an alias; export what it stands for: model/debug/echo" in refused.stderr
    finally:
        alias.unlink()


def test_secrets_are_their_owner_s_alone(machines: dict[str, Machine], tmp_path: Path) -> None:
    for each in machines.values():
        for path in (each.folder, *each.folder.rglob("*")):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert not list(machines["laptop"].folder.glob("server"))  # only the first machine has the team's keys
    box = machines["box"]
    box.ctx.ctx("state", "export", str(tmp_path / "kept.tar.gz"))
    with tarfile.open(tmp_path / "kept.tar.gz") as kept:
        assert not [name for name in kept.getnames() if "team" in name]  # an archive copies no machine


def test_a_machine_that_goes_is_away_and_comes_back(python: Path) -> None:
    # abi.md 14.7
    with team(python, "laptop", "box") as machines:
        laptop, box = machines["laptop"], machines["box"]
        said = box.team("export", f"tool/{COUNT}", "--to", "root@laptop", "--to", "*@latop", "--as", "daemon")
        assert said.stderr.startswith("latop is no machine of the team yet; see: ctx team status\n")
        box.team("export", "tool/fs.list", "--to", "root@laptop", "--as", "daemon")
        for name in (COUNT, "fs.list"):
            laptop.sees(f"tool/{name}+box")
        os.kill(box.ctx.pid, signal.SIGKILL)  # the team's server ends with it
        laptop.sees_away(f"tool/{COUNT}+box")
        began = time.monotonic()
        gone = laptop.ctx.call(f"{COUNT}+box", '{"text":"a"}')
        assert (gone.status, gone.code) == (69, "EHOSTDOWN")
        assert time.monotonic() - began < 60  # the call does not wait for a machine that is away
        assert laptop.ctx.call(COUNT, '{"text":"a"}').status == 0  # tools of this machine work as before
        anyone = laptop.ctx.call(f"{COUNT}+any", '{"text":"a"}')
        assert (anyone.code, "the pool's machines are all away" in anyone.message) == ("EHOSTDOWN", True)
        box.ctx.umount()
        assert box.status["problem"] == "no daemon is running here; see: ctx mount"
        assert not box.status["machines"]
        box.team("export", "tool/fs.list", "--stop")
        box.ctx.mount()
        laptop.sees(f"tool/{COUNT}+box")
        laptop.sees_no("tool/fs.list+box")  # though no link was there to withdraw it
        assert laptop.ctx.call(f"{COUNT}+box", '{"text":"a"}').status == 0
        box.team("export", f"tool/{COUNT}", "--stop")
        laptop.sees_no(f"tool/{COUNT}+box")
        refused = box.team("leave", check=False)
        assert (refused.returncode, "has its keys on this machine" in refused.stderr) == (13, True)
        box.team("leave", "--end")
        assert box.team("status", check=False).returncode == 69


def test_a_machine_that_is_stopped_answers_within_two_seconds_or_not_at_all(python: Path) -> None:
    with team(python, "laptop", "box", "third") as machines:
        laptop, box = machines["laptop"], machines["box"]
        box.team("export", f"tool/{COUNT}", "--to", "root@laptop", "--as", "daemon")
        laptop.sees(f"tool/{COUNT}+box")
        link = box.link()
        os.kill(link, signal.SIGSTOP)
        try:
            gone = laptop.ctx.call(f"{COUNT}+box", '{"text":"a"}')
            assert gone.code == "EHOSTDOWN", gone
        finally:
            os.kill(link, signal.SIGCONT)
        until(lambda: laptop.ctx.call(f"{COUNT}+box", '{"text":"a"}').status, lambda status: status == 0)


def test_the_link_is_started_again_and_leaves_nothing(machines: dict[str, Machine]) -> None:
    laptop, box = machines["laptop"], machines["box"]
    box.team("export", f"tool/{COUNT}", "--to", "root@laptop", "--as", "daemon")
    laptop.sees(f"tool/{COUNT}+box")
    assert laptop.ctx.call(f"{COUNT}+box", '{"text":"a"}').status == 0  # from now on there is a stand-in
    link = box.link()
    below = [int(word) for word in children(link)]
    assert len(below) == 2  # a stand-in, and the team's server
    os.kill(link, signal.SIGKILL)
    for pid in below:  # the children end with the link, even if it is killed
        assert wait_gone(pid)
    until(lambda: laptop.ctx.call(f"{COUNT}+box", '{"text":"a"}').status, lambda status: status == 0)
    box.team("export", f"tool/{COUNT}", "--stop")


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_who_is_in_no_team_pays_nothing(python: Path) -> None:
    # abi.md 14.1
    with mounted(python) as ctx:
        daemon = ctx.pid
        starter = int(children(daemon)[0])
        names = [Path(f"/proc/{each}/cmdline").read_text() for each in children(starter)]
        assert not [name for name in names if "team" in name]
        assert not (ctx.state / "team").exists()
        assert alive(daemon)
        loaded = imported("cortexfs.daemon.daemon")
        assert not [name for name in loaded if name.startswith(("cortexfs.team", "cryptography"))]
        assert "cortexfs.team.messages" not in imported("cortexfs.cli.team.team")
        assert ctx.ctx("team", "status", check=False).returncode == 69


def imported(module: str) -> list[str]:
    """Returns the modules that an import of this one loads."""
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_plus_is_kept_for_other_machines(laptop: Machine) -> None:
    # abi.md 14.14
    script = laptop.ctx.work / "said"
    script.write_text("#!/bin/sh\n# tool: says a\necho a\n")
    script.chmod(0o755)
    made = ("tool", "add", str(script), "--name", "a+box")
    agent = ("agent", "new", "a+box", "--model", "debug/echo")
    provider = ("provider", "add", "a+box", "--base-url", "http://127.0.0.1:9", "--format", "openai.chat")
    server = ("mcp", "add", "a+box", "--", "/bin/true")
    for words in (agent, (*agent, "--home"), made, provider, server):
        refused = laptop.ctx.ctx(*words, check=False)
        assert refused.returncode == 2
        assert "reserved for objects of other machines" in refused.stderr
    with pytest.raises(OSError, match="Invalid argument"):
        (laptop.ctx.root / "tool/a+box").symlink_to(COUNT)
    with pytest.raises(OSError, match="Invalid argument"):
        (laptop.ctx.root / f"home/{os.getuid()}/tool/a+box").touch()


def test_what_is_no_token_is_refused_with_a_sentence(python: Path) -> None:
    with machine(python, "third") as third:
        for token in ("-", "ctx1-", "ctx1-%%%", "x", "ctx1-" + "a" * 9000):
            refused = third.team("join", token, check=False)
            assert refused.returncode == 2, refused
            assert "not a token of a team" in refused.stderr


def test_a_server_that_is_too_old_is_refused(python: Path) -> None:
    with machine(python, "box") as box:
        old = box.ctx.work / "nats-server"
        old.write_text("#!/bin/sh\necho nats-server: v2.9.10\n")
        old.chmod(0o755)
        box.ctx.environ["CTX_NATS_SERVER"] = str(old)
        refused = box.team("init", "--name", "box", check=False)
        assert refused.returncode == 69
        assert "is v2.9.10, and version 2.15 or later is needed" in refused.stderr
        assert not box.folder.exists()


def test_a_machine_that_is_removed_is_nobody(python: Path) -> None:
    # abi.md 14.11
    with team(python, "laptop", "third", "box") as machines:
        laptop, third, box = (machines[name] for name in ("laptop", "third", "box"))
        third.team("export", f"tool/{COUNT}", "--to", "root@laptop", "--as", "daemon")
        laptop.sees(f"tool/{COUNT}+third")
        assert "begun" in laptop.team("leave", "--machine", "third", check=False).stderr
        assert "there are laptop, third" in box.team("leave", "--machine", "fourth", check=False).stderr
        box.team("leave", "--machine", "third")
        laptop.sees_no(f"tool/{COUNT}+third")
        until(lambda: third.status["problem"], lambda why: "Authorization Violation" in why)
        until(lambda: laptop.status["problem"], lambda why: why == "")
        box.team("export", f"tool/{COUNT}", "--to", "root@laptop", "--as", "daemon")
        laptop.sees(f"tool/{COUNT}+box")
        assert laptop.ctx.call(f"{COUNT}+box", '{"text":"a"}').status == 0
