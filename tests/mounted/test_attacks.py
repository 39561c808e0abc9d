"""A hostile local user against a daemon of root's: attacks must fail, and must not affect other users.

docs/attacks.md names these tests as the evidence for its claims.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cortexfs.core.wire import PROTOCOL
from cortexfs.talk.listener import BACKLOG
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="an attacker of another uid needs a root daemon")

MALLORY = 1234

# The begin of every attacker's script, which sees no package of ours.
PRELUDE = (
    f"PROTOCOL = {PROTOCOL}\n"
    + """
import array, json, os, socket, struct, sys, time
ROOT = sys.argv[1]
INODE = os.stat(ROOT + "/tool/text.word_count").st_ino
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect(ROOT + "/.run.sock")
    return s
def hello(argc, envc, size, inode=INODE, protocol=PROTOCOL):
    return struct.pack("<4sIQIIIII", b"CTX1", protocol, inode, 0, 0o22, argc, envc, size)
def answer(s):
    got = b""
    try:
        while part := s.recv(65536):
            got += part
    except ConnectionResetError:
        pass
    return got.decode("latin-1")
def say(value):
    print(json.dumps(value), flush=True)
"""
)


def attack(ctx: Ctx, script: str, uid: int = MALLORY) -> Any:
    """Run a script as the attacker, and return its output, parsed as JSON."""
    done = ctx.run([str(ctx.python), "-I", "-c", PRELUDE + script, str(ctx.root)], uid=uid)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Attacker:
    """A script that attacks until told to end. Other users must be served meanwhile."""

    def __init__(self, ctx: Ctx, script: str, uid: int = MALLORY) -> None:
        words = [
            str(ctx.python),
            "-I",
            "-c",
            PRELUDE + script + "\nsys.stdin.read()\nos._exit(0)",
            str(ctx.root),
        ]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=uid,
            group=uid,
            extra_groups=[],
            cwd="/",
        )

    def __enter__(self) -> Any:
        """Wait until the attack runs, and return the first line of the script, parsed as JSON."""
        assert self._process.stdout
        said = self._process.stdout.readline()
        if not said:
            pytest.fail(str(self._process.communicate()[1]))
        return json.loads(said)

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def small(python: Path) -> Iterator[Ctx]:
    """A mount with few connections to share."""
    with mounted(python, [], "[limits]\nconnections = 16\n") as mount:
        yield mount


def words_of(ctx: Ctx, uid: int = NOBODY) -> str:
    """Make a call as another user, which must work during any attack."""
    answer = ctx.call("text.word_count", "one two", uid=uid)
    assert answer.status == 0, answer
    return answer.output


# -- the way in


def test_a_greeting_with_millions_of_strings_is_refused(ctx: Ctx) -> None:
    # wire.py: "Counts are limited as strings take time, in which no other caller is served."
    n = 17 << 20
    said = attack(ctx, f"s = connect(); s.sendall(hello(0, {n}, {n})); say(answer(s))")
    assert "EMSGSIZE" in said
    said = attack(ctx, "s = connect(); s.sendall(hello(1, 0, 10) + b'\\0' * 10); say(answer(s))")
    assert "EINVAL" in said


def test_half_open_connections_lock_out_only_who_made_them(small: Ctx) -> None:
    # docs/config.md: limits.connections is "for all users"; guests.py: each user has a share of it
    script = """
held = [connect() for _ in range(12)]
closed = 0
for s in held:
    s.setblocking(False)
for s in held[4:]:
    s.setblocking(True)
    closed += s.recv(1) == b""
say(closed)
"""
    with Attacker(small, script) as closed:
        assert closed == 8
        assert words_of(small) == "2 words"


FLOODING = """
import mmap
places = [ROOT + "/.run.sock"]
for folder, _, names in (*os.walk(ROOT + "/model"), *os.walk(ROOT + "/agent")):
    places += [os.path.join(folder, name) for name in names if name.endswith(".sock")]
