"""The model of this machine: how it is asked, and the process that answers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from tests.mounted.ctx_mount import Ctx

NAME = "huggingface/smollm2-135m-instruct"


def prompt(words: str = "Say hello.", tokens: int = 8, **more: object) -> str:
    return json.dumps({"input": words, "max_tokens": tokens, "temperature": 0, **more})


def engine(ctx: Ctx) -> int:
    """The pid of its engine; there is one."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            starter = (place / "stat").read_text().rpartition(")")[2].split()[1]
            parent = Path(f"/proc/{starter}/stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(ctx.pid) and b"cortexfs.host.engine_process" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    (pid,) = found
    return pid
