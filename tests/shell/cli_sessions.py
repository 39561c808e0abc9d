"""Session directories as a mount shows them, planted without a daemon."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Sessions:
    """The sessions of one object."""

    def __init__(self, root: Path, object_: str = "model/debug/echo", space: str | None = None) -> None:
        self.root = str(root)
        self.object = object_
        self.folder = root / (space or f"home/{os.getuid()}") / f"{object_}.d" / "session"
        self.folder.mkdir(parents=True)
        self._facts: list[dict[str, Any]] = []

    def add(self, name: str, updated: float, state: str = "done", said: str = "hello") -> Path:
        """Add a session with one message."""
        place = self.folder / name
        place.mkdir()
        messages = [_message(2, "user", said), _message(4, "assistant", said)]
        events: list[dict[str, Any]] = [
            {"type": "start", "id": "1", "run": "r", "request": "m", "model": "debug/echo"},
            {"type": "message", **messages[0]},
            {"type": "delta", "id": "3", "run": "r", "text": said},
            {"type": "message", **messages[1]},
            {"type": "done", "id": "5", "run": "r", "status": "ok"},
        ]
        _lines(place / "events.jsonl", events)
        _lines(place / "messages.jsonl", messages)
        (place / "state").write_text(f"{state}\n")
        meta = {"session": name, "state": state, "messages": 2, "cwd": "/work", "last": "5"}
        (place / "meta.json").write_text(json.dumps(meta))
        size = (place / "events.jsonl").stat().st_size
        facts = meta | {"updated": updated, "size": size}
        self._facts = sorted([*self._facts, facts], key=lambda each: -each["updated"])
        self.left()
        return place

    def left(self) -> list[str]:
        """Returns the names of the sessions that are there, and has the facts follow, as a daemon does."""
        self._facts = [facts for facts in self._facts if (self.folder / facts["session"]).exists()]
        _lines(self.folder / ".facts", self._facts)
        return sorted(facts["session"] for facts in self._facts)


def _message(id_: int, role: str, text: str) -> dict[str, Any]:
    return {"id": str(id_), "run": "r", "role": role, "content": [{"type": "text", "text": text}]}


def _lines(path: Path, values: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(value, separators=(',', ':'))}\n" for value in values))
