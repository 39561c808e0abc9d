"""Archives of a state: their contents, and the archives that are refused."""

from __future__ import annotations

import errno
import gzip
import io
import os
import re
import shutil
import socket
import tarfile
from pathlib import Path

import pytest

from cortexfs.cli import output
from cortexfs.cli.main import main
from cortexfs.cli.state import archive
from cortexfs.core.errors import Fault
from cortexfs.state.directories import Places


@pytest.fixture
def where(tmp_path: Path) -> Places:
    made = Places(tmp_path / "state", tmp_path / "config")
    files = {
        "state/version": "1\n",
        "state/lock": "12\n",
        "state/daemon.log": "said",
        "state/descriptions/x": "cache",
        "state/before-1/tree": "old",
        "state/secrets/work": "sk-daemon\n",
        "state/own/1000/secrets/mine": "sk-user\n",
        "state/own/1000/providers/mine.toml": "",
        "state/sessions/home/0/model/m.d/session/secrets/events.jsonl": '{"a":1}\n{"b":2}\n{"cut',
        "config/config.toml": "[limits]\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (made.state / "tree/links/model").mkdir(parents=True)
    (made.state / "tree/links/model/main").symlink_to("/ctx/model/p/m")
    os.mkfifo(made.state / "tree/pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(made.state / "tree/sock"))
    return made


def packed(where: Places, *, secrets: bool = False) -> bytes:
    file = io.BytesIO()
    archive.write(file, where, secrets=secrets)
    return file.getvalue()


def names(data: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(data)) as read:
        return {member.name for member in read if not member.isdir()}


def test_an_archive_has_all_but_secrets_and_what_is_made_anew(where: Places) -> None:
    assert names(packed(where)) == {
        "cortexfs-state.json",
        "cortexfs-end",
        "state/version",
        "state/own/1000/providers/mine.toml",
        "state/sessions/home/0/model/m.d/session/secrets/events.jsonl",
        "state/tree/links/model/main",
        "config/config.toml",
    }


def test_a_link_in_the_place_of_a_folder_is_a_link_and_not_what_it_leads_to(
    where: Places, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/private").write_text("private")
    (where.state / "agents").symlink_to(tmp_path / "elsewhere")
    found = names(packed(where))
    assert "state/agents" in found
    assert not [name for name in found if "private" in name]


def test_state_and_configuration_may_be_links_themselves(where: Places, tmp_path: Path) -> None:
    linked = Places(tmp_path / "linked", tmp_path / "dotfiles")
    linked.state.symlink_to(where.state)
    linked.config.symlink_to(where.config)
    assert names(packed(linked)) == names(packed(where))


def test_a_long_file_is_read_whole(where: Places, tmp_path: Path) -> None:
    (where.state / "long").write_bytes(long := os.urandom(archive.MAX_READ * 2 + 3))
    (tmp_path / "into").mkdir()
    archive.read(io.BytesIO(packed(where)), tmp_path / "into", ROOM)
    assert (tmp_path / "into/state/long").read_bytes() == long


def test_secrets_are_in_it_where_they_were_asked_for(where: Places) -> None:
    more = names(packed(where, secrets=True)) - names(packed(where))
    assert more == {"state/secrets/work", "state/own/1000/secrets/mine"}
    assert b"sk-" not in gzip.decompress(packed(where))


def test_what_was_written_is_read_and_half_a_line_of_a_log_is_left_out(where: Places, tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    head = archive.read(io.BytesIO(packed(where)), into, ROOM)
    assert (head.state_version, head.secrets) == (1, False)
    log = into / "state/sessions/home/0/model/m.d/session/secrets/events.jsonl"
    assert log.read_text() == '{"a":1}\n{"b":2}\n'
    assert os.readlink(into / "state/tree/links/model/main") == "/ctx/model/p/m"
    assert (into / "config/config.toml").read_text() == "[limits]\n"


# abi.md 8.42
def test_a_machine_stays_in_its_team_over_imports(where: Places, tmp_path: Path) -> None:
    (where.state / "team/server").mkdir(parents=True)
    (where.state / "team/member.json").write_text("{}")
    where.state.chmod(0o700)
    path = str(tmp_path / "archive")
    words = ("--state", str(where.state), "--config", str(where.config))
    assert main(["state", "export", path, *words]) == 0
    for _ in range(2):
        assert main(["state", "import", path, "--yes", *words]) == 0
    assert (where.state / "team/member.json").read_text() == "{}"
    assert (where.state / "secrets/work").read_text() == "sk-daemon\n"


# abi.md 8.42
def test_what_cannot_be_imported_leaves_all_as_it_was(
    where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where.state.chmod(0o700)
    path = str(tmp_path / "archive")
    words = ("--state", str(where.state), "--config", str(where.config))
    assert main(["state", "export", path, *words]) == 0
    before = held(tmp_path)
    move, full = shutil.move, [OSError(errno.ENOSPC, "No space left on device")]

    def moved(old: Path, new: Path) -> None:
        if new == where.config / "config.toml" and full:
            raise full.pop()
        move(old, new)

    monkeypatch.setattr("shutil.move", moved)
    assert main(["state", "import", path, "--yes", *words]) == 1
    assert held(tmp_path) == before


def held(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "archive"]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def test_an_import_puts_no_secret_where_a_link_of_the_archive_leads(where: Places, tmp_path: Path) -> None:
    where.state.chmod(0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    own = member("state/own", tarfile.DIRTYPE)
    link = member("state/own/1000", tarfile.SYMTYPE, str(elsewhere))
    (tmp_path / "archive").write_bytes(attack(HEAD, (own, b""), (link, b""), END))
    words = ("--state", str(where.state), "--config", str(where.config))
    assert main(["state", "import", str(tmp_path / "archive"), "--yes", *words]) == 0
    assert not list(elsewhere.iterdir())
    assert (where.state / "secrets/work").exists()


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    for name in ("state", "config", "tree/links", "links"):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
        (tmp_path / "elsewhere" / name / "private").write_text("private")
    return tmp_path / "elsewhere"


def put_link(where: Places, name: str, to: Path) -> None:
    """Replaces a folder of the draft by a link, as a daemon that was taken over could during an import."""
    for draft in where.state.glob(f"{archive.DRAFT}*"):
        place = draft / name
        if place.is_dir() and not place.is_symlink():
            place.rename(draft.parent / "away")
            place.symlink_to(to)


@pytest.mark.parametrize("name", ["state", "config", "state/tree", "state/tree/links"])
def test_an_archive_is_read_through_no_link_that_is_put_there_meanwhile(
    where: Places,
    tmp_path: Path,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    where.state.chmod(0o700)
    (tmp_path / "archive").write_bytes(packed(where))
    following, before = archive._next, held(elsewhere)

    def swapped(read: tarfile.TarFile, data: archive._Unpacked) -> tarfile.TarInfo | None:
        put_link(where, name, elsewhere)
        return following(read, data)

    monkeypatch.setattr(archive, "_next", swapped)
    words = ("--state", str(where.state), "--config", str(where.config))
    assert main(["state", "import", str(tmp_path / "archive"), "--yes", *words]) == 1
    assert re.search(r"/state/\.import-\w+/\S+ is a link", capsys.readouterr().err)
    assert held(elsewhere) == before


@pytest.mark.parametrize(("name", "status"), [(".", 0), ("state", 1), ("config", 1)])
def test_nothing_is_moved_into_a_state_through_such_a_link(
    where: Places, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, name: str, status: int
) -> None:
    where.state.chmod(0o700)
    (tmp_path / "archive").write_bytes(packed(where))
    before = held(elsewhere)

    def sure(question: str) -> bool:
        put_link(where, name, elsewhere)
        return True

    monkeypatch.setattr(output, "sure", sure)
    words = ("--state", str(where.state), "--config", str(where.config))
    assert main(["state", "import", str(tmp_path / "archive"), *words]) == status
    assert held(elsewhere) == before
    assert not [path for path in held(where.state) if "private" in path]


def test_a_file_that_is_no_archive_is_named(
    where: Places, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").write_text("no archive")
    words = ("--state", str(where.state), "--config", str(where.config))
    assert main(["state", "import", str(tmp_path / "notes"), "--yes", *words]) == 2
    said = f"{tmp_path}/notes is damaged, or no archive of ctx state export: it is no gzip\n"
    assert capsys.readouterr().err == f"ctx state: {said}"


def attack(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as made:
        for member, data in members:
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return file.getvalue()


def member(name: str, type: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = type, link, mode
    return made


def more(said: dict[str, str], type: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    made = member("state/x", type)
    made.pax_headers = said
    return made


ROOM = 1 << 40
HEAD = (member(archive.HEAD), b'{"format":1,"version":"0","state_version":1,"secrets":false}')
END = (member(archive.END), b"")


@pytest.mark.parametrize(
    "members",
    [
        (),
        ((member("x"), b""),),
        ((member(archive.HEAD), b"{}"),),
        ((member(archive.HEAD), b'{"format":2,"version":"0","state_version":1,"secrets":false}'),),
        ((member(archive.HEAD), b" " * 5000),),
        ((member(archive.HEAD), b'{"x":' + b"[" * 4000),),
        ((member(archive.HEAD), b'{"version":"\xff"}'),),
        (HEAD, (member("/etc/x"), b"")),
        (HEAD, (member("../x"), b"")),
        (HEAD, (member("state/../../x"), b"")),
        (HEAD, (member("other/x"), b"")),
        (HEAD, (member("state/none/x"), b"")),
        (HEAD, (member("state/l", tarfile.SYMTYPE, "/tmp"), b""), (member("state/l/x"), b"")),
        (HEAD, (member("state/l", tarfile.SYMTYPE, "/tmp/x"), b""), (member("state/l"), b"")),
        (HEAD, (member("state/h", tarfile.LNKTYPE, "/etc/passwd"), b"")),
        (HEAD, (member("state/d", tarfile.CHRTYPE), b"")),
        (HEAD, (member("state/p", tarfile.FIFOTYPE), b"")),
        (HEAD, (member("state/x"), b""), (member("state/x"), b"")),
        (HEAD, (member("state"), b"")),
        (HEAD, (member("state/lock"), b""), END),
        (HEAD, (member("state/before-import"), b""), END),
        (HEAD, (more({"mtime": "nan"}), b""), END),
        (HEAD, (more({"mtime": "1e300"}), b""), END),
        (HEAD, (more({"GNU.sparse.map": "0,1", "GNU.sparse.size": "9999999999"}), b"x"), END),
        (HEAD, (more({"linkpath": "a\0b"}, tarfile.SYMTYPE), b""), END),
        (HEAD, (more({"comment": "x" * (archive.MAX_READ + 1)}), b""), END),
        (HEAD, (member("state/x"), b"")),  # the archive has no end
    ],
)
def test_what_no_export_writes_is_refused(
    tmp_path: Path, members: tuple[tuple[tarfile.TarInfo, bytes], ...]
) -> None:
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(Fault) as told:
        archive.read(io.BytesIO(attack(*members)), into, ROOM)
    assert told.value.code == "EINVAL"
    assert {path.name for path in tmp_path.iterdir()} == {"into"}


def test_no_mode_of_an_archive_lets_others_write(tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    archive.read(io.BytesIO(attack(HEAD, (member("state/x", mode=0o6777), b""), END)), into, ROOM)
    assert (into / "state/x").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("data", [b"", b"x", b"\x1f\x8b", os.urandom(4096)])
def test_garbage_is_no_archive(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Fault, match="archive"):
        archive.read(io.BytesIO(data), tmp_path, ROOM)


# abi.md 8.42
def test_an_archive_that_unpacks_to_more_than_there_is_room_for_writes_none_of_that(tmp_path: Path) -> None:
    bomb = attack(HEAD, (member("state/x"), b"x"), (member("state/bomb"), bytes(64 << 20)), END)
    assert len(bomb) < 1 << 17
    for into, room in (("bytes", 63 << 20), ("files", 2 * archive.BLOCK - 1)):
        two = ((member("state/1"), b""), (member("state/2"), b""))
        data = bomb if into == "bytes" else attack(HEAD, *two, END)
        (tmp_path / into).mkdir()
        with pytest.raises(Fault, match="half of what is free") as told:
            archive.read(io.BytesIO(data), tmp_path / into, room)
        assert told.value.code == "ENOSPC"
        assert sum(path.stat().st_size for path in (tmp_path / into).rglob("*") if path.is_file()) <= 1
    (tmp_path / "whole").mkdir()
    archive.read(io.BytesIO(bomb), tmp_path / "whole", (64 << 20) + archive.BLOCK)  # the exact limit
    assert (tmp_path / "whole/state/bomb").stat().st_size == 64 << 20


def test_half_an_archive_is_none(where: Places, tmp_path: Path) -> None:
    whole = packed(where)
    for place, end in enumerate(range(10, len(whole) - 100, 37)):
        into = tmp_path / f"into{place}"
        into.mkdir()
        with pytest.raises(Fault):
            archive.read(io.BytesIO(whole[:end]), into, ROOM)
