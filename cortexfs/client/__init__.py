"""A small client of CortexFS: it runs objects, and talks to objects that hold conversations (docs/client.md).

    from cortexfs.client import Conversation, run, text

    print(text(run("tool/text.word_count", "how many words")))

    with Conversation("model/debug/echo") as conversation:
        for frame in conversation.send("hello"):
            print(frame)

Each failure raises `Failed`, which has a stable `code`.
"""

from cortexfs.client.blocking import Conversation, Stream, resume, send
from cortexfs.client.execution import Run, run
from cortexfs.client.results import Failed, check, text
from cortexfs.client.sorting import new_id

__all__ = [
    "Conversation",
    "Failed",
    "Run",
    "Stream",
    "check",
    "new_id",
    "resume",
    "run",
    "send",
    "text",
]
