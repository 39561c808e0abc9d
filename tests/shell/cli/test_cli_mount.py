"""`ctx mount` up to the daemon, and `ctx doctor`; other tests use a real mount for the rest."""

from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from cortexfs.cli import mounts
from cortexfs.cli.main import main
from cortexfs.cli.mount import checks, doctor, mount, mount_checks, serve
from cortexfs.cli.mount.mount_checks import FAIL, OK, WARN, Check, Finding, Subject
from cortexfs.core.wire import PROTOCOL
from cortexfs.run import shebang
from cortexfs.state.directories import Places, place_of
from tests.shell.cli_tree import add, ctx, plant
from tests.shell.session_stores import small_disk


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    where = Places(tmp_path / "state", tmp_path / "config")
    where.config.mkdir()
    monkeypatch.setenv("CTX_STATE", str(where.state))
    monkeypatch.setenv("CTX_CONFIG", str(where.config))
    monkeypatch.setenv("CTX_ROOT", str(tmp_path / "ctx"))
    return Subject(str(tmp_path / "ctx"), where, os.getuid())


def test_mounting_would_hide_what_is_there(subject: Subject, capsys: pytest.CaptureFixture[str]) -> None:
    Path(subject.root).mkdir()
    (Path(subject.root) / "thesis.tex").write_text("")
    assert main(["mount"]) == 2
    sentence = f"{subject.root} is not empty, and the mount would hide what is in it; name an empty directory"
    assert capsys.readouterr().err == f"ctx mount: {sentence}\n"
    assert not subject.where.state.exists()


