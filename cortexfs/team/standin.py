"""A process that is one user of this machine, for calls from others: it connects to the mount, and no more.

    python -I -S standin.py ROOT [UID GID GROUP...]

Standard input is a SOCK_SEQPACKET socket to the link. A packet is the path of an object, or of its socket.
The answer is its inode number and, as SCM_RIGHTS, a connection to `.run.sock` or to that socket, or an errno.
The daemon learns from the connection who calls, as of any caller.

Rules: it is a program of its own and imports the standard library alone, as it starts for each user. It reads
no byte of a call. It ends with the link. It becomes its user itself, and executes nothing after that: so the
kernel lets this user neither trace it nor take its socket. The link believes what it says, and waits for its
end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys

ANSWER = struct.Struct("<iQ")
MAX_PATH = 4096
SOCKET = ".run.sock"


def serve(link: socket.socket, root: str) -> None:
    while path := link.recv(MAX_PATH):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            wanted = f"{root}/{path.decode()}"
            inode = os.stat(wanted).st_ino
            connection.connect(wanted if wanted.endswith(".sock") else f"{root}/{SOCKET}")
            socket.send_fds(link, [ANSWER.pack(0, inode)], [connection.fileno()])
        except OSError as problem:
            link.send(ANSWER.pack(problem.errno or errno.EIO, 0))
        finally:
            connection.close()


def become(uid: int, gid: int, *groups: int) -> None:
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


if __name__ == "__main__":
    if account := [int(number) for number in sys.argv[2:]]:
        become(*account)
    with contextlib.suppress(ConnectionError):  # the link was killed, with an answer unread
        serve(socket.socket(fileno=0), sys.argv[1])
