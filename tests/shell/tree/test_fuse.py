"""The handlers, called as pyfuse3 calls them, without a mount."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from typing import cast

import pyfuse3
import pytest

from cortexfs.core.tree.places import HOME, MAIN, MODEL, OBJECTS, ROOT, RUN_SOCKET, STATUS, TOOL, Stale
from tests.bugcount import counted
from tests.shell import handlers
from tests.shell.handlers import SECOND, Fields, World, caller, refused, registry

world = handlers.world
RULE = b"allow coder_t tool:shell execute\n"


async def test_a_missing_name_is_an_answer_that_the_kernel_may_keep(world: World) -> None:
    entry = await world.fs.lookup(TOOL, b"nothing", caller())
    assert entry.st_ino == 0
    assert entry.entry_timeout > 1e6


async def test_a_rendering_of_status_serves_stat_and_read_for_a_second(world: World) -> None:
    # abi.md 1.16
    size = (await world.fs.getattr(STATUS, caller())).st_size
    world.now += SECOND - 1
    assert len(await world.read("status")) == size
    assert world.renderings == 1
    world.now += 1
    assert len(await world.read("status")) == size + 1
    assert (await world.fs.getattr(STATUS, caller())).st_mtime_ns == world.now


async def test_whoever_asks_for_what_is_so_now_changes_nothing_for_others(world: World) -> None:
    # docs/ctx.md: "opened with `O_RSYNC` it says what is so now"
    size = (await world.fs.getattr(STATUS, caller())).st_size
    info = await world.fs.open(STATUS, os.O_RDONLY | os.O_RSYNC, caller())
    assert len(await world.fs.read(info.fh, 0, 1 << 20)) == size + 1
    assert len(await world.read("status")) == size


async def test_a_clock_that_is_set_back_does_not_freeze_status(world: World) -> None:
    await world.read("status")
    world.now -= 1000 * SECOND
    await world.read("status")
    assert world.renderings == 2


async def test_what_an_open_read_shows_does_not_change_under_it(world: World) -> None:
    info = await world.fs.open(STATUS, os.O_RDONLY, caller())
    before = await world.fs.read(info.fh, 0, 100)
    world.now += 5 * SECOND
    await world.read("status")
    assert await world.fs.read(info.fh, 0, 100) == before


async def test_run_sock_is_bound_once_by_the_thread_that_was_announced(world: World) -> None:
    # abi.md 1.12
    fs, mode = world.fs, stat.S_IFSOCK | 0o755
    here = caller(pid=threading.get_native_id())
    with refused(errno.ENOENT):
        await fs.lookup(ROOT, b".run.sock", caller())
    with refused(errno.EROFS):
        await fs.mknod(ROOT, b".run.sock", mode, 0, here)
    with fs.bindings.expecting():
        for parent, name, kind, who in (
            (ROOT, b".run.sock", mode, caller(pid=1)),
            (TOOL, b".run.sock", mode, here),
            (ROOT, b"other", mode, here),
            (ROOT, b".run.sock", stat.S_IFREG | 0o755, here),
        ):
            with refused(errno.EROFS):
                await fs.mknod(parent, name, kind, 0, who)
        entry = await fs.mknod(ROOT, b".run.sock", mode, 0, here)
        with refused(errno.EROFS):
            await fs.mknod(ROOT, b".run.sock", mode, 0, here)
    assert (entry.st_ino, entry.st_mode) == (RUN_SOCKET, stat.S_IFSOCK | 0o777)
    for folder in (ROOT, TOOL, HOME, MAIN, await world.find("tool/shell.d"), await world.find("model/p")):
        assert (await fs.lookup(folder, b".run.sock", caller())).st_ino == RUN_SOCKET


async def test_a_user_who_looks_for_his_home_has_one_and_others_do_not(world: World) -> None:
    with refused(errno.ENOENT):  # the kernel must not remember this, as the user may come at any time
        await world.fs.lookup(HOME, b"1000", caller(uid=1001))
    entry = await world.fs.lookup(HOME, b"1000", caller(uid=1000))
    assert (entry.st_uid, stat.filemode(entry.st_mode)) == (1000, "drwx------")
    assert (await world.fs.lookup(HOME, b"1000", caller(uid=1001))).st_ino == entry.st_ino


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC])
@pytest.mark.parametrize(
    "path", ["status", "tool/shell", "tool/shell.d/name", "tool/shell.d/log", "model/p/m.d/limit"]
)
async def test_the_rest_is_read_only_for_root_too(world: World, path: str, flags: int) -> None:
    # abi.md 3.9
    inode = await world.find(path)
    with refused(errno.EROFS):
        await world.fs.open(inode, flags, caller())


async def test_a_value_is_kept_before_the_close_returns(world: World) -> None:
    await world.put("tool/shell.d/policy", RULE)
    assert await world.read("tool/shell.d/policy") == RULE
    world.again()  # as after kill -9
    assert await world.read("tool/shell.d/policy") == RULE


async def test_a_refused_value_leaves_the_old_one_and_the_log_says_why_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    # abi.md 3.13
    await world.put("tool/shell.d/policy", RULE)
    with refused(errno.EINVAL):
        await world.put("tool/shell.d/policy", b"deny\n")
    assert await world.read("tool/shell.d/policy") == RULE
    assert len(caplog.records) == 1
    assert "tool/shell.d/policy" in caplog.text


async def test_each_open_has_a_buffer_of_its_own(world: World) -> None:
    # abi.md 3.12
    inode = await world.find("model/p/m.d/effort")
    first = await world.fs.open(inode, os.O_RDWR, caller())
    second = await world.fs.open(inode, os.O_RDONLY, caller())
    await world.fs.write(first.fh, 0, b"high")
    assert await world.fs.read(second.fh, 0, 99) == b"auto\n"
    assert await world.fs.read(first.fh, 0, 99) == b"high\n"
    assert (await world.fs.getattr(inode, caller())).st_size == 5
    await world.fs.fsync(first.fh, False)
    assert await world.read("model/p/m.d/effort") == b"high\n"
    assert await world.fs.read(second.fh, 0, 99) == b"auto\n"


async def test_a_file_that_was_replaced_while_open_writes_into_nothing(world: World) -> None:
    inode, folder = await world.find("tool/shell.d/policy"), await world.find("tool/shell.d")
    info = await world.fs.open(inode, os.O_WRONLY | os.O_TRUNC, caller())
    await world.fs.unlink(folder, b"policy", caller())
    await world.fs.write(info.fh, 0, RULE)
    await world.fs.flush(info.fh)
    assert (await world.fs.lookup(folder, b"policy", caller())).st_ino == 0


async def test_a_temporary_file_takes_over_a_control_by_rename(world: World) -> None:
    # abi.md 3.14, 3.15
    fs, folder = world.fs, await world.find("model/p/m.d")
    info, entry = await fs.create(folder, b".driver.swp", 0o100600, os.O_WRONLY, caller(uid=5))
    assert (entry.st_uid, entry.st_mode, entry.entry_timeout) == (5, 0o100600, 0)
    await fs.write(info.fh, 0, b"wrong driver")
    with refused(errno.EINVAL):
        await fs.rename(folder, b".driver.swp", folder, b"driver", 0, caller())
    await fs.write(info.fh, 0, b"right-driver")
    await fs.rename(folder, b".driver.swp", folder, b"driver", 0, caller())
    assert await world.read("model/p/m.d/driver") == b"right-driver\n"
    assert (await fs.lookup(folder, b".driver.swp", caller())).st_ino == 0
    assert (await fs.getattr(entry.st_ino, caller())).st_nlink == 0  # the file is still open
    await fs.forget([(entry.st_ino, 1)])
    with refused(errno.ENOENT):
        await fs.getattr(entry.st_ino, caller())


async def test_an_executable_that_shows_a_control_is_forgotten_when_it_changes(world: World) -> None:
    executable = await world.find("model/p/m")
    await world.put("model/p/m.d/driver", b"other\n")
    assert world.forgotten == [Stale([], [executable])]
    assert b"# cortexfs.driver=other\n" in await world.read("model/p/m")


async def test_a_renamed_control_goes_on_as_a_backup_and_comes_back(world: World) -> None:
    # abi.md 3.15, 3.16
    await world.put("tool/shell.d/policy", RULE)
    fs, folder = world.fs, await world.find("tool/shell.d")
    await fs.rename(folder, b"policy", folder, b"policy~", 0, caller())
    assert (await fs.lookup(folder, b"policy", caller())).st_ino == 0
    assert await world.read("tool/shell.d/policy~") == RULE
    world_again = World(world.state)  # the control stays absent, and the temporary file is gone
    again = await world_again.find("tool/shell.d")
    assert (await world_again.fs.lookup(again, b"policy", caller())).st_ino == 0
    await fs.rename(folder, b"policy~", folder, b"policy", 0, caller())
    assert await world.read("tool/shell.d/policy") == RULE


@pytest.mark.parametrize(
    ("old", "new", "flags", "code"),
    [
        ("name", "name~", 0, errno.EROFS),
        ("policy", "name", 0, errno.EROFS),
        ("policy", "other.txt", 0, errno.EROFS),
        ("policy", "policy~", pyfuse3.RENAME_EXCHANGE, errno.EINVAL),
        ("nothing", "policy", 0, errno.ENOENT),
        ("policy.bak", "policy", pyfuse3.RENAME_NOREPLACE, errno.EEXIST),
    ],
)
async def test_renames_that_are_refused(world: World, old: str, new: str, flags: int, code: int) -> None:
    folder = await world.find("tool/shell.d")
    await world.fs.create(folder, b"policy.bak", 0o100600, os.O_WRONLY, caller())
    with refused(code):
        await world.fs.rename(folder, old.encode(), folder, new.encode(), flags, caller())


async def test_a_file_stays_in_its_folder(world: World) -> None:
    # abi.md 3.14
    here, there = await world.find("tool/shell.d"), await world.find("tool/fs.read.d")
    with refused(errno.EXDEV):  # so that mv makes a copy
        await world.fs.rename(here, b"policy", there, b"policy", 0, caller())
    with refused(errno.EROFS):
        await world.fs.rename(here, b"name", TOOL, b"name", 0, caller())


@pytest.mark.parametrize("parent", [ROOT, TOOL, MODEL, HOME, MAIN])
async def test_nothing_else_can_be_made_anywhere(world: World, parent: int) -> None:
    # abi.md 1.13
    with refused(errno.EROFS):
        await world.fs.create(parent, b"x", 0o100644, os.O_WRONLY, caller())
    with refused(errno.EROFS):
        await world.fs.mknod(parent, b"x", stat.S_IFIFO, 0, caller())
    if parent != HOME:
        with refused(errno.EROFS):
            await world.fs.mkdir(parent, b"x", 0o755, caller())
    with refused(errno.EROFS):
        await world.fs.rmdir(parent, b"x", caller())
    with refused(errno.EROFS if parent == ROOT else errno.EPERM):
        await world.fs.link(STATUS, parent, b"x", caller())


async def test_another_registry_outdates_the_missing_names_too(world: World) -> None:
    assert (await world.fs.lookup(TOOL, b"new", caller())).st_ino == 0
    await world.fs.apply(registry("shell", "new"))
    assert (TOOL, "new") in world.forgotten[0].entries
    assert (await world.fs.lookup(TOOL, b"new", caller())).st_ino
    assert (await world.fs.lookup(TOOL, b"fs.read", caller())).st_ino == 0


async def test_a_changed_status_shows_in_size_and_text(world: World) -> None:
    before = (await world.fs.lookup(TOOL, b"shell", caller())).st_size
    await world.fs.apply(registry("shell", status="broken: no such host"))
    text = await world.read("tool/shell")
    assert b"# cortexfs.status=broken: no such host\n" in text
    assert (await world.fs.lookup(TOOL, b"shell", caller())).st_size == len(text) != before


async def test_one_file_has_the_facts_about_everybodys_objects(world: World) -> None:
    # abi.md 1.25, 1.16
    text = await world.read(".objects")
    assert [json.loads(line)["object"] for line in text.splitlines()] == [
        "model/p/m",
        "tool/fs.read",
        "tool/shell",
    ]
    assert (await world.fs.getattr(OBJECTS, caller())).st_size == len(text)
    await world.fs.apply(registry("shell", status="broken: no such host"))
    _, shell = map(json.loads, (await world.read(".objects")).splitlines())
    told = {"status": "broken: no such host", "origin": "builtin", "description": ""}
    assert shell == {"object": "tool/shell", **told}
    assert ".objects" not in [name for name, _ in world.fs.tree.listing(ROOT)]
    with refused(errno.EROFS):
        await world.fs.open(OBJECTS, os.O_WRONLY, caller())


async def test_a_handle_to_a_removed_tool_reads_as_empty(world: World) -> None:
    info = await world.fs.open(await world.find("tool/shell"), os.O_RDONLY, caller())
    await world.fs.apply(registry())
    assert await world.fs.read(info.fh, 0, 99) == b""
    assert world.fs.object_of(info.fh, 0) is None


@pytest.mark.parametrize("strict", [False, True])
async def test_a_bug_is_eio_for_its_caller_and_ends_nothing(
    world: World, strict: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # design.md: "it logs, counts, returns EIO, and re-raises under --strict (tests)"
    monkeypatch.setattr(world.fs, "strict", strict)
    monkeypatch.setattr(world.fs, "tree", None)
    with counted() as bugs, pytest.raises(AttributeError) if strict else refused(errno.EIO):
        await world.fs.readlink(5, caller())
    assert bugs.met == 1
    assert "readlink failed" in caplog.text


async def test_foreign_attributes_are_not_supported_so_that_ls_stops_asking(world: World) -> None:
    inode = await world.find("tool/shell")
    for name in (b"security.selinux", b"system.posix_acl_access", b"security.capability"):
        with refused(errno.ENOTSUP):
            await world.fs.getxattr(inode, name, caller())
    with refused(errno.ENODATA):
        await world.fs.getxattr(inode, b"user.other", caller())
    with refused(errno.ENOTSUP):
        await world.fs.setxattr(inode, b"user.other", b"", caller())
    with refused(errno.EROFS):  # abi.md 3.20
        await world.fs.setxattr(inode, b"user.cortexfs.name", b"", caller())
    with refused(errno.EROFS):
        await world.fs.removexattr(inode, b"user.cortexfs.name", caller())


async def test_the_token_estimate_is_a_quarter_of_the_bytes_rounded_up(world: World) -> None:
    text = await world.read("tool/shell.d/name")
    assert text == b"shell\n"
    inode = await world.find("tool/shell.d/name")
    assert await world.fs.getxattr(inode, b"user.cortexfs.token_estimate", caller()) == b"2"


async def test_a_log_is_read_through_and_asked_for_each_time(world: World) -> None:
    # abi.md 1.17
    entry = await world.fs.lookup(await world.find("tool/shell.d"), b"log", caller())
    assert (entry.st_size, entry.st_mtime_ns, entry.attr_timeout) == (5, 7 * SECOND, 0)
    assert await world.read("tool/shell.d/log") == b"12345"


async def test_what_anybody_may_open_often_is_held_once(world: World) -> None:
    # design.md: memory stays bounded, whatever a client does
    fs = world.fs
    schema = await world.find("tool/shell.d/schema")
    infos = [await fs.open(schema, os.O_RDONLY, caller()) for _ in range(3)]
    assert {info.fh for info in infos} == {schema}
    first, second = await fs.opendir(TOOL, caller()), await fs.opendir(TOOL, caller())
    assert fs._handles.listing(first) is fs._handles.listing(second)
    await fs.symlink(TOOL, b"sh", b"shell", caller())
    third = await fs.opendir(TOOL, caller())
    assert "sh" in [name for name, _ in fs._handles.listing(third)]
    assert "sh" not in [name for name, _ in fs._handles.listing(first)]
    for handle in (first, second, third):
        await fs.releasedir(handle)


async def test_aliases_are_kept_and_moved_and_refused_with_the_rule(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    fs = world.fs
    entry = await fs.symlink(MODEL, b"main", b"/ctx/model/p/m", caller())
    assert await fs.readlink(entry.st_ino, caller()) == b"/ctx/model/p/m"
    with refused(errno.EEXIST):
        await fs.symlink(MODEL, b"main", b"x", caller())
    with refused(errno.EEXIST):
        await fs.rename(MODEL, b"main", MODEL, b"p", 0, caller())
    caplog.set_level("INFO")
    with refused(errno.EINVAL):
        await fs.rename(MODEL, b"main", MODEL, b"x.sock", 0, caller())
    assert "ends in .sock" in caplog.text  # abi.md 2.4: the log names the broken rule
    await fs.rename(MODEL, b"main", MODEL, b"fast", 0, caller())
    assert (await fs.lookup(MODEL, b"main", caller())).st_ino == 0
    assert (await fs.lookup(MODEL, b"fast", caller())).st_ino == entry.st_ino
    again = world.again()
    kept = await again.lookup(MODEL, b"fast", caller())
    assert await again.readlink(kept.st_ino, caller()) == b"/ctx/model/p/m"
    await again.unlink(MODEL, b"fast", caller())
    assert (await world.again().lookup(MODEL, b"fast", caller())).st_ino == 0


async def test_root_may_make_a_home_which_is_kept(world: World) -> None:
    await world.fs.mkdir(HOME, b"1234", 0o755, caller())
    with refused(errno.EINVAL):
        await world.fs.mkdir(HOME, b"joe", 0o755, caller())
    entry = await world.again().lookup(HOME, b"1234", caller())
    assert (entry.st_uid, stat.filemode(entry.st_mode)) == (1234, "drwx------")


async def test_a_truncated_effort_is_refused(world: World) -> None:
    inode = await world.find("model/p/m.d/effort")
    wanted, fields = pyfuse3.EntryAttributes(), cast(pyfuse3.SetattrFields, Fields(update_size=True))
    wanted.st_size = 2
    with refused(errno.EINVAL):
        await world.fs.setattr(inode, wanted, fields, None, caller())
    assert await world.read("model/p/m.d/effort") == b"auto\n"
