"""The client for Trio: the names of `cortexfs.client`, asynchronous (docs/client.md).

from cortexfs.client.trio import Conversation, run, text

async with Conversation("model/debug/echo") as conversation:
    async for frame in conversation.send("hello"):
        print(frame)
"""

from cortexfs.client.results import Failed
from cortexfs.client.trio.conversation import Conversation, Stream
from cortexfs.client.trio.execution import Run, run
from cortexfs.client.trio.reconnecting import Lasting, resume, send
from cortexfs.client.trio.results import text

__all__ = ["Conversation", "Failed", "Lasting", "Run", "Stream", "resume", "run", "send", "text"]
