"""Helpers for the model of this machine: calls of the model, and its engine's process."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from tests.mounted.ctx_mount import Answer, Ctx

NAME = "huggingface/smollm2-135m-instruct"


def prompt(words: str = "Say hello.", tokens: int = 8, **more: object) -> str:
    return json.dumps({"input": words, "max_tokens": tokens, "temperature": 0, **more})


def ask(ctx: Ctx, given: str = "", name: str = NAME, **options: Any) -> Answer:
    return Answer(ctx.run([str(ctx.root / "model" / name), given or prompt()], text=False, **options))


def engine(ctx: Ctx) -> int:
    """Returns the pid of the mount's only engine."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            starter = (place / "stat").read_text().rpartition(")")[2].split()[1]
            parent = Path(f"/proc/{starter}/stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(ctx.pid) and b"cortexfs.host.engine_process" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    (pid,) = found
    return pid
