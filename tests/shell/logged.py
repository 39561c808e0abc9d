"""A mount's session files as `ctx log` reads them, planted without a daemon."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

ECHO = "model/debug/echo"


class Logged:
    """Session files. The session with the latest message comes first in the list."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        (root / "status").write_text("pid: 1\n")
        self._runs = 0
        self._ids: dict[Path, int] = {}

    def say(
        self, name: str, question: str, answer: str, object_: str = ECHO, ts: str = "", model: str = ""
    ) -> Path:
        """Add a question with its answer, and return the session's log."""
        self.begin(name, question, object_, ts)
        return self.end(name, answer, object_, model)

    def begin(self, name: str, question: str, object_: str = ECHO, ts: str = "") -> Path:
        class_, _, whose = object_.partition("/")
        self._runs += 1
        start = {
            "type": "start",
            class_: whose,
            "ts": ts or f"2026-02-01T10:{self._runs // 60:02}:{self._runs % 60:02}Z",
        }
        return self._write(name, object_, start, _message("user", question))

    def end(self, name: str, answer: str, object_: str = ECHO, model: str = "") -> Path:
        used = {"type": "usage", "input_tokens": 5, "output_tokens": 2} | ({"model": model} if model else {})
        said = _message("assistant", answer), used, {"type": "done", "status": "ok"}
        return self._write(name, object_, *said)

    def remove(self, name: str, object_: str = ECHO) -> None:
        shutil.rmtree(self._folder(object_) / name)
        self._list(object_, name, is_gone=True)

    def _write(self, name: str, object_: str, *frames: dict[str, Any]) -> Path:
        log = self._folder(object_) / name / "events.jsonl"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            for frame in frames:
                self._ids[log] = self._ids.get(log, 0) + 1
                head = {"type": frame["type"], "id": str(self._ids[log]), "run": f"r{self._runs}"}
                file.write(json.dumps(head | frame, separators=(",", ":")) + "\n")
        self._list(object_, name)
        return log

    def _list(self, object_: str, name: str, is_gone: bool = False) -> None:
        path = self._folder(object_) / "index" / "list"
        path.parent.mkdir(exist_ok=True)
        others = [each for each in (path.read_text().split() if path.exists() else []) if each != name]
        path.write_text("".join(f"{each}\n" for each in ([] if is_gone else [name]) + others))

    def _folder(self, object_: str) -> Path:
        return self.root / f"home/{os.getuid()}" / f"{object_}.d" / "session"


def _message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "text", "text": text}]}
