"""The kernel's table of mounts (proc(5), mountinfo), and the owner of a mount (abi.md 1.22)."""

from __future__ import annotations

from cortexfs.core import mountinfo
from cortexfs.core.mountinfo import Mount
from tests.tables import each_of

LINE = "{id} 1 0:{id} {inside} {point} rw - {fstype} cortexfs rw,user_id={owner},group_id=0{more}"


def line(point: str, id_: int = 40, owner: int = 0, inside: str = "/", **more: str) -> str:
    fstype, words = more.get("fstype", "fuse.cortexfs"), more.get("words", "")
    return LINE.format(id=id_, inside=inside, point=point, fstype=fstype, owner=owner, more=words)


def test_whole_trees_alone_are_mounts() -> None:
    table = [
        line("/ctx", 40, words=",allow_other"),
        line("/home/me/a\\040b", 41, owner=1000),
        line("/srv/tool", 40, inside="/tool"),
        line("/data", 42, fstype="fuse.sshfs"),
    ]
    assert mountinfo.mounts("\n".join(table)) == [
        Mount("/ctx", 40, 0, True),
        Mount("/home/me/a b", 41, 1000, False),
    ]


@each_of(
    ("owner", "uid", "is_so"), [(0, 1000, False), (1000, 1000, False), (1001, 1000, True), (1000, 0, True)]
)
def test_a_strangers_mount_is_named(owner: int, uid: int, is_so: bool) -> None:
    # abi.md 1.22
    assert Mount("/m", 1, owner, True).is_strangers(uid) == is_so


def test_the_device_is_that_of_the_mount_on_top() -> None:
    table = "\n".join([line("/m\\040n", 40), line("/m\\040n", 43), line("/o", 44)]).encode()
    assert mountinfo.device(table, "/m n") == (0, 43)
    assert mountinfo.device(table, "/none") == (0, 0)


def test_the_device_of_a_mount_is_found_by_its_id() -> None:
    table = f"{line('/m', 40)}\n9{line('/m', 300)}".encode()
    number = table.splitlines()[1].split()[0]
    assert mountinfo.device_of(table, number) == (0, 300)
    assert mountinfo.device_of(table, b"1") == (0, 0)
