"""The client executes programs that stand in for objects (docs/client.md)."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from cortexfs.client import Failed, run, text
from tests.core.conversation_pair import kinds

START = '{"type":"start","run":"r1","tool":"t"}'
DONE = '{"type":"done","run":"r1","status":"ok"}'


def program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_the_frames_of_a_run(tmp_path: Path) -> None:
    said = program(tmp_path / "t", f"echo '{START}'; echo '{DONE}'; exit 3")
    with run(said) as running:
        assert kinds(list(running)) == "start done"
        assert (running.run, running.status) == ("r1", 3)  # the frames say how it ended


def test_what_it_is_given(tmp_path: Path) -> None:
    script = (
        'read line; printf \'{"type":"delta","run":"r1","text":"%s %s %s %s %s"}\\n\' '
        f'$# "$2" "$line" $CTX_OUTPUT "$PWD"; echo \'{DONE}\''
    )
    said = program(tmp_path / "t", script)
    answer = text(run(said, "a", "b c", input="in\n", cwd=tmp_path, env={"PATH": os.environ["PATH"]}))
    assert answer == f"2 b c in jsonl {tmp_path}"


def test_much_input_that_nobody_reads(tmp_path: Path) -> None:
    assert text(run(program(tmp_path / "t", f"echo '{DONE}'"), input=b"x" * (1 << 22))) == ""


def test_closing_kills_the_run(tmp_path: Path) -> None:
    said = program(tmp_path / "t", f"echo '{START}'; exec tail -f /dev/null")
    running = run(said)
    assert kinds([next(running)]) == "start"
    running.close()
    assert running.status == -signal.SIGKILL
    assert list(running) == []


def test_letting_go_kills_the_run(tmp_path: Path) -> None:
    said = program(tmp_path / "t", 'echo \'{"type":"start","run":"\'$$\'"}\'; exec tail -f /dev/null')
    pid = int(str(next(run(said)).run))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("script", "code"),
    [(f"echo '{START}'; exit 7", "EPROTO"), ("echo hello", "EPROTO"), ("exit 126", "EPROTO")],
)
def test_a_run_that_does_not_say_how_it_ended(tmp_path: Path, script: str, code: str) -> None:
    with pytest.raises(Failed, match=f"^{code}: ") as caught:
        list(run(program(tmp_path / "t", script)))
    assert str(tmp_path / "t") in caught.value.message


def test_what_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "plain").touch(mode=0o644)
    for name, code in (("nobody", "ENOENT"), ("plain", "EACCES"), ("plain/x", "ENOENT")):
        with pytest.raises(Failed, match=code):
            run(tmp_path / name)


def test_a_failure_names_what_is_wrong(tmp_path: Path) -> None:
    said = program(tmp_path / "t", f"echo '{DONE}'")
    with pytest.raises(Failed, match=r"^ENOENT: cwd: /not/there: No such file"):
        run(said, cwd="/not/there")


def test_a_lack_of_descriptors_is_no_fault_of_a_directory(tmp_path: Path) -> None:
    said = program(tmp_path / "t", f"echo '{DONE}'")
    os.close(least := os.open(os.devnull, os.O_RDONLY))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for left in (1, 0):
            resource.setrlimit(resource.RLIMIT_NOFILE, (least + left, before[1]))
            with pytest.raises(Failed, match=r"^EMFILE: /.*/t cannot be reached: Too many open files"):
                run(said)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    with pytest.raises(Failed, match=r"^EMSGSIZE: .* cannot take so long an argument"):
        run(said, "x" * (128 << 10))


def test_a_run_that_failed_is_read_to_its_end(tmp_path: Path) -> None:
    error = '{"type":"error","run":"r1","code":"EIO","message":"no"}'
    running = run(program(tmp_path / "t", f"echo '{error}'; echo '{DONE.replace('ok', 'error')}'; exit 1"))
    with pytest.raises(Failed, match="EIO: no"):
        text(running)
    assert running.status == 1
