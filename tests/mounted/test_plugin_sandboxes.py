"""Claims of a manifest's [sandbox], tried from inside. Issue: "a probe plugin that tries to open the network,
read /etc/shadow, write outside, fork, ptrace, exceed memory and CPU"."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.core.manifest.governance import Mechanism
from cortexfs.linux import kernel_support
from tests.mounted.ctx_mount import NOBODY, Answer, Ctx, mounted
from tests.mounted.placed import own_mount
from tests.mounted.plugins import PROGRAM, TOOLS, TOP
from tests.waiting import until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="calls as other users"),
    pytest.mark.skipif(Mechanism.LANDLOCK not in kernel_support.available(), reason="no Landlock"),
]

# `probe` executes `text`, and returns the value of `said` afterwards, or the name of an errno.
PROBE = """
import ctypes, errno, os, resource, socket, subprocess, sys
def probe(text):
    found = {{"said": "done"}}
    try:
        exec(text, globals() | {{"here": {here!r}}}, found)
    except OSError as error:
        return errno.errorcode.get(error.errno, "EIO")
    except MemoryError:
        return "no memory"
    except ValueError as error:
        return str(error)
    return str(found["said"])
"""
MODULE = """
from cortexfs.sdk import tool
@tool(name="{name}")
def run(text: str) -> str:
    "For tests."
    return probe(text)
plugin = [run]
"""
SCRIPT = """
import json
print(json.dumps(probe(json.load(sys.stdin)["input"]["text"])))
"""
STREAMING = """
import json
for line in sys.stdin:
    call = json.loads(line)
    if "id" in call:
        print(json.dumps({"id": call["id"], "output": probe(call["input"]["text"])}), flush=True)