counts = memoryview(mmap.mmap(os.open(sys.argv[2], os.O_RDWR), 14 * 8)).cast("Q")
us = os.getpid()
def flood(mine):
    while os.getppid() == us:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(places[(mine + counts[mine]) % len(places)])
        counts[mine] += 1
for mine in range(14):
    if not os.fork():
        try:
            flood(mine)
        finally:
            os._exit(0)
say(len(places))
"""


def test_one_who_connects_without_end_is_not_served_before_others(ctx: Ctx) -> None:
    # guests.py: "begins a few of the waiting ones, one of each user after the other"
    path = ctx.work / "flood"
    path.write_bytes(bytes(14 * 8))
    path.chmod(0o666)

    def connected() -> int:
        return sum(memoryview(path.read_bytes()).cast("Q"))

    with Attacker(ctx, FLOODING.replace("sys.argv[2]", repr(str(path)))) as listeners:
        assert listeners > 3
        until(connected, lambda count: count > listeners * BACKLOG)  # each new connection waits from now on
        meanwhile = []
        for _ in range(9):
            before = connected()
            assert words_of(ctx) == "2 words"
            meanwhile.append(connected() - before)
    # In order of arrival, each of these calls would wait for all earlier connections. The minimum counts, as
    # on a busy machine many connect while the calling program starts.
    assert min(meanwhile) < BACKLOG // 4


def test_one_users_arguments_are_bounded(ctx: Ctx) -> None:
    # guests.py: "Arguments stay in memory as long as their run"
    script = """
size = 17 << 20
held = [connect() for _ in range(4)]
for s in held[:3]:
    s.sendall(hello(1, 0, size) + b"x" * (size - 300000))
held[3].sendall(hello(1, 0, size))
say(answer(held[3]))
"""
    with Attacker(ctx, script) as said:
        assert "EAGAIN" in said
        assert words_of(ctx) == "2 words"
        assert ctx.call("text.word_count", "small", uid=MALLORY).output == "1 words"


LINGERING = """
def lingering():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    keep = server.accept()
    client.setblocking(False)
    try:
        while True:
            client.send(bytes(65536))
    except BlockingIOError:
        pass
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return client, keep
def send(s, data, fd):
    try:
        socket.send_fds(s, [data], [fd])
        return "sent"
    except OSError as error:
        return type(error).__name__
"""


@pytest.mark.parametrize("when", ["greeting", "later", "never read"])
def test_descriptors_that_linger_hold_nobody_up(ctx: Ctx, when: str) -> None:
    # wire.py: a peer that sends descriptors "is cut off"; closing this descriptor takes an hour
    script = {
        "greeting": "said = send(s, hello(0, 0, 0), client.fileno())",
        "later": "s.sendall(hello(1, 0, 2)); said = send(s, b'x\\0', client.fileno())",
        "never read": "s.sendall(hello(0, 0, 0, protocol=9)); said = send(s, b'x', client.fileno())",
    }[when]
    script = f"""{LINGERING}
client, keep = lingering()
s = connect()
{script}
if said == "sent":
    client.close()
say(said)
"""
    with Attacker(ctx, script):
        assert words_of(ctx) == "2 words"


# A FUSE file system of the attacker, which answers once that it may be entered, and then never again.
HUNG = """
import ctypes, threading
uid, libc = os.getuid(), ctypes.CDLL(None, use_errno=True)
def answer_one(fuse, payload, kinds):
    while True:
        request = os.read(fuse, 1 << 17)
        _, opcode, unique = struct.unpack_from("<IIQ", request)
        if opcode in kinds:
            os.write(fuse, struct.pack("<IiQ", 16 + len(payload), 0, unique) + payload)
            return
