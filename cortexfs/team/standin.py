"""A process that acts as one user of this machine, for calls from others: it only connects to the mount.

    python -I -S standin.py ROOT HOME [UID GID GROUP...]

Standard input is a SOCK_SEQPACKET socket to the link. A packet is the path of an object, or of its socket.
The answer is its inode number and, as SCM_RIGHTS, a connection to `.run.sock` or to that socket, or an errno.
The answer also tells if the path is a link, which may lead elsewhere at the next call. The daemon learns the
caller from the connection, as of any caller.

Rules: it is a program of its own and imports only the standard library, as it starts for each user. It reads
no byte of a call. It ends with the link, even while it is stopped. It becomes its user itself, and executes
nothing after that: so the kernel lets this user neither trace it nor take its socket. Only then does it
change to the user's home, as a home may not answer. The link trusts its answers.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import stat
import struct
import sys

ANSWER = struct.Struct("<iQ?")  # an errno, the inode, and whether the path is a link
MAX_PATH = 4096
_PR_SET_PDEATHSIG = 1
SOCKET = ".run.sock"


def serve(link: socket.socket, root: str) -> None:
    while path := link.recv(MAX_PATH):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            target = f"{root}/{path.decode()}"
            status = os.lstat(target)
            is_link = stat.S_ISLNK(status.st_mode)
            inode = (os.stat(target) if is_link else status).st_ino
            connection.connect(target if target.endswith(".sock") else f"{root}/{SOCKET}")
            socket.send_fds(link, [ANSWER.pack(0, inode, is_link)], [connection.fileno()])
        except OSError as problem:
            link.send(ANSWER.pack(problem.errno or errno.EIO, 0, False))
        finally:
            connection.close()


def become(uid: int, gid: int, *groups: int) -> None:
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def settle(home: str) -> None:
    """Call it as the user: becoming the user clears the signal that a parent's end sends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    with contextlib.suppress(OSError):
        os.chdir(home)


if __name__ == "__main__":
    if account := [int(number) for number in sys.argv[3:]]:
        become(*account)
    settle(sys.argv[2])
    with contextlib.suppress(ConnectionError):  # the link was killed, with an answer unread
        serve(socket.socket(fileno=0), sys.argv[1])