"""
KINDS = ("python", "process", "jsonl")


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        yield ctx


@pytest.fixture(scope="module")
def own(mount: Ctx, python: Path) -> Iterator[Ctx]:
    with own_mount(python) as ctx:
        yield ctx


class Probe:
    """Installs a plugin of one kind with some claims, and calls it."""

    def __init__(self, ctx: Ctx, where: Path, kind: str, sandbox: str, more: str = "") -> None:
        self.ctx, self.name = ctx, f"probe-{kind}"
        folder = where / self.name
        top = f'name = "{self.name}"\n{TOP.format(version="1.0")}{TOOLS}{more}[sandbox]\n{sandbox}\n'
        code = PROBE.format(here=str(ctx.work))
        if kind == "python":
            files = {
                "manifest.toml": f'{top}[python]\nentry = "probing:plugin"\n',
                "lib/probing.py": code + MODULE.format(name=self.name),
            }
        else:
            interpreter = os.path.realpath(sys.executable)
            protocol = '[native]\nprotocol = "jsonl"\n' if kind == "jsonl" else ""
            tail = STREAMING if kind == "jsonl" else SCRIPT
            files = {
                "manifest.toml": top + protocol + PROGRAM.format(tool=self.name),
                "bin/run": f"#!{interpreter} -SE\n{code}{tail}",
            }
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        if kind != "python":
            (folder / "bin/run").chmod(0o755)
        ctx.ctx("plugin", "install", str(folder))

    def answer(self, text: str, uid: int | None = None) -> Answer:
        return self.ctx.call(self.name, "--text", text, uid=uid)

    def __call__(self, text: str, uid: int | None = None) -> str:
        answer = self.answer(text, uid)
        assert answer.status == 0, answer
        return answer.output

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self.ctx.ctx("plugin", "uninstall", self.name, "--purge")


CONNECT = "socket.create_connection(('127.0.0.1', {port}), 5).close()"
PTRACE = (
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "if libc.ptrace(0, 0, 0, 0) < 0: raise OSError(ctypes.get_errno(), '')"
)
NETWORK = {
    CONNECT: "EACCES",
    "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)": "EACCES",
    "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)": "EACCES",
    "socket.socket(socket.AF_UNIX)": "EACCES",
    "socket.socketpair()": "done",
    PTRACE: "EPERM",
    "open('/proc/{pid}/mem', 'r+b')": "EACCES",
    "open(here + '/net', 'w').write('x')": "done",
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_is_closed(mount: Ctx, tmp_path: Path, kind: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Probe(mount, tmp_path, kind, 'network = "none"') as probe,
    ):
        port, pid = str(server.getsockname()[1]), str(os.getpid())
        for uid in (0, NOBODY):
            for text, outcome in NETWORK.items():
                said = probe(text.replace("{port}", port).replace("{pid}", pid), uid)
                assert (text, said) == (text, outcome)
            (mount.work / "net").unlink()


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_claim_nothing_is_closed(mount: Ctx, tmp_path: Path, kind: str) -> None:
    # Without this test, the other tests would prove nothing.
    with socket.create_server(("127.0.0.1", 0)) as server, Probe(mount, tmp_path, kind, "") as probe:
        assert probe(CONNECT.format(port=server.getsockname()[1])) == "done"
        assert probe("socket.socket(socket.AF_UNIX)") == "done"
        assert probe("said = len(open('/etc/shadow').read()) > 0") == "True"
        assert probe("open('/etc/shadow')", NOBODY) == "EACCES"
        assert probe(PTRACE) == "done"
        assert probe("said = len(bytearray(300 << 20)) >> 20") == "300"


FILES = {
    # An action, and its outcome under plugin_only, under read_only_host and under writable_paths alone.
    "open('/etc/shadow').read()": ("EACCES", "done", "done"),
    "os.listdir('/etc')": ("EACCES", "done", "done"),
    "open(here + '/made', 'w')": ("EROFS", "EROFS", "EROFS"),
    "os.truncate(here + '/mine', 0)": ("EROFS", "EROFS", "EROFS"),
    "os.unlink(here + '/mine')": ("EROFS", "EROFS", "EROFS"),
    "os.mkdir(here + '/folder')": ("EROFS", "EROFS", "EROFS"),
    "os.chmod(here + '/mine', 0o666)": ("EROFS", "EROFS", "EROFS"),
    "os.utime(here + '/mine', (1, 1))": ("EROFS", "EROFS", "EROFS"),
    "open(here + '/open/made', 'w').write('x')": ("done", "EROFS", "done"),
    "os.chmod(here + '/open/made', 0o4755)": ("EPERM", "EPERM", "EPERM"),
    "said = subprocess.run(['/bin/cat', '/etc/shadow'], capture_output=True).returncode": ("1", "0", "0"),
    "said = os.waitstatus_to_exitcode(os.waitpid(os.fork() or os._exit(7), 0)[1])": ("7", "7", "7"),
    "socket.socket(socket.AF_UNIX)": ("EACCES", "EACCES", "EACCES"),
    PTRACE: ("EPERM", "EPERM", "EPERM"),
}
CLAIMS = (
    'filesystem = "plugin_only"\nwritable_paths = ["{open}"]',
    'filesystem = "read_only_host"',
    'writable_paths = ["{open}"]',
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("claim", CLAIMS)
def test_files_are_closed(mount: Ctx, tmp_path: Path, kind: str, claim: str) -> None:
    shared = mount.work / "open"
    shared.mkdir(mode=0o777, exist_ok=True)
    shared.chmod(0o777)
    mine = mount.work / "mine"
    mine.write_text("mine")
    with Probe(mount, tmp_path, kind, claim.format(open=shared)) as probe:
        for text, outcomes in FILES.items():
            assert (text, probe(text)) == (text, outcomes[CLAIMS.index(claim)])
        if kind == "python":  # in the caller's directory, read-only by the host's mounts, not the caller's
            assert probe("os.chmod('mine', 0o666)") == "EROFS"
        assert probe("open(here + '/made', 'w')", NOBODY) in ("EACCES", "EROFS")
    assert mine.read_text() == "mine"


def test_declared_paths_are_those_that_are_declared(mount: Ctx, tmp_path: Path) -> None:
    for name in ("read", "written", "other"):
        (mount.work / name).mkdir(exist_ok=True)
        (mount.work / name / "file").write_text(name)
    more = f'file_read = ["{mount.work}/read"]\nfile_write = ["{mount.work}/written"]\n'
    with Probe(mount, tmp_path, "process", 'filesystem = "declared_paths"', more) as probe:
        assert probe("said = open(here + '/read/file').read()") == "read"
        assert probe("open(here + '/read/file', 'w')") == "EROFS"
        assert probe("said = open(here + '/written/file', 'w').write('x')") == "1"
        assert probe("open(here + '/other/file')") == "EACCES"


NESTED = "said = subprocess.run([{tool!r}, 'a b'], capture_output=True, text=True).stdout"


@pytest.mark.parametrize("claim", ["memory_mb = 256", "cpu_seconds = 20", 'seccomp = "default"'])
@pytest.mark.parametrize("kind", KINDS)
def test_no_claim_is_shed_by_a_call_from_inside(mount: Ctx, tmp_path: Path, kind: str, claim: str) -> None:
    # The tool that the probe calls would have none of these claims.
    with Probe(mount, tmp_path, kind, claim) as probe:
        said = probe(NESTED.format(tool=mount.tool("text.word_count")))
        assert '"code":"EACCES"' in said
        assert "[sandbox]" in said
    with Probe(mount, tmp_path, kind, "") as probe:
        assert '"status":"ok"' in probe(NESTED.format(tool=mount.tool("text.word_count")))


@pytest.mark.parametrize("kind", KINDS)
def test_no_claim_is_shed_on_a_mount_of_ones_own(own: Ctx, kind: str) -> None:
    where = own.base / "plugins"
    where.mkdir(exist_ok=True)
    with Probe(own, where, kind, "memory_mb = 256") as probe:
        said = probe(NESTED.format(tool=own.tool("text.word_count")))
        assert ('"code":"EACCES"' in said, "[sandbox]" in said) == (True, True)
        assert probe("x = bytearray(1 << 30)") == "no memory"


@pytest.mark.parametrize("kind", KINDS)
def test_memory_and_time_are_limited(mount: Ctx, tmp_path: Path, kind: str) -> None:
    with Probe(mount, tmp_path, kind, "memory_mb = 128\ncpu_seconds = 2") as probe:
        assert probe("said = len(bytearray(30 << 20)) >> 20") == "30"
        assert probe("bytearray(300 << 20)") == "no memory"
        for uid in (0, NOBODY):
            raised = "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))"
            assert probe(raised, uid) == "not allowed to raise maximum limit"
        spent = probe.answer("while True: pass", NOBODY)
        assert spent.code == "EPROTO"
        assert probe("said = 'again'", NOBODY) == "again"


def test_the_profile_refuses_what_a_tool_has_no_use_for(mount: Ctx, tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Probe(mount, tmp_path, "python", 'seccomp = "default"') as probe,
    ):
        assert probe(PTRACE) == "EPERM"
        assert probe(CONNECT.format(port=server.getsockname()[1])) == "done"


@pytest.mark.parametrize(
    ("sandbox", "sentence"),
    [
        ('level = "system_sandbox"', "system_sandbox is not enforced by this runtime"),
        ('network = "allowlist"', "sandbox.network=allowlist is not enforced by this runtime"),
        ("uid_drop = true", "uid_drop is not enforced by this runtime"),
        ('seccomp = "strict"', "seccomp profiles are not enforced by this runtime"),
        ('writable_paths = ["out"]', 'sandbox.writable_paths: "out" cannot be enforced'),
    ],
)
def test_what_cannot_be_held_is_refused(mount: Ctx, tmp_path: Path, sandbox: str, sentence: str) -> None:
    # "none is accepted and ignored"
    with pytest.raises(AssertionError, match="ctx plugin"):
        Probe(mount, tmp_path, "process", sandbox)
    done = mount.ctx("plugin", "install", str(tmp_path / "probe-process"), check=False)
    assert sentence in done.stderr
    assert not (mount.root / "tool" / "probe-process").exists()


# Move into the group of another host of the same user, and call from there. Two kinds of groups have no room:
# those of hosts that are being ended (such as the previous test's), and that of the spare, which holds the
# spare alone while the spare waits.
ELSEWHERE = """
import glob
def is_full(group):
    try:
        return open(group + "/pids.max").read() in ("0\\n", "1\\n")
    except FileNotFoundError:
        return False
for line in open("/proc/self/cgroup"):
    own = line.rstrip().split(":")[2]
    for place in glob.glob("/sys/fs/cgroup" + own) + glob.glob("/sys/fs/cgroup/*" + own):
        if "/cortexfs-" in own:
            for other in glob.glob(os.path.dirname(place) + "/*/cgroup.procs"):
                if os.path.dirname(other) != place and not is_full(os.path.dirname(other)):
                    open(other, "w").write("0")
"""


@pytest.mark.parametrize("kind", KINDS)
def test_none_is_shed_by_going_to_another_hosts_cgroup(mount: Ctx, tmp_path: Path, kind: str) -> None:
    assert mount.call("fs.read", "/etc/hostname").status == 0  # this starts another host
    with Probe(mount, tmp_path, kind, "memory_mb = 512") as probe:
        attempt = ELSEWHERE + NESTED.format(tool=mount.tool("text.word_count"))
        said = until(lambda: probe(attempt), lambda said: said != "EAGAIN")  # if the group has just ended
        assert '"code":"EACCES"' in said
