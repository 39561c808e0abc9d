"""An agent's program tries every way out of its view, for root and for a user.

The issue: "An agent loop of debug/script that tries every write, chmod, link, socket, exec and dry run that
items 1-3 name: nothing outside its view changes; run as root and as a user." test_second_mounts.py tries what
a shell can do. This file makes the attempts that need system calls.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cortexfs.linux import seccomp
from tests.mounted import agents, escaping, test_second_mounts
from tests.mounted.agents import shell
from tests.mounted.test_second_mounts import NUMBERS, Party, seen

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="several users need a root daemon"),
    pytest.mark.skipif(os.uname().machine not in seccomp.MACHINES, reason="no filter for this machine"),
]

ctx, coder, beside = agents.ctx, agents.coder, test_second_mounts.beside
side, party = test_second_mounts.side, test_second_mounts.party

# Attempts that succeed in a person's program, which shows that the view refuses them to an agent's program.
FREE = (
    *("mode by a descriptor", "times", "attributes", "written by memory", "exchanged", "executed"),
    *("setuid by opening", "a queue of messages", "an abstract socket", "a limit", "a signal"),
)


@contextmanager
def outside(base: Path, uid: int) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """Yield a folder of the user outside of all views, and a process of the user that works there."""
    out = base / f"outside{next(NUMBERS)}"
    out.mkdir()
    (out / "file").write_text("mine")
    shutil.copy("/bin/true", out / "program")
    (out / "link").symlink_to("file")
    for path in (out, *out.iterdir()):
        os.chown(path, uid, uid, follow_symlinks=False)
    process = subprocess.Popen(["sleep", "infinity"], cwd=out, user=uid, group=uid, extra_groups=[])
    try:
        yield out, process
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(out)


@pytest.fixture(scope="module")
def listener() -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as found:
        found.bind("\0cortexfs-test")
        found.listen()
        yield


def test_no_call_leads_out_of_a_view(party: Party, listener: None) -> None:
    ctx, coder, other, uid = party
    shutil.copy(escaping.__file__, ctx.work / "escaping.py")
    with outside(ctx.base, uid) as (out, process):
        before = seen(out)
        words = shlex.join(["python3", "../escaping.py", str(out), str(process.pid), str(other.root)])
        said = shell(ctx, coder, f"mkdir in{out.name} && cd in{out.name} && {words}")
        answers = json.loads(said[said.index("{") : said.rindex("}") + 1])
        assert answers.keys() == escaping.ATTEMPTS.keys()
        assert [name for name, answer in answers.items() if answer == "done"] == []
        assert seen(out) == before
        assert process.poll() is None
    assert not [path for path in ctx.work.rglob("*") if path.lstat().st_mode & 0o6000]


def test_they_lead_where_no_view_is(party: Party, listener: None) -> None:
    ctx, _, other, uid = party
    with outside(ctx.base, uid) as (out, process):
        (inside := out / "own").mkdir()
        os.chown(inside, uid, uid)
        shutil.copy(escaping.__file__, out / "escaping.py")
        words = ["python3", f"{out}/escaping.py", str(out), str(process.pid), str(other.root), *FREE]
        answers = json.loads(ctx.run(words, cwd=inside).stdout)
        assert answers == dict.fromkeys(FREE, "done")
