"""An engine that behaves as its file's name says: the faults that an engine may have, without llama.cpp.

python fake_engine.py       reads a Load, and behaves as `weights` says, e.g. /x/crash-at-load
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from cortexfs.core.models import engine_protocol

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def main() -> None:
    daemon = socket.socket(fileno=0)
    load = engine_protocol.decode_load(daemon.makefile("rb").readline())
    kind = Path(load.weights).stem
    print("llama: loading", flush=True)
    threading.Thread(target=end_with, args=[daemon], daemon=True).start()
    if kind == "crash":
        print("llama: out of memory", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "exit":
        sys.exit(3)
    if kind == "slow":
        time.sleep(3600)
    if kind == "garbage":
        daemon.sendall(b'{"type":"loaded","port":"many"}\n')
        time.sleep(3600)
    if kind == "flood":
        with contextlib.suppress(OSError):
            while True:
                daemon.sendall(b"x" * 65536)
    if kind == "refuses":
        daemon.sendall(engine_protocol.encode(engine_protocol.LoadFailure("llama.cpp does not\nload it")))
        time.sleep(3600)
    serve(daemon, load, kind)


def end_with(daemon: socket.socket) -> NoReturn:
    with contextlib.suppress(OSError):
        while daemon.recv(1):
            pass
    os._exit(0)


def serve(daemon: socket.socket, load: engine_protocol.LoadRequest, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        daemon.sendall(engine_protocol.encode(engine_protocol.LoadReply(server.getsockname()[1])))
        while True:
            client, _ = server.accept()
            threading.Thread(target=answer, args=[client, load.key, kind], daemon=True).start()


def answer(client: socket.socket, key: str, kind: str) -> None:
    with client:
        request = client.recv(65536)
        assert f"Bearer {key}\r\n".encode() in request
        if b"/slots" in request:
            if kind == "hangs":
                time.sleep(3600)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
            return
        said(client, kind)


def said(client: socket.socket, kind: str) -> None:
    client.sendall(HEAD)
    event(client, b'{"choices":[{"index":0,"delta":{"content":"begun"}}]}')
    if kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "cut":
        return
    if kind == "noise":
        client.sendall(b"zz\r\nno chunk\r\n")
        return
    while kind == "circles":  # until the client has closed the connection
        try:
            event(client, b'{"choices":[{"index":0,"delta":{"content":" and on and on"}}]}')
        except OSError:
            Path(sys.argv[1]).write_text("gone")
            return
    if kind in ("hangs", "endless"):
        with contextlib.suppress(OSError):
            client.recv(1)
        if sys.argv[1:]:
            Path(sys.argv[1]).write_text("gone")
        time.sleep(3600 if kind == "hangs" else 0)
        return
    event(client, b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')
    event(client, b"[DONE]")
    client.sendall(b"0\r\n\r\n")


def event(client: socket.socket, data: bytes) -> None:
    text = b"data: " + data + b"\n\n"
    client.sendall(f"{len(text):x}\r\n".encode() + text + b"\r\n")


if __name__ == "__main__":
    main()
