"""A session's context/: the files that an agent's runs keep there, all of which may be lost at any time."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from cortexfs.agents.window import files as context_files
from cortexfs.agents.window.context import FormerContext, Pin, Summary
from cortexfs.agents.window.files import MAX_FILES, MAX_PIN, MAX_PINS, ContextFiles
from cortexfs.core.errors import Fault
from cortexfs.sessions.layout import Address, Space
from cortexfs.sessions.log import Most
from cortexfs.sessions.quota import Shares
from tests.shell.handlers import caller, refused
from tests.shell.session_stores import store
from tests.shell.spaces import ME, seen, written

SESSION = f"home/{ME}/agent/coder.d/session/default"
SHOWN = f"/ctx/{SESSION}"


def address(session: str = "default") -> Address:
    return Address(Space.private(ME), "agent", "coder", session)


def context(folder: Path) -> ContextFiles:
    return ContextFiles(folder, SHOWN)


# Issue 4: "its provenance kept in `context/`; everything rebuildable".


def test_a_summary_and_pins_are_there_for_the_next_run(tmp_path: Path) -> None:
    files = context(tmp_path)
    assert files.load() == FormerContext()
    files.write_summary(Summary(2, 9, "They met."))
    assert files.pin("I am Ann.") == f"{SHOWN}/context/pinned/1.md"
    assert files.pin("two\nlines") == f"{SHOWN}/context/pinned/2.md"
    assert files.pin(" I am Ann. ") == f"{SHOWN}/context/pinned/1.md"  # pinned twice, kept once
    kept = context(tmp_path).load()
    assert kept.summary == Summary(2, 9, "They met.")
    assert kept.pinned == (Pin("1.md", "I am Ann.\n"), Pin("2.md", "two\nlines\n"))
    assert (tmp_path / "context/summary.md").read_text() == "<!-- events 2-9 -->\nThey met.\n"


def test_files_are_their_owner_s_alone(tmp_path: Path) -> None:
    files = context(tmp_path)
    files.write_pack(b"{}\n")
    files.spill("c1", "x")
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode for path in tmp_path.rglob("*")}
    for name, mode in modes.items():
        assert stat.S_IMODE(mode) == (0o600 if "." in name else 0o700), name
    assert len(modes) == 4


def test_what_is_damaged_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    files = context(tmp_path)
    files.pin("good")
    folder = tmp_path / "context"
    (folder / "summary.md").write_bytes(b"\xff\xfe\0garbage")
    (folder / "pinned/2.md").write_bytes(b"")
    (folder / "pinned/3.md").mkdir()
    (folder / "pinned/4.md").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pinned/5.md")
    (folder / "pinned/name.md").write_text("not one of ours")
    (folder / "pinned/7.md").write_bytes(b"half \xff")
    assert files.load() == FormerContext(None, (Pin("1.md", "good\n"), Pin("7.md", "half \ufffd")))


def test_a_session_that_was_removed_does_not_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = context(tmp_path / "gone")
    files.write_summary(Summary(1, 2, "x"))
    files.write_pack(b"{}")
    assert files.spill("c1", "x") == ""
    with pytest.raises(Fault, match="ENOENT: the pin cannot be kept"):
        files.pin("x")
    assert files.load() == FormerContext()
    assert not (tmp_path / "gone").exists()
    assert len(caplog.messages) == 3


# Outputs.


def test_an_output_is_kept_whole_under_its_call_s_name(tmp_path: Path) -> None:
    # issue 4: "tool output is bounded, marked as untrusted, spilled to a readable file when long"
    files = context(tmp_path)
    assert files.spill("toolu_01", "one") == f"{SHOWN}/context/output/toolu_01.txt"
    assert files.spill("toolu_01", "two") == f"{SHOWN}/context/output/toolu_01-2.txt"
    assert files.spill("toolu_01", "three") == f"{SHOWN}/context/output/toolu_01-3.txt"
    assert (tmp_path / "context/output/toolu_01.txt").read_text() == "one"
    assert files.grown() == len("onetwothree")
    assert files.grown() == 0


@pytest.mark.parametrize("call", ["", "..", "../../../etc/passwd", "a/b", "x" * 500, ".sock", "é\n\0"])
def test_no_call_s_name_leads_elsewhere(tmp_path: Path, call: str) -> None:
    path = context(tmp_path).spill(call, "x")
    name = path.removeprefix(f"{SHOWN}/context/output/")
    assert os.listdir(tmp_path) == ["context"]
    assert os.listdir(tmp_path / "context/output") == [name]


def test_of_too_much_the_oldest_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_files, "MAX_OUTPUTS", 100)
    files, folder = context(tmp_path), tmp_path / "context/output"
    for number in range(5):
        files.spill(f"c{number}", "x" * 40)
        os.utime(folder / f"c{number}.txt", ns=(number, number))
    assert sorted(os.listdir(folder)) == ["c3.txt", "c4.txt"]
    assert files.grown() == 80
    files.spill("big", "y" * 1000)
    assert os.listdir(folder) == ["big.txt"]
    assert (folder / "big.txt").stat().st_size == 100


def test_files_are_bounded_in_number_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_files, "MAX_FILES", 3)
    files = context(tmp_path)
    for number in range(10):
        files.spill(f"c{number}", "")
    assert len(os.listdir(tmp_path / "context/output")) == 3
    assert MAX_FILES > 3


# Pins.


def test_a_pin_is_short_and_there_are_not_too_many(tmp_path: Path) -> None:
    files = context(tmp_path)
    with pytest.raises(Fault, match="EMSGSIZE: a pin has up to 4096 bytes, and this one 4097"):
        files.pin("é" * (MAX_PIN // 2) + "x")
    with pytest.raises(Fault, match="EMSGSIZE"):
        files.pin(" \n")
    for number in range(8):
        files.pin(f"{number}" * 4000)
    with pytest.raises(Fault, match=f"EDQUOT: .* 100 pins, of 32 KiB .* rm {SHOWN}/context/pinned/N.md"):
        files.pin("x" * 4000)
    (tmp_path / "context/pinned/3.md").unlink()
    assert files.pin("x" * 4000).endswith("/9.md")


def test_a_hundred_pins_are_the_most(tmp_path: Path) -> None:
    files = context(tmp_path)
    for number in range(MAX_PINS):
        files.pin(str(number))
    with pytest.raises(Fault, match="EDQUOT"):
        files.pin("more")
    assert len(files.load().pinned) == MAX_PINS


def test_numbers_begin_anew_when_there_are_no_more(tmp_path: Path) -> None:
    files = context(tmp_path)
    files.pin("one")
    (tmp_path / "context/pinned/1.md").rename(tmp_path / "context/pinned/9999.md")
    assert files.pin("two").endswith("/1.md")


# In the tree.


async def test_they_are_ordinary_files_of_the_session(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        files = context(world.sessions.folder(address()))
        assert await world.gone(f"{SESSION}/context")
        path = files.spill("c1", "the output").removeprefix("/ctx/")
        files.pin("a fact")
        files.write_pack(b"{}\n")
        assert await world.read(path) == b"the output"
        assert sorted(await world.names(f"{SESSION}/context")) == ["output", "pack.json", "pinned"]
        (world.sessions.folder(address()) / "context/output/.hidden").write_text("x")
        assert await world.names(f"{SESSION}/context/output") == ["c1.txt"]
        folder = await world.find(f"{SESSION}/context/output")
        with refused(errno.EROFS):
            await world.fs.create(folder, b"mine.txt", 0o644, os.O_WRONLY, caller())


async def test_a_pin_goes_with_its_file(tmp_path: Path) -> None:
    # docs/agents.md: "`rm` of its file removes it", of a pin
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        files = context(world.sessions.folder(address()))
        files.pin("one")
        files.pin("two")
        await world.remove(f"{SESSION}/context/pinned/1.md")
        assert files.load().pinned == (Pin("2.md", "two\n"),)


async def test_all_of_it_can_be_removed_and_comes_back(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        files = context(world.sessions.folder(address()))
        files.spill("c1", "x")
        before = await world.find(f"{SESSION}/context/output")
        await world.remove(f"{SESSION}/context")
        assert await world.gone(f"{SESSION}/context")
        assert world.sessions.folder(address()).exists()
        files.spill("c1", "y")
        assert await world.read(f"{SESSION}/context/output/c1.txt") == b"y"
        assert await world.find(f"{SESSION}/context/output") != before  # the kernel's old inode is dead


async def test_rm_of_a_session_meets_what_is_in_its_context(tmp_path: Path) -> None:
    # abi.md 5.33
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        files = context(world.sessions.folder(address()))
        files.spill("c1", "x")
        files.spill("c2", "x")
        files.pin("p")
        await world.remove(SESSION)
        assert await world.gone(SESSION)
        assert not world.sessions.folder(address()).exists()
        assert not world.fs._spaces._ghosts


async def test_what_is_left_of_a_context_waits_for_the_rest_of_the_rm(tmp_path: Path) -> None:
    async with seen(tmp_path) as world:
        await written(world.sessions, address())
        context(world.sessions.folder(address())).spill("c1", "x")
        folder = await world.find(SESSION)
        output = await world.find(f"{SESSION}/context/output")
        await world.fs.unlink(folder, b"events.jsonl", caller())
        assert not world.sessions.folder(address()).exists()
        assert await world.names(f"{SESSION}/context") == ["output"]
        assert await world.names(f"{SESSION}/context/output") == ["c1.txt"]
        assert await world.read(f"{SESSION}/context/output/c1.txt") == b""
        await world.fs.unlink(output, b"c1.txt", caller())
        assert await world.names(f"{SESSION}/context/output") == []
        await world.fs.rmdir(folder, b"context", caller())  # with all files that are left in it
        assert await world.gone(f"{SESSION}/context")
        await written(world.sessions, address())
        assert await world.gone(f"{SESSION}/context")  # the new session of this name is another one


# The user's share of the disk.


async def test_outputs_count_for_the_share_of_their_user(tmp_path: Path) -> None:
    # docs/changelog.md: "No client ... takes more of the daemon than its user's share: ... of the disk"
    where, most = address(), Most(space_bytes=50_000)
    async with store(tmp_path) as sessions:
        log = await written(sessions, where)
        before = (await sessions._shares.of(where.space)).bytes
        files = context(sessions.folder(where))
        files.spill("c1", "x" * 60_000)
        sessions.grew(where, files.grown())
        share = await sessions._shares.of(where.space)
        assert share.bytes == before + 60_000 == log.size + 60_000
        counted = await Shares(tmp_path, most).of(where.space)  # as a daemon that starts now counts it
        assert counted.bytes == share.bytes
        with pytest.raises(Fault, match="EDQUOT"):
            counted.admit(0, is_new=False)
        await sessions.remove(where)
        assert (share.bytes, share.sessions) == (0, 0)
