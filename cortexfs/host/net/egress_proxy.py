"""The only way out for a program that fetches: a proxy on loopback, which passes TLS to public addresses.

Main path: a connection sends CONNECT with the secret of this outlet. The outlet judges the target and
connects to it. From then on it copies bytes both ways until one side ends.

Rules: the outlet judges each target (core/networks.py), a redirect's too, so no program has to be trusted to
do so. It refuses a request that is not encrypted. It counts and bounds all bytes that arrive. It keeps each
refusal as a sentence, as programs report little of a proxy's answer. Any user can connect: the oldest
connection without the secret makes room for the next one.
This file must never know what is fetched, nor by whom.
"""

from __future__ import annotations

import base64
import secrets
import select
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

from cortexfs.core import networks
from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import clipped, shown
from cortexfs.net import web

CONNECT_SECONDS = 30.0
IDLE_SECONDS = 60.0
MAX_CONNECTIONS = 128
_MAX_HEAD = 16 << 10
_CHUNK = 1 << 16
_MAX_REFUSALS = 10
_LOOPBACK = "127.0.0.1"
_ASK = "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
_CLOSED = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_OPEN = "HTTP/1.1 200 Connected\r\n\r\n"

Socket: TypeAlias = socket.socket


class Outlet:
    def __init__(self, private: Sequence[str], most: int) -> None:
        """`private` are networks without public addresses that are open, too. `most` is a number of bytes."""
        self.refusals: list[str] = []
        self.arrived = 0
        self.connections = 0
        self._most = most
        self._private = networks.granted(private)
        self._secret = secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._sockets: set[Socket] = set()
        self._strangers: dict[Socket, None] = {}  # oldest first; they have not shown the secret
        self._closed = False
        self._listener = socket.create_server((_LOOPBACK, 0), backlog=MAX_CONNECTIONS)
        self.port: int = self._listener.getsockname()[1]

    @property
    def address(self) -> str:
        """Returns the proxy's address as a program's HTTPS_PROXY has it."""
        return f"http://x:{self._secret}@{_LOOPBACK}:{self.port}"

    def __enter__(self) -> Outlet:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *why: object) -> None:
        """End all connections."""
        with self._lock:
            self._closed = True
            for each in (self._listener, *self._sockets, *self._strangers):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # __exit__ has shut the listener
                return
            with self._lock, suppress(OSError):
                self._strangers[client] = None
                if len(self._strangers) > MAX_CONNECTIONS:
                    self._strangers.pop(oldest := next(iter(self._strangers)))
                    oldest.shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: Socket) -> None:
        server: Socket | None = None
        try:
            client.settimeout(CONNECT_SECONDS)
            server = self._connect(client)
            if server is not None and self._keep(server):
                client.sendall(_OPEN.encode())
                self._copy(client, server)
        except OSError:  # either side has gone: the other one sees its end
            pass
        except Fault as fault:
            with self._lock:
                if len(self.refusals) < _MAX_REFUSALS and fault.message not in self.refusals:
                    self.refusals.append(fault.message)
            with suppress(OSError):
                client.sendall(_CLOSED.encode())
        finally:
            for each in filter(None, (client, server)):
                with self._lock:
                    self._sockets.discard(each)
                    self._strangers.pop(each, None)
                each.close()

    def _keep(self, sock: Socket) -> bool:
        with self._lock:
            if self._closed or len(self._sockets) >= 2 * MAX_CONNECTIONS:
                return False
            self._sockets.add(sock)
            return True

    # -- one connection

    def _connect(self, client: Socket) -> Socket | None:
        """Returns the connected target; None if the client did not send the secret."""
        head = _head(client)
        line, *fields = head.split("\r\n")
        prefix = "proxy-authorization: basic "
        words = [each.split()[-1] for each in fields if each.lower().startswith(prefix)]
        word = base64.b64encode(f"x:{self._secret}".encode())
        if not words or not secrets.compare_digest(words[0].encode(), word):
            client.sendall(_ASK.encode())
            return None
        if not self._keep(client):
            return None
        with self._lock:
            self._strangers.pop(client, None)
        method, target = (*line.split(), "", "")[:2]
        if method != "CONNECT":
            raise Fault(
                "EACCES", f"{shown(clipped(target, 200))} is not an https address, and only those are fetched"
            )
        host, _, port = target.rpartition(":")
        host, number = host.strip("[]"), int(port) if port.isdecimal() else 0
        try:
            return web.connect(host, number, self._private, lambda sock: sock.settimeout(CONNECT_SECONDS))
        except (socket.gaierror, UnicodeError) as problem:
            raise Fault("EIO", f"{shown(host)} is not found: {problem}") from None
        except OSError as problem:
            raise Fault("EIO", f"{shown(host)} cannot be reached: {problem}") from None

    def _copy(self, client: Socket, server: Socket) -> None:
        self.connections += 1
        other = {client.fileno(): (client, server), server.fileno(): (server, client)}
        look = select.poll()
        for each in other:
            look.register(each, select.POLLIN)
        while ready := look.poll(IDLE_SECONDS * 1000):
            for fd, _ in ready:
                source, target = other[fd]
                data = source.recv(_CHUNK)
                if not data:
                    return
                if source is server:
                    with self._lock:
                        self.arrived += len(data)
                    if self.arrived > self._most:
                        raise Fault("EMSGSIZE", f"the fetched files are over {self._most >> 20} MiB")
                target.sendall(data)


def _head(client: Socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data:
        part = client.recv(_CHUNK)
        data += part
        if not part or len(data) > _MAX_HEAD:
            raise OSError("no request")
    return data.partition(b"\r\n\r\n")[0].decode("latin-1")