def mount_hung(place, device):
    assert libc.unshare(0x10000000 | 0x20000) == 0
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {uid} 1")):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
    fuse = os.open(device, os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    assert libc.mount(b"hung", place.encode(), b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
    answer_one(fuse, struct.pack("<IIIIHHIIHH", 7, 31, 0, 0, 12, 12, 4096, 1, 0, 0) + bytes(32), [26])
    threading.Thread(target=answer_one, args=(fuse, b"", [34]), daemon=True).start()
"""


@pytest.mark.parametrize("enter", ["chdir", "chroot"])
def test_standing_on_a_file_system_that_never_answers_holds_nobody_up(ctx: Ctx, enter: str) -> None:
    # design: "The daemon ... touches no path for a caller."
    place = ctx.work / f"hung-{enter}"
    place.mkdir()
    os.chown(place, MALLORY, MALLORY)
    device = ctx.work / f"device-{enter}"  # /dev/fuse is open to all users on most machines, not on all
    os.mknod(device, 0o020666, os.stat("/dev/fuse").st_rdev)
    device.chmod(0o666)
    script = f"""{HUNG}
s = connect()
mount_hung({str(place)!r}, {str(device)!r})
os.{enter}({str(place)!r})
s.sendall(hello(1, 0, 2) + b"x\\0")
say(s.recv(1) != b"")
"""
    with Attacker(ctx, script) as heard:
        assert heard
        assert words_of(ctx) == "2 words"
        assert words_of(ctx, MALLORY) == "2 words"


# -- processes


def test_a_stopped_caller_holds_nobody_up(ctx: Ctx) -> None:
    # tool_run.py: "a runner that does not read holds back only its own host"
    script = """
import signal, subprocess
flood = subprocess.Popen([ROOT + "/tool/shell.exec", "yes"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
flood.stdout.read(1 << 20)
os.kill(flood.pid, signal.SIGSTOP)
say("stopped")
sys.stdin.read()
flood.kill()
flood.wait()
"""
    with Attacker(ctx, script):
        assert words_of(ctx) == "2 words"
        assert words_of(ctx, MALLORY) == "2 words"


# -- the tree


def test_nothing_can_be_made_or_changed_outside_ones_home(ctx: Ctx) -> None:
    # abi.md 1.13
    script = """
def tried(work, *arguments):
    try:
        work(*arguments)
        return "done"
    except OSError as error:
        return error.errno in (1, 13, 30) or error.errno
R = ROOT
say([
    tried(os.mkdir, R + "/x"), tried(os.mkdir, R + "/home/4321"), tried(os.mkdir, R + "/home/1234"),
    tried(os.symlink, "x", R + "/tool/x"), tried(os.symlink, "x", R + "/home/1234/x"),
    tried(os.mknod, R + "/.run.sock", 0o140777), tried(os.unlink, R + "/.run.sock"),
    tried(os.rename, R + "/.run.sock", R + "/home/1234/tool/s"),
    tried(open, R + "/tool/fs.read.d/policy", "w"), tried(open, R + "/tool/fs.read.d/.policy.swp", "w"),
    tried(open, R + "/tool/fs.read", "r+"), tried(open, R + "/status", "w"),
    tried(os.unlink, R + "/tool/fs.read.d/policy"), tried(os.chmod, R + "/home/1234", 0o777),
    tried(os.chown, R + "/home/1234", 0, 0), tried(os.truncate, R + "/tool/fs.read.d/log", 0),
    tried(os.setxattr, R + "/tool/fs.read", "user.cortexfs.name", b"x"),
    tried(os.setxattr, R + "/tool/fs.read", "trusted.x", b"x"),
])
"""
    said = attack(ctx, "os.stat(ROOT + '/home/1234')\n" + script)
    assert set(said) <= {True, 17, 95}, said  # EEXIST, ENOTSUP


def test_thousands_of_missing_names_leave_nothing(ctx: Ctx) -> None:
    # attributes.py: "The kernel's lookups are counted for temporary files"
    script = """
for n in range(1500):
    for place in ("/", "/tool/", "/home/", "/tool/fs.read.d/"):
        assert not os.path.lexists(f"{ROOT}{place}missing{n}")
say("done")
"""
    attack(ctx, script)
    before = _resident(ctx)
    attack(ctx, script)
    assert _resident(ctx) - before < 4096


def _resident(ctx: Ctx) -> int:
    """Returns the KiB of memory that the daemon uses."""
    with open(f"/proc/{ctx.pid}/status") as file:
        return int(next(line for line in file if line.startswith("VmRSS:")).split()[1])
