"""`ctx service`: units that systemd accepts, and sentences where there is no systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cortexfs.cli import daemons, mounts
from cortexfs.cli.main import main
from cortexfs.cli.mount import umount
from cortexfs.cli.service import service, systemd
from tests.tables import each_of

# Each of these gives a unit its own mount namespace, so others do not see its mounts (systemd.exec(5)).
NAMESPACES = (
    "Private", "Protect", "ReadWritePaths", "ReadOnlyPaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths",
    "BindPaths", "BindReadOnlyPaths", "TemporaryFileSystem", "RootDirectory", "RootImage", "MountFlags",
    "MountAPIVFS", "DynamicUser", "StateDirectory", "LogsDirectory", "RuntimeDirectory", "CacheDirectory",
)  # fmt: skip
# Each of these is a filter of system calls, and some set no_new_privs with it.
FILTERS = ("SystemCall", "Restrict", "LockPersonality", "MemoryDenyWriteExecute")

ODD = '/srv/a "b" $HOME %h\\x'


def keys(text: str) -> set[str]:
    return {line.partition("=")[0] for line in text.splitlines() if "=" in line and not line.startswith("#")}


def both(system: bool, root: str = "/ctx") -> list[systemd.ServiceUnit]:
    return [
        systemd.mount_unit("/usr/bin/true", root, "/var/lib/cortexfs", "/etc/cortexfs", system=system),
        systemd.page_unit("/usr/bin/true", root, system=system),
    ]


# abi.md 8.39
@pytest.mark.parametrize("system", [True, False])
def test_systemd_takes_the_units(tmp_path: Path, system: bool) -> None:
    for root in ("/ctx", ODD):
        for unit in both(system, root):
            (tmp_path / unit.name).write_text(unit.text)
        paths = [str(tmp_path / unit.name) for unit in both(system, root)]
        words = ["systemd-analyze", "--system" if system else "--user", "--man=no", "verify", *paths]
        environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
        done = subprocess.run(words, capture_output=True, text=True, env=environ)
        said = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "cortexfs" in line]
        assert (done.returncode, said) == (0, []), done.stderr


def test_systemd_rates_the_units(tmp_path: Path) -> None:
    for unit in both(True):
        (tmp_path / unit.name).write_text(unit.text)
        words = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(tmp_path / unit.name)]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"Overall exposure level for {unit.name}" in done.stdout


@each_of("system", [True, False])
def test_the_mount_is_seen_by_others_and_serves_setuid_programs(system: bool) -> None:
    text = both(system)[0].text
    assert not [key for key in keys(text) if key.startswith((*NAMESPACES, *FILTERS, "NoNewPrivileges"))]
    assert {"Type", "WatchdogSec"} <= keys(text)
    assert "Type=notify\n" in text
    assert "TasksMax=infinity\n" in text  # so that 32 hosts of a user leave processes to other users


@each_of("system", [True, False])
def test_the_page_is_no_sandboxed_stranger_to_the_mount(system: bool) -> None:
    assert not [key for key in keys(both(system)[1].text) if key.startswith((*NAMESPACES, *FILTERS))]


@each_of(
    "word, quoted",
    [
        ("/usr/bin/ctx", "/usr/bin/ctx"),
        ("a b", '"a b"'),
        ('a"b\\', '"a\\"b\\\\"'),
        ("$HOME", '"$$HOME"'),
        ("100%", '"100%%"'),
        ("a\nExecStartPre=/bin/sh", '"a\\nExecStartPre=/bin/sh"'),
        ("", '""'),
    ],
)
def test_a_word_of_a_command_stays_one_word(word: str, quoted: str) -> None:
    assert systemd.command([word]) == quoted


# abi.md 8.40
@pytest.mark.skipif(os.path.isdir("/run/systemd/system"), reason="systemd runs here")
def test_without_systemd_it_says_what_to_run_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("CTX_ROOT", f"{tmp_path}/ctx")
    assert main(["service", "install", "--user"]) == 69
    assert "no systemd of yours runs here; at the start of your session, run: " in (
        said := capsys.readouterr().err
    )
    assert said.strip().endswith(f"/ctx mount {tmp_path}/ctx")
    assert not list(tmp_path.iterdir())
    if os.geteuid() == 0:
        assert main(["service", "install"]) == 69
        assert "no systemd runs here; at the start of the machine, run: " in capsys.readouterr().err


def test_what_would_be_written_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = ["--state", str(tmp_path / "state"), "--config", str(tmp_path / "config")]
    assert main(["service", "install", "--user", "--print", "--root", f"{tmp_path}/ctx", *places]) == 0
    said = capsys.readouterr().out
    command = f"/ctx mount {tmp_path}/ctx --foreground --state {tmp_path}/state --config {tmp_path}/config"
    assert f"{command}\n" in said
    assert "WantedBy=default.target" in said


@each_of(
    "owner, why",
    [
        (0, "is the mount of root"),
        (7, "is the mount of uid 7"),
        (None, "is not yours to mount on"),
    ],
)
def test_a_place_where_the_user_cannot_mount_is_refused(
    owner: int | None, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mount = mounts.Mount("/srv/ctx", 1, owner, True) if owner is not None else None
    monkeypatch.setenv("CTX_ROOT", "/srv/ctx")
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(mounts, "mounted_at", lambda point: mount)
    for words in (["--user"], ["--user", "--print"]):
        assert main(["service", "install", *words]) == 13
        mend = "name a directory of your own: ctx service install --root DIR"
        assert f"/srv/ctx {why}; {mend}" in capsys.readouterr().err
    assert main(["service", "install", "--system", "--print"]) == 0  # root's to install


def test_what_is_not_there_is_neither_removed_nor_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["service", "remove", "--user"]) == 1
    assert main(["service", "status", "--user"]) == 1
    assert "no service of CortexFS is installed" in capsys.readouterr().err
    folder = tmp_path / "systemd/user" if os.getuid() else tmp_path / ".config/systemd/user"
    folder.mkdir(parents=True)
    (folder / "cortexfs.service").write_text("[Service]\nExecStart=/bin/true\n")
    assert main(["service", "remove", "--user"]) == 1
    assert (folder / "cortexfs.service").exists()


UNIT = "0::/system.slice/cortexfs.service/daemon"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Plays a systemd that keeps the process of this test. Returns the commands that it receives."""
    told: list[list[str]] = []

    def run(words: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        assert env["XDG_RUNTIME_DIR"] == f"/run/user/{os.getuid()}"
        told.append([word for word in words if word not in ("systemctl", "--no-pager")])
        return subprocess.CompletedProcess(words, 0, f"{os.getpid()}\n", "")

    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(service, "_runs_here", lambda system: True)
    monkeypatch.setattr(service, "SYSTEM", tmp_path)
    return told


def daemon(monkeypatch: pytest.MonkeyPatch, groups: str, pid: int | None = None) -> None:
    monkeypatch.setattr(mounts, "mounted_at", lambda point: mounts.Mount(point, 1, os.getuid(), True))
    monkeypatch.setattr(mounts, "is_stale", lambda point: False)

    def found(_: mounts.Mount) -> daemons.RunningDaemon:
        return daemons.RunningDaemon(daemons.PinnedProcess(pid or os.getpid()), "/s", "/c", groups)

    monkeypatch.setattr(daemons, "of", found)


@pytest.mark.parametrize(
    ("groups", "pid", "system"),
    [
        (UNIT, None, True),
        ("1:name=systemd:/system.slice/cortexfs.service\n0::/", None, True),
        ("0::/user.slice/user-7.slice/user@7.service/app.slice/cortexfs.service", None, False),
        (UNIT, os.getppid(), None),  # a tool of the unit's daemon mounted this
        ("0::/system.slice/cortexfs.services", None, None),
        ("0::/system.slice/my-cortexfs.service", None, None),
    ],
)
def test_the_daemon_that_systemd_keeps_is_known(
    groups: str, pid: int | None, system: bool | None, asked: list[list[str]]
) -> None:
    pinned = daemons.PinnedProcess(pid or os.getpid())
    assert systemd.keeps(daemons.RunningDaemon(pinned, "/s", "/c", groups)) is system
    pinned.close()
    assert all(words[:2] == ["--user" if system is False else "--system", "show"] for words in asked)


# abi.md 8.50
@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
@pytest.mark.parametrize(("groups", "ended"), [("0::/user.slice", True), (UNIT, False)])
def test_a_mount_made_by_hand_gives_way_to_the_unit(
    groups: str, ended: bool, asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon(monkeypatch, groups)
    points: list[str] = []
    monkeypatch.setattr(umount, "run", lambda options: points.append(options.point))
    assert main(["service", "install", "--root", "/srv/ctx"]) == 0
    assert points == (["/srv/ctx"] if ended else [])
    assert asked[0] == ["--system", "daemon-reload"]
    assert asked[-1] == ["--system", "enable", "--now", "cortexfs.service"]


# abi.md 8.50
def test_a_mount_that_systemd_keeps_is_restarted_by_it(
    asked: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon(monkeypatch, UNIT)
    assert main(["restart", "/srv/ctx"]) == 0
    assert asked[-1] == ["--system", "restart", "cortexfs"]
    assert main(["restart", "/srv/ctx", "--state", "/other"]) == 1
    assert asked[-1] == ["--system", "show", "--property=MainPID", "--value", "cortexfs"]
    first, last = capsys.readouterr().err.splitlines()
    assert first == "systemd restarted cortexfs, which is mounted at /srv/ctx"
    assert last.endswith("stop it first: systemctl stop cortexfs; and afterwards: systemctl start cortexfs")


assert shutil.which("systemd-analyze"), "the package systemd is missing"
