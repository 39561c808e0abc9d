"""`ctx ls`, `ctx run` and completion: objects are found by the names that people use."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cortexfs.cli import objects
from cortexfs.cli.main import main
from cortexfs.cli.run import become
from cortexfs.cli.shell import complete
from cortexfs.core.errors import Fault
from tests.shell.cli_tree import add, ctx, plant
from tests.waiting import PATIENCE

TOOLS = ["tool/fs.read", "tool/note.add"]
MODELS = ["model/main", "model/openai/gpt-5"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = plant(tmp_path / "ctx")
    monkeypatch.setenv("CTX_ROOT", str(root))
    return root


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, str]]:
    assert main(["ls", *words, "--json"]) == 0
    rows: list[dict[str, str]] = json.loads(capsys.readouterr().out)
    return rows


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], [*TOOLS, *MODELS]),
        (["tool"], TOOLS),
        (["model/"], MODELS),
        (["agent"], []),
        (["openai"], ["model/openai/gpt-5"]),
        (["model/openai"], ["model/openai/gpt-5"]),
        (["fs.read"], ["tool/fs.read"]),
        (["tool/fs.read"], ["tool/fs.read"]),
    ],
)
def test_ls_lists_a_class_a_provider_or_one_object(
    words: list[str], found: list[str], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [row["object"] for row in listed(capsys, *words)] == found


def test_ls_says_what_objects_say(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls"]) == 0
    heads, *rows = (line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines())
    assert heads == ["OBJECT", "STATUS", "ORIGIN", "DESCRIPTION"]
    assert rows[0] == ["tool/fs.read", "ready", "builtin", "Read a file."]
    assert rows[1] == ["tool/note.add", "ready", "plugin:notes@1.2", "Keep a note\\x1b[31m."]
    assert rows[2] == ["model/main", "ready", "provider:openai", "alias of model/openai/gpt-5"]


def test_ls_reads_one_file_about_everybodys_objects(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 1.25; a model that the file lacks may be a newer one
    told = {"object": "tool/fs.read", "status": "ready", "origin": "builtin", "description": "Told."}
    (root / ".objects").write_text(json.dumps(told) + "\n")
    assert [row["description"] for row in listed(capsys)][:3] == [
        "Told.",
        "Keep a note\x1b[31m.",
        "alias of model/openai/gpt-5",
    ]
    (root / ".objects").write_text('{"object": "tool/fs.read"}\n')
    assert listed(capsys)[0]["description"] == "Read a file. It may be large."


def test_ls_shows_the_users_own_objects(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # abi.md 1.10
    own = f"home/{os.getuid()}/tool/mine"
    add(root, own, "Mine.", "user", {})
    add(root, f"home/{os.getuid() + 1}/tool/theirs", "Theirs.", "user", {})
    assert [row["object"] for row in listed(capsys, "tool")] == [*TOOLS, own]
    assert [row["object"] for row in listed(capsys, "mine")] == [own]


def test_ls_without_a_mount_is_69(tmp_path: Path) -> None:
    assert ctx("ls", root=tmp_path).returncode == 69


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("fs.read", "tool/fs.read"),
        ("tool/fs.read", "tool/fs.read"),
        ("model/main", "model/main"),
        ("main", "model/main"),
        ("openai/gpt-5", "model/openai/gpt-5"),
    ],
)
def test_an_object_is_found_by_name(name: str, path: str, root: Path) -> None:
    assert objects.resolve(str(root), name) == f"{root}/{path}"


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        ("fs.raed", "ENOENT", "there is no object 'fs.raed'; did you mean fs.read?"),
        ("tool/fs.raed", "ENOENT", "there is no object 'tool/fs.raed'; did you mean tool/fs.read?"),
        ("qqqq", "ENOENT", "there is no object 'qqqq'; see: ctx ls"),
        ("tool/fs.read.d", "EINVAL", "'tool/fs.read.d' is no object that can be run"),
        ("openai", "EINVAL", "'openai' is no object that can be run"),
        ("", "EINVAL", "'' is no object that can be run"),
        ("/no/such", "ENOENT", "there is no /no/such"),
    ],
)
def test_what_is_not_there_is_said_with_the_nearest(name: str, code: str, sentence: str, root: Path) -> None:
    with pytest.raises(Fault) as caught:
        objects.resolve(str(root), name)
    assert caught.value.code == code
    assert caught.value.message.startswith(sentence)


def test_a_provider_with_sessions_is_no_question(root: Path) -> None:
    # ctx.md: "What is said over a `.sock` is kept as ordinary files", below home/UID/model/PROVIDER
    (root / f"home/{os.getuid()}/model/openai").mkdir(parents=True)
    with pytest.raises(Fault, match="'openai' is no object that can be run"):
        objects.resolve(str(root), "openai")


def test_a_name_in_two_classes_is_a_question(root: Path) -> None:
    add(root, "agent/main", "An agent.", "builtin", None)
    with pytest.raises(Fault, match="'main' may mean agent/main or model/main; say which"):
        objects.resolve(str(root), "main")


def test_run_becomes_the_object(root: Path) -> None:
    # "so exit code, stdin, streaming are the runner's own"
    done = ctx("run", "fs.read", "--help", "--", "a b", "--root=x", root=root, input="typed")
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout == "<--help>\n<-->\n<a b>\n<--root=x>\ntyped"


def test_run_refuses_files_that_are_no_objects(tmp_path: Path) -> None:
    plain, pipe, program = tmp_path / "plain", tmp_path / "pipe", tmp_path / "program"
    plain.write_text("text\n")
    os.mkfifo(pipe)
    program.write_text("#!/bin/sh\necho run\n")
    program.chmod(0o755)
    for path in map(str, (plain, pipe, program)):
        done = ctx("run", path, root=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"ctx run: {path!r} is no object that can be run; give a tool"), done


def test_run_takes_a_path_without_a_mount(root: Path, tmp_path: Path) -> None:
    done = ctx("run", str(root / "tool" / "fs.read"), root=tmp_path)
    assert done.returncode == 7


@pytest.mark.parametrize(
    ("first_line", "mode", "status", "sentence"),
    [
        ("#!/no/such/runner", 0o555, 69, "the runner that its first line names is not installed"),
        ("#!/bin/sh", 0o444, 13, "you may not execute it"),
        ("\0", 0o555, 70, "it is no program"),
    ],
)
def test_run_says_why_it_cannot(first_line: str, mode: int, status: int, sentence: str, root: Path) -> None:
    # abi.md 4.24, 4.23
    tool = root / "tool" / "fs.read"
    tool.unlink()
    tool.write_text(f"{first_line}\n")
    tool.chmod(mode)
    done = ctx("run", "fs.read", root=root)
    assert (done.returncode, done.stderr.count("\n")) == (status, 1)
    assert done.stderr.startswith(f"ctx run: tool/fs.read cannot be run: {sentence}")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("ctx stat", ["status", "state"]),
        ("/usr/bin/ctx um", ["umount"]),
        ("cortex --v", ["--version"]),
        ("ctx status --", ["--help", "--root", "--json"]),
        ("ctx --root /x status --j", ["--json"]),
        ("ctx run fs", ["fs.read"]),
        ("ctx run tool/", TOOLS),
        ("ctx run op", ["openai/gpt-5"]),
        ("ctx run --r", ["--root"]),
        ("ctx ls to", ["tool"]),
        ("ctx team export tool/fs.r", ["tool/fs.read"]),
        ("ctx team export model/o", ["model/openai/gpt-5"]),
        ("ctx completion ", ["bash", "zsh", "fish"]),
        ("ctx plugin u", ["uninstall", "ui"]),
        ("ctx plugin list --j", ["--json"]),
        ("ctx mount --f", ["--foreground"]),
        ("ctx mount ", []),
        ("ctx mount --state ", []),
        ("ctx run fs.read --l", ["--limit"]),
        ("ctx run model/main x", []),
        ("ctx run no.such --l", []),
        ("ctx nonsense --", []),
        ("ctx ask --model=op", ["--model=openai/gpt-5"]),
        ("ctx ask --no-log=", []),
        ("ctx provider add op", ["openai", "openrouter"]),
        ("ctx ask --save op", []),
        ("ctx run $CTX_ROOT/tool/fs.read --l", ["--limit"]),
        ("${CTX_ROOT}/tool/fs.read --l", ["--limit"]),
        ("ctx wa", ["wave-hand"]),
        ("cortex wave-hand --w", ["--wide", "--with"]),
        ("cortex wave-hand ann 1 ", ["true", "false"]),
        ("cortex help wave", ["wave-hand"]),
        ("cortex wi", []),
        ("cortex wink --", []),
        ("/bin/ls --", []),
    ],
)
def test_candidates(words: str, found: list[str], root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete", "--", *words.split(" ")]) == 0
    assert [line.rstrip("=") for line in capsys.readouterr().out.splitlines()] == found


def test_candidates_of_an_object_by_path(root: Path) -> None:
    assert [word.rstrip("=") for word in complete.candidates([f"{root}/tool/fs.read", "--l"])] == ["--limit"]
    assert complete.candidates([f"{root}/model/main", "--"]) == ["--help"]


def test_a_path_property_completes_files(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work" / "docs").mkdir(parents=True)
    (tmp_path / "work" / "docs" / "a b").write_text("")
    (tmp_path / "work" / ".hidden").write_text("")
    monkeypatch.chdir(tmp_path / "work")
    tool = f"{root}/tool/fs.read"
    assert complete.candidates([tool, "do"]) == ["docs/"]
    assert complete.candidates([tool, "--path", ""]) == ["docs/"]
    assert complete.candidates([tool, "--path", "."]) == [".hidden"]
    assert complete.candidates([tool, "--path=docs/"]) == ["--path=docs/a b"]
    assert complete.candidates([tool, "--path", "~/"]) == []
    assert complete.candidates(["ctx", "ask", "--attach=do"]) == ["--attach=docs/"]


def test_bash_is_told_every_path(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["complete"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{root}/{name}" for name in [*TOOLS, *MODELS]]


def test_without_a_mount_there_are_no_candidates_and_no_words(tmp_path: Path) -> None:
    done = ctx("complete", "--", "ctx", "run", "f", root=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def shell_path(tmp_path: Path) -> str:
    """Returns a PATH on which `ctx` runs this program."""
    program = tmp_path / "bin" / "ctx"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m cortexfs.cli.main "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:/usr/bin:/bin"


BASH = r"""
eval "$(ctx completion bash)"
tab() {  # completes the words as readline hands them over
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _ctx_complete
    printf '%s\n' "${COMPREPLY[*]}"
}
tab ctx statu
tab ctx run fs
tab "$CTX_ROOT/tool/fs.read" --li
tab ctx run fs.read --path = do
tab ctx run fs.read --path =
tab cortex wav
tab cortex wave-hand --wi
complete -p "$CTX_ROOT/tool/fs.read" ctx cortex
"""

ZSH = """\
PS1=; unsetopt zle_bracketed_paste; autoload -Uz compinit; compinit -D -u; eval "$(ctx completion zsh)"
echo rea''dy
"""

FISH = r"""
ctx completion fish | source
complete -C 'ctx statu'
complete -C 'ctx run fs'
complete -C "$CTX_ROOT/tool/fs.read --li"
complete -C 'ctx run fs.read --path do'
complete -C 'ctx run fs.read path=docs/a\ b/'
complete -C 'ctx run fs.read --path "docs/a b/'
complete -C 'ctx tool add ~/doc'
complete -C '$CTX_ROOT/tool/fs.read --li'
complete -C 'cortex wav'
complete -C 'ctx wave-hand --spe'
"""


def typed(shell: list[str], script: str, root: Path, path: str, work: Path) -> list[str]:
    (work / "docs" / "a b" / "c").mkdir(parents=True)
    done = subprocess.run(
        [*shell, script],
        env={"PATH": path, "CTX_ROOT": str(root), "HOME": str(work), "PYTHONPATH": os.getcwd()},
        cwd=work,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes(root: Path, shell_path: str, tmp_path: Path) -> None:
    lines = typed(["bash", "--norc", "-c"], BASH, root, shell_path, tmp_path / "work")
    assert lines[:5] == ["status", "fs.read", "--limit", "docs/", "docs/"]
    assert lines[5:7] == ["wave-hand", "--wide --with"]
    assert [line.split()[-1] for line in lines[7:]] == [f"{root}/tool/fs.read", "ctx", "cortex"]


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
def test_fish_completes(root: Path, shell_path: str, tmp_path: Path) -> None:
    lines = typed(["fish", "--no-config", "-c"], FISH, root, shell_path, tmp_path / "work")
    assert [line.rstrip("=") for line in lines] == [
        "status",
        "fs.read",
        "--limit",
        "docs/",
        "path=docs/a b/c/",
        "docs/a b/c/",
        "~/docs/",
        "--limit",
        "wave-hand",
        "--speed",
    ]


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_completes(root: Path, shell_path: str, tmp_path: Path) -> None:
    # zsh completes only in its line editor, so the test types there; ^A lets it put echo before the line.
    environ = {"PATH": shell_path, "CTX_ROOT": str(root), "HOME": str(tmp_path), "PYTHONPATH": os.getcwd()}
    leader, follower = pty.openpty()
    shell = subprocess.Popen(
        ["zsh", "-f", "-i"],
        env=environ | {"TERM": "dumb"},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        cwd=root,
        start_new_session=True,
    )
    os.close(follower)
    try:
        os.write(leader, ZSH.encode())
        await_text(leader, "\nready")
        for start, end in (
            ("ctx statu", "ctx status"),
            ("cortex wav", "cortex wave-hand"),
            ("ctx wave-hand --spe", "ctx wave-hand --speed"),
            (f"{root}/tool/fs.read --li", f"{root}/tool/fs.read --limit"),
            ("$CTX_ROOT/tool/fs.read --li", f"{root}/tool/fs.read --limit"),
            ("tool/fs.read --li", "tool/fs.read --limit"),
        ):
            os.write(leader, f"{start}\t\x01echo '<' \x05'>'\n".encode())
            await_text(leader, f"< {end}")
    finally:
        shell.kill()
        shell.wait()
        os.close(leader)


def await_text(terminal: int, wanted: str) -> None:
    """Reads the output of a terminal until it contains `wanted`."""
    seen = ""
    while wanted not in seen:
        assert select.select([terminal], [], [], PATIENCE)[0], seen
        seen += os.read(terminal, 4096).decode(errors="replace")


def test_a_program_that_cannot_be_becomes_nothing_else(tmp_path: Path) -> None:
    # With the default SIGPIPE, a closed pipe would silently end a caller that goes on after the failure.
    before = signal.getsignal(signal.SIGPIPE)
    with pytest.raises(FileNotFoundError):
        become(str(tmp_path / "none"), ["none"])
    assert signal.getsignal(signal.SIGPIPE) == before
