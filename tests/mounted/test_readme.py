"""The README's tour works by copy and paste."""

from __future__ import annotations

import re
from pathlib import Path

from tests.mounted.ctx_mount import Ctx

README = Path(__file__).parent.parent.parent / "README.md"


def test_the_tour(ctx: Ctx) -> None:
    tour = re.search(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
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
        "allow try_t tool:fs.read execute",
    ):
        assert expected in done.stdout, expected
    assert len([line for line in tour[1].splitlines() if line]) <= 20  # issue: "a 20-line tour"