def test_a_mount_point_that_cannot_be_made_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "no" / "such"
    assert main(["mount", str(root)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ctx mount: {root} cannot be the mount point: No such file or directory; name")


@pytest.mark.parametrize("words", [[], ["--foreground"]])
def test_a_wrong_configuration_is_said_wherever_it_is_found(words: list[str], subject: Subject) -> None:
    """A detached daemon finds the fault in its own process; its sentence and status still arrive."""
    (subject.where.config / "config.toml").write_text("[limits]\ndept = 1\n")
    environ = {"CTX_STATE": str(subject.where.state), "CTX_CONFIG": str(subject.where.config)}
    done = ctx("mount", *words, root=Path(subject.root), **environ)
    sentence = (
        f"ctx mount: {subject.where.config}/config.toml: unknown key limits.dept; did you mean depth?\n"
    )
    assert (done.returncode, done.stderr, done.stdout) == (2, sentence, "")
    assert stat.S_IMODE(subject.where.state.stat().st_mode) == 0o700
    # A mount point may contain a README, as in a checkout, so the next try gets as far.
    (Path(subject.root) / "README").write_text("")
    assert ctx("mount", *words, root=Path(subject.root), **environ).stderr == sentence


def test_a_daemon_that_dies_at_once_is_said(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mount, "_command", lambda *words: ["/bin/sh", "-c", "echo cannot go on >&2; exit 3"])
    # abi.md 4.25
    assert main(["mount"]) == 70
    log = subject.where.state / "daemon.log"
    sentence = f"the daemon ended while it started (cannot go on); its log is {log}"
    assert capsys.readouterr().err == f"ctx mount: {sentence}\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_daemon_that_does_not_start_is_ended(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mount, "START_SECONDS", 0.1)
    monkeypatch.setattr(mount, "_command", lambda *words: ["/bin/sleep", "60"])
    assert main(["mount"]) == 69
    assert "the daemon did not start, and has done nothing for" in capsys.readouterr().err


def test_a_daemon_inherits_nothing(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell = "env; pwd; readlink /proc/$$/fd/0; ps -o sid= -p $$; echo $$; echo ready >&"
    monkeypatch.setattr(mount, "_command", lambda *words: ["bash", "-c", f"{tell}{words[2]}"])
    monkeypatch.setenv("PYTHONPATH", "/evil")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("https_proxy", "http://proxy")
    assert main(["mount"]) == 0
    assert capsys.readouterr().err.startswith(f"mounted at {subject.root} (pid ")
    log = (subject.where.state / "daemon.log").read_text().splitlines()
    names = {line.partition("=")[0] for line in log if "=" in line}
    assert not names & {"PYTHONPATH", "LD_PRELOAD", "OPENAI_API_KEY"}
    assert names >= {"CTX_ROOT", "CTX_STATE", "PATH", "https_proxy"}
    *_, directory, stdin, session, pid = log
    assert (directory, stdin, session.strip()) == ("/", "/dev/null", pid)


def test_mount_means_no_mount_that_is_there(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a name, `ctx mount` mounts /ctx, even while the only mount is another one."""
    monkeypatch.delenv("CTX_ROOT")
    monkeypatch.setattr(mounts, "DEFAULT_ROOT", subject.root)
    monkeypatch.setattr(mounts, "mounts", lambda: [mounts.Mount("/else", 1, os.getuid(), True)])
    monkeypatch.setattr(mount, "_command", lambda *words: ["bash", "-c", f"echo ready >&{words[2]}"])
    assert main(["mount"]) == 0
    assert capsys.readouterr().err.startswith(f"mounted at {subject.root} (pid ")


def test_a_long_log_is_put_aside(subject: Subject) -> None:
    subject.where.state.mkdir()
    log = subject.where.state / "daemon.log"
    log.write_bytes(b"x" * (mount.MAX_LOG + 1))
    with mount._log(log) as file:
        os.write(file.fileno(), b"new\n")
    assert log.read_bytes() == b"new\n"
    assert log.with_name("daemon.log.1").stat().st_size == mount.MAX_LOG + 1


def test_doctor_prints_a_line_for_each_check(subject: Subject, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 4.24
    assert main(["doctor", "--json"]) == 69
    rows = json.loads(capsys.readouterr().out)
    assert [row["check"] for row in rows] == list(checks.CHECKS)
    assert all(row["why"] for row in rows)
    assert all(row["mend"] for row in rows if row["level"] != OK)
    # One cause is one failure: a check that needs a mount does not fail for the lack of one.
    assert [row["check"] for row in rows if row["level"] == FAIL and "mount" in row["why"]] == [
        "mount answers"
    ]


def test_a_report_tells_names_and_no_secret(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # issue: "`ctx doctor --report` makes one file for a bug report without secrets"
    monkeypatch.setenv("CTX_TEST", "hidden-0")
    state, directory = subject.where
    for path, words in (
        (directory / "config.toml", "[limits]\ndepth = 7\n[hidden]\nword = 'hidden-1'\n"),
        (directory / "providers/acme.toml", "base_url = 'http://u:hidden-2@acme'\n"),
        (state / "secrets/acme", "hidden-3"),
        (state / "plugins/words/plugin.toml", "description = 'hidden-4'"),
        (state / "daemon.log", "lost\x1b[31m http://u:hidden-5@acme with sk-hidden-6-0123456789\nlast\n"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(words)
    assert main(["doctor", "--report", "-"]) == 69
    said = capsys.readouterr().out
    assert "hidden-" not in said
    for word in ("limits.depth\n", "hidden.word\n", "providers/acme.toml\n", "words\n", "CTX_TEST\n"):
        assert f"\n{word}" in said
    assert "\nlost\\x1b[31m http://(hidden)@acme with (hidden)\nlast\n" in said
    assert "\nfail mount answers: no CortexFS is mounted" in said
    assert f"\n(cannot be read: EHOSTDOWN: no CortexFS is mounted at {subject.root}" in said


def test_a_report_is_a_new_file_of_ones_own(subject: Subject, tmp_path: Path) -> None:
    path = tmp_path / "report.txt"
    assert main(["doctor", "--report", str(path)]) == 69
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert text.startswith("# Report of CortexFS.")
    assert main(["doctor", "--report", str(path)]) == 1
    assert path.read_text() == text


@pytest.mark.parametrize(("level", "status"), [(OK, 0), (WARN, 0), (FAIL, 1)])
def test_doctor_fails_only_for_failures(level: str, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: dict[str, Check] = {
        "mount answers": lambda subject: Finding(OK, "it does"),
        "other": lambda subject: Finding(level, "so it is", "mend"),
    }
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert main(["doctor", "--root", "/ctx"]) == status


def test_a_check_that_cannot_look_is_a_finding(monkeypatch: pytest.MonkeyPatch, subject: Subject) -> None:
    def breaks(subject: Subject) -> Finding:
        raise PermissionError(13, "Permission denied", "/x")

    assert doctor._checked(breaks, subject).level == FAIL


def test_a_mount_that_answers_is_well(subject: Subject) -> None:
    root = plant(Path(subject.root))
    assert mount_checks.answers(subject).level == OK
    assert mount_checks.run_socket(subject).level == FAIL
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{root}/.run.sock")
        listener.listen()
        assert mount_checks.run_socket(subject) == Finding(OK, ".run.sock takes connections")
    plugins = mount_checks.broken_plugins(subject)
    assert (plugins.level, plugins.why) == (WARN, "notes: its process was killed by SIGSEGV")
    assert plugins.mend == "mend it, or do without it: ctx plugin disable notes"  # abi.md 8.54
    assert mount_checks.broken_others(subject).level == OK
    with (root / "status").open("a") as status:
        status.write("broken provider: acme: it is not TOML\nbroken agent: base: it has no model\n")
    others = mount_checks.broken_others(subject)
    assert (others.level, others.why) == (WARN, "acme: it is not TOML / base: it has no model")


def test_a_schema_that_requires_an_unknown_name_is_found(subject: Subject) -> None:
    root = plant(Path(subject.root))
    assert mount_checks.tool_schemas(subject).level == OK
    add(root, "tool/bell", "Ring.", "mcp:bell", {"properties": {"how": {}}, "required": ["hwo", "a\nb"]})
    (root / "tool/old.d").mkdir()
    (root / "tool/old.d/schema").write_text("{")
    found = mount_checks.tool_schemas(subject)
    assert (found.level, found.why) == (WARN, "bell requires hwo, a b, and has no such property")


def test_a_name_for_another_machines_object_is_found(subject: Subject) -> None:
    # abi.md 14.14
    root = plant(Path(subject.root))
    add(root, "tool/bell+desk", "Ring.", "machine:desk", None)
    assert mount_checks.reserved_names(subject).level == OK
    for name in ("tool/bell+box", "model/acme/m+"):
        add(root, name, "Ring.", "mcp:bell", None)
    found = mount_checks.reserved_names(subject)
    assert (found.level, found.why.partition(" have ")[0]) == (WARN, "tool/bell+box, model/acme/m+")


@pytest.mark.skipif(os.geteuid() != 0, reason="a user's hosts are that user")
def test_what_plugins_run_from_is_open_to_their_callers(subject: Subject) -> None:
    assert mount_checks.plugin_copies(subject).level == OK
    copies = place_of(subject.where.state)
    copies.mkdir()
    copies.chmod(0o700)
    found = mount_checks.plugin_copies(subject)
    assert (found.level, str(copies) in found.mend) == (WARN, True)
    assert mount_checks.plugin_copies(subject._replace(uid=1)).level == OK


@pytest.mark.parametrize(("mode", "level"), [(0o700, OK), (0o750, FAIL), (0o701, FAIL)])
def test_secrets_lie_in_a_closed_directory(mode: int, level: str, subject: Subject) -> None:
    subject.where.state.mkdir()
    subject.where.state.chmod(mode)
    assert checks.state(subject).level == level


def test_a_full_disk_is_not_well(subject: Subject) -> None:
    subject.where.state.mkdir(mode=0o700)
    assert checks.state(subject).level == OK
    with small_disk(subject.where.state, 1):
        subject.where.state.chmod(0o700)
        full = checks.state(subject)
    assert (full.level, full.why) == (FAIL, f"the disk of {subject.where.state} is full")


def test_a_configuration_is_its_owners_alone(subject: Subject) -> None:
    file = subject.where.config / "config.toml"
    assert checks.configuration(subject).level == OK
    file.write_text("")
    assert checks.configuration(subject).level == OK
    file.chmod(0o666)
    assert checks.configuration(subject).level == FAIL
    file.chmod(0o644)
    file.write_text("x = 1")
    assert "unknown key x" in checks.configuration(subject).why
    file.unlink()
    (subject.where.config / "policy.toml").write_text("modus = 'open'\n")
    assert "policy.toml: unknown key modus" in checks.configuration(subject).why


def test_a_bare_system_lacks_mtab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subject: Subject) -> None:
    # fusermount3 -u: "failed to open /etc/mtab: No such file or directory"
    fusermount = tmp_path / "fusermount3"
    fusermount.write_text("")
    fusermount.chmod(0o4755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(checks, "MTAB", tmp_path / "mtab")
    user = subject._replace(uid=65534)
    found = checks.fusermount(user)
    if os.getuid() == 0:  # otherwise the file is not setuid root
        assert (found.level, "unmounts nothing" in found.why) == (FAIL, True)
    (tmp_path / "mtab").symlink_to("/proc/self/mounts")
    assert "unmounts nothing" not in checks.fusermount(user).why


def test_a_closed_directory_on_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for step in (*tmp_path.parents, tmp_path):
        if not step.stat().st_mode & stat.S_IXOTH:  # pytest's own directories are 0700
            assert checks._closed(str(tmp_path / "a" / "b")) is not None
            break
    assert checks._closed("/usr/bin") is None


@pytest.mark.parametrize(
    ("answer", "packaged", "system"),
    [
        (f"cortexfs-object-runner 1 protocol {PROTOCOL}", OK, OK),
        (f"cortexfs-object-runner 1 protocol {PROTOCOL + 1}", FAIL, WARN),
        ("something else", FAIL, WARN),
        (None, FAIL, WARN),
    ],
)
def test_runners_have_to_speak_our_protocol(
    answer: str | None,
    packaged: str,
    system: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subject: Subject,
) -> None:
    # abi.md 1.20
    runner = tmp_path / "runner"
    if answer is not None:
        runner.write_text(f"#!/bin/sh\necho {answer}\n")
        runner.chmod(0o755)
    monkeypatch.setattr(shebang, "SYSTEM", runner)
    monkeypatch.setattr(shebang, "program", lambda name: str(runner))
    assert checks.packaged_runner(subject).level == packaged
    assert checks.system_runner(subject).level == system


def test_doctor_names_the_sockets_that_refuse(tmp_path: Path) -> None:
    # abi.md 5.6
    folder = tmp_path / "model" / "acme"
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as closed:
        listener.bind(str(folder / "good.sock"))
        listener.listen()
        closed.bind(str(folder / "bad.sock"))
        assert mount_checks._refusing(tmp_path) == b"model/acme/bad.sock"


def test_a_daemon_that_is_at_work_is_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    # changelog: "`ctx mount` waits as long as the daemon comes further"
    reader, writer = os.pipe()
    tell = serve.Ready("/ctx", writer)
    for problem in ("", "", None, ""):
        tell(problem)
    assert mount._wait(reader) == serve.READY
    os.close(reader)
    reader, writer = os.pipe()
    tell = serve.Ready("/ctx", writer)
    os.close(reader)  # the starter has given up
    tell("")
    tell(None)
    serve.Ready("/ctx", None)("")
    assert capfd.readouterr() == ("", "")
