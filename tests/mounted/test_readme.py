"""The README and the tour work by copy and paste."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

from tests.mounted.ctx_mount import Ctx, mounted
from tests.mounted.engines import NAME as LOCAL
from tests.places import PROJECT

README = (PROJECT / "README.md").read_text()


def test_the_tour(ctx: Ctx) -> None:
    tour = re.search(r"```sh\n(.*?)```", (PROJECT / "docs/tour.md").read_text(), re.DOTALL)
    assert tour is not None
    assert tour[1].count(".venv/bin/ctx ") == 1
    script = tour[1].replace(".venv/bin/ctx ", f"{ctx.python} -I -m cortexfs.cli.main ")
    done = ctx.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={"TMPDIR": str(ctx.work), "CTX_OUTPUT": "text"},  # as on a reader's terminal
    )
    assert (done.returncode, done.stderr) == (0, "shell.exec: EIO: exit status 3\n"), (
        done.stdout,
        done.stderr,
    )
    for expected in (
        "5 words",
        "2 words",
        "Hello, world",
        "hello.txt:1:",
        "err",
        '"type":"start"',
        "models are files, too",
        "word by word",
        "read_file",
        "> this is kept\n\nthis is kept\n",
        "events.jsonl",
        "Read.",
        "agent/try may execute tool:fs.read",
    ):
        assert expected in done.stdout, expected
    assert len([line for line in tour[1].splitlines() if line]) <= 20  # issue: "a 20-line tour"


def test_the_four_things(python: Path) -> None:
    page = README.replace("\\\n", "")  # joins lines that end in a backslash
    things = re.findall(r"^\*\*(.*?)\*\*.*?^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(things) == 4
    assert [lines.count("\n") for _, lines in things] == [5] * 4
    said = ""
    with mounted(python) as mount:
        uvx = mount.work / "uvx"  # the tests have the package that uvx would install
        uvx.write_text(f'#!/bin/sh\nexec {sysconfig.get_path("scripts")}/"$@"\n')
        uvx.chmod(0o755)
        environ = {"PATH": f"{mount.work}:{python.parent}:{mount.environ['PATH']}", "CTX_OUTPUT": "text"}
        for line in "".join(lines for _, lines in things).splitlines():
            model = LOCAL if "--schema" in line else "debug/echo"  # the local model is slow
            script = f'eval "$(ctx env)"\nln -sfn {model} $CTX_ROOT/model/main\n{line}'
            done = mount.run(["bash", "-euo", "pipefail", "-c", script], env=environ)
            assert done.returncode == 0, done.stdout + done.stderr
            said += done.stdout
    for expected in ('"age":', "allow coder_t tool:fs.write execute", "5 words", '"timezone": "UTC"', "uvx"):
        assert expected in said, (expected, said)
