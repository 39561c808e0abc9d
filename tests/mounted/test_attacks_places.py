"""A hostile local user who has the kernel wait: by a place to call from, or by a folder that is listed.

docs/attacks.md names these tests as the evidence for its claims.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.mounted.ctx_mount import Ctx
from tests.mounted.hanging import ACCESS, ANSWERS, INIT, endless_listing, hanging
from tests.mounted.test_attacks import MALLORY, Attacker, attack, words_of
from tests.mounted.tree_client import Served, served
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an attacker of another uid needs a root daemon")


@pytest.fixture
def tree() -> Iterator[Served]:
    with served() as tree:
        yield tree


def test_a_root_directory_that_never_answers_holds_nobody_up(ctx: Ctx) -> None:
    # design: "The daemon ... touches no path for a caller."
    place = ctx.work / "hung-for-all"
    place.mkdir()
    script = f"""
import ctypes
assert ctypes.CDLL(None).unshare(0x10000000) == 0
os.chdir(ROOT)
os.chroot({str(place)!r})  # the working directory stays
s = socket.socket(socket.AF_UNIX)
s.connect(".run.sock")
s.sendall(hello(1, 0, 2) + b"x\\0")
say(True)
"""
    with (
        hanging(place, {opcode: ANSWERS[opcode] for opcode in (INIT, ACCESS)}),
        Attacker(ctx, script) as heard,
    ):
        assert heard
        assert words_of(ctx) == "2 words"
        assert words_of(ctx, MALLORY) == "2 words"


def test_a_listing_that_never_ends_holds_no_change_up(tree: Served) -> None:
    # The kernel forgets a name once nobody lists its folder.
    new, next_one = tree.root / "tool/t00000", tree.root / "tool/t00001"
    assert not new.exists()
    with endless_listing(tree.root / "tool", tree.base / "page", MALLORY):
        began = time.monotonic()
        tree.tell("add 1")
        tree.tell("add 2")  # this folder is known to be late
        assert time.monotonic() - began < PATIENCE
        assert (tree.root / "status").read_text()
    until(new.exists)
    until(next_one.exists)
    tree.tell("drop t00000")
    assert not new.exists()


def test_the_thread_that_waits_for_it_keeps_no_lock_and_no_socket(tree: Served) -> None:
    # It cannot be ended, so another daemon has to be able to take over the state and the mount point.
    with endless_listing(tree.root / "tool", tree.base / "page", MALLORY):
        tree.tell("add 1")
        threads = f"/proc/{tree.pid}/task"
        late = [each for each in os.listdir(threads) if _state(f"{threads}/{each}/stat") == "D"]
        assert [_open_files(f"{threads}/{each}/fd") for each in late] == [["/dev/fuse"]]


def test_only_its_owner_opens_the_folder_in_which_sockets_are_bound(ctx: Ctx) -> None:
    # bind(2) waits for all who list the folder, and the starter would wait with it.
    script = """
def tried(work, *arguments):
    try:
        return work(*arguments) and "done"
    except OSError as error:
        return error.errno
say([
    tried(os.listdir, ROOT + "/.bind"), tried(os.open, ROOT + "/.bind", os.O_RDONLY),
    tried(os.mkdir, ROOT + "/.bind/x"), tried(os.stat, ROOT + "/.bind/sock"), ".bind" in os.listdir(ROOT),
])
"""
    assert attack(ctx, script) == [13, 13, 13, 13, False]


def _state(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0]


def _open_files(folder: str) -> list[str]:
    return [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
