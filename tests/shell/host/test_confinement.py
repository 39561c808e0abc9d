"""Issue: "An agent's tool calls run in a host confined to what its mount table shows: read and write
where the table says, nothing else, proven from inside".

Each attempt is made twice by the same user: in a confined host, and in a host that is not confined. The
second shows that the confinement refused the first.
"""

from __future__ import annotations

import errno
import os
import sys

import pytest

from cortexfs.core import hostcalls
from tests.shell import confined as confined_
from tests.shell.confined import ONLY_HERE, SYSTEM, Scene, needs, staged
from tests.shell.forks import NOBODY, Forks, connection_of

pytestmark = ONLY_HERE
forks, mountless, scene = confined_.forks, confined_.mountless, confined_.scene


# -- files: "read and write where the table says, nothing else"

CLOSED = {
    "read": "open('{hidden}/file').read()",
    "list": "os.listdir('{hidden}')",
    "list what is around": "os.listdir('{place}')",
    "write": "open('{hidden}/file', 'r+')",
    "append": "open('{hidden}/file', 'a')",
    "create": "open('{hidden}/new', 'w')",
    "truncate": "os.truncate('{hidden}/file', 0)",
    "truncate by opening": "os.open('{hidden}/file', os.O_RDONLY | os.O_TRUNC)",
    "mkdir": "os.mkdir('{hidden}/new')",
    "mkfifo": "os.mkfifo('{hidden}/new')",
    "symlink": "os.symlink('x', '{hidden}/new')",
    "bind": "socket.socket(1).bind('{hidden}/new')",
    "connect": "socket.socket(1).connect('{hidden}/socket')",
    "unlink": "os.unlink('{hidden}/file')",
    "rmdir": "os.rmdir('{hidden}/folder')",
    "rename": "os.rename('{hidden}/file', '{hidden}/other')",
    "read a program": "open('{hidden}/program', 'rb').read()",
    "execute": "subprocess.run(['{hidden}/program'], check=True)",
    "write where it may be read": "open('{read}/file', 'r+')",
    "create where it may be read": "open('{read}/new', 'w')",
    "mkdir where it may be read": "os.mkdir('{read}/new')",
    "unlink where it may be read": "os.unlink('{read}/file')",
    "rmdir where it may be read": "os.rmdir('{read}/folder')",
    "truncate where it may be read": "os.truncate('{read}/file', 0)",
    "truncate what is open": "os.ftruncate(os.open('{read}/file', os.O_RDWR), 0)",
    "execute where it may be read": "subprocess.run(['{read}/program'], check=True)",
    "execute where it may be written": "subprocess.run(['{plain}/program'], check=True)",
    "read by a link": "to = '{shown}/%d' % os.getpid(); os.symlink('{hidden}', to); open(to + '/file')",
    "write by a link": "to = '{shown}/%d' % os.getpid(); os.symlink('{hidden}/file', to); open(to, 'w')",
    "dots": "open('{shown}/../hidden/file')",
    "the root directory of oneself": "open('/proc/self/root{hidden}/file')",
    "the directory of oneself": "os.chdir('{hidden}'); open('/proc/self/cwd/file')",
    "a relative path": "os.chdir('{hidden}'); open('file')",
    "a descriptor of the directory": "os.open('file', os.O_RDONLY, dir_fd=os.open('{hidden}', os.O_PATH))",
    "a descriptor of the file": (
        "fd = os.open('{hidden}/file', os.O_PATH); open(f'/proc/self/fd/{{fd}}').read()"
    ),
    "the root directory of another": "open('/proc/{outsider}/root{hidden}/file')",
    "the directory of another": "os.listdir('/proc/{outsider}/cwd/')",
    "the memory of another": "open('/proc/{outsider}/mem', 'rb')",
    "the environment of another": "open('/proc/{outsider}/environ', 'rb').read()",
    "the descriptors of another": "os.readlink('/proc/{outsider}/fd/0'); open('/proc/{outsider}/fd/0')",
}


@pytest.mark.parametrize("what", CLOSED)
def test_what_is_not_shown_is_closed(scene: Scene, what: str) -> None:
    needs(what)
    confined, free = scene.both(CLOSED[what])
    assert (confined in confined_.CLOSED, free) == (True, "done"), confined


@pytest.mark.parametrize("what", CLOSED)
def test_what_is_not_shown_is_closed_without_mounts_too(mountless: Forks, what: str) -> None:
    needs(what)
    with staged(mountless, NOBODY) as scene:
        assert scene.both(CLOSED[what]) == ("EACCES", "done")


ACROSS = {
    "rename in": "os.rename('{hidden}/file', '{shown}/new')",
    "rename out": "os.rename('{shown}/file', '{hidden}/new')",
    "rename away from where it may be read": "os.rename('{read}/file', '{shown}/new')",
    "link in": "os.link('{hidden}/file', '{shown}/new')",
    "link in what may be read": "os.link('{read}/file', '{shown}/new')",
    "link out": "os.link('{shown}/file', '{hidden}/new')",
    # The program would gain the right to be executed.
    "rename to where more is shown": "os.rename('{plain}/program', '{shown}/new')",
    "link to where more is shown": "os.link('{plain}/program', '{shown}/new')",
}


@pytest.mark.parametrize("source", ACROSS.values(), ids=ACROSS.keys())
def test_nothing_is_carried_across_the_border(scene: Scene, source: str) -> None:
    confined, free = scene.both(source)
    assert (confined in ("EACCES", "EXDEV", "EROFS"), free) == (True, "done")


def test_the_working_directory_of_a_call_opens_nothing(scene: Scene) -> None:
    host = scene.host()
    host.ask(f"os.chdir({str(scene.path / 'hidden')!r})")
    assert host.ask("answer = os.getcwd()") == str(scene.path / "hidden")
    for source in ("open('file')", "os.listdir('.')", "open('new', 'w')", "os.chmod('file', 0o666)"):
        assert scene.attempt(host, source) in confined_.CLOSED


def test_shadow_is_closed_to_root_without_powers_too(scene: Scene) -> None:
    assert scene.confined("open('/etc/shadow')", view=(("/usr", "rx"),)) == "EACCES"


@pytest.mark.parametrize("scene", [0], indirect=True)
def test_uid_0_does_not_write_the_kernels_settings(scene: Scene) -> None:
    # Root owns these files, and needs no capability for some that make the kernel run a program as root.
    source = "os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY))"
    assert scene.both(source) == ("EROFS", "done")


OPEN = {
    "read": "assert open('{shown}/file').read() == open('{read}/file').read().replace('read', 'shown')",
    "list": "assert 'file' in os.listdir('{shown}') and 'file' in os.listdir('{read}/folder/..')",
    "write": "open('{shown}/file', 'w').write('x'); open('{plain}/new', 'a').write('x')",
    "truncate": "os.truncate('{shown}/file', 0)",
    "make": "os.makedirs('{shown}/a/b'); os.mkfifo('{shown}/a/c'); os.symlink('x', '{shown}/a/d')",
    "remove": "os.unlink('{shown}/file'); os.rmdir('{shown}/folder')",
    "rename": "os.rename('{shown}/file', '{shown}/folder/file'); os.rename('{shown}/folder', '{shown}/f')",
    "link": "os.link('{shown}/file', '{shown}/folder/file')",
    "chmod": "os.chmod('{shown}/file', 0o600); os.utime('{shown}/file')",
    "execute": "subprocess.run(['{shown}/program'], check=True)",
    "devices": "open('/dev/null', 'w').write('x'); assert len(open('/dev/urandom', 'rb').read(9)) == 9",
    "a shell": (
        "out = subprocess.run('echo one two | tr a-z A-Z | cat; exit 3', shell=True, capture_output=True)\n"
        "assert (out.stdout, out.returncode, out.stderr) == (b'ONE TWO\\n', 3, b''), out"
    ),
    "python3": (
        "out = subprocess.run(['python3', '-c', 'import json; print(json.dumps(1))'], capture_output=True)\n"
        "assert out.stdout == b'1\\n', out"
    ),
    "git": (
        "space = dict(HOME='{shown}', PATH=os.environ['PATH'])\n"
        "for words in ('init -q .', 'add file', 'status --short'):\n"
        "    out = subprocess.run(['git', *words.split()], capture_output=True, env=space, cwd='{shown}')\n"
        "    assert not out.returncode, out\n"
        "assert b'A  file' in out.stdout, out"
    ),
    "late imports": "import sqlite3, decimal, xml.dom.minidom, msgspec, cortexfs.tools.shell_exec",
    "threads": "import threading; t = threading.Thread(target=print); t.start(); t.join()",
    "a directory of a thread's own": "call(unshare, 0x200)",
    "its own limits": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); resource.prlimit(0, 7, (64, 64))",
    "its own children": "child = subprocess.Popen(['sleep', '60']); child.kill(); assert child.wait() == -9",
    "pairs of sockets": "a, b = socket.socketpair(); a.send(b'x')",
    "pairs that keep packets apart": "a, b = socket.socketpair(type=socket.SOCK_SEQPACKET); a.send(b'x')",
}


@pytest.mark.parametrize("source", OPEN.values(), ids=OPEN.keys())
def test_what_is_shown_works(scene: Scene, source: str) -> None:
    assert scene.confined(source) == "done"


# -- a view that cannot be enforced is refused, and then no code runs

# Executes the rest under a filter that makes the first call of Landlock fail.
WITHOUT_LANDLOCK = """
import os, sys
from cortexfs.linux import syscalls as linux, seccomp
linux.filter_syscalls(b"".join(seccomp._INSTRUCTION.pack(*each) for each in [
    (0x20, 0, 0, 0), (0x15, 0, 1, 444), seccomp._failing(int(sys.argv[1])), (6, 0, 0, 0x7FFF0000)
]))
os.execvp(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_without_landlock_nothing_runs(scene: Scene, number: int) -> None:
    with Forks(sys.executable, "-c", WITHOUT_LANDLOCK, str(number)) as forks:
        with connection_of(scene.identity()) as connection:
            code, message = forks.refused(scene.identity(), connection)
        assert (code, "no Landlock" in message, "lsm=" in message) == ("EACCES", True, True)
        assert forks.spawn(hostcalls.Identity(0, 0, ())).ask("answer = 1") == 1


# -- how a view is read


def test_a_view_gives_what_its_entries_give_together(scene: Scene) -> None:
    # landlock(7): rules give rights to whole hierarchies, and no rule takes a right away.
    view = (
        *SYSTEM,
        (str(scene.path), "r"),
        (f"{scene.path}/shown", "w"),
        (f"{scene.path}/shown/folder", "r"),
    )
    host = scene.host(view=view)
    assert scene.attempt(host, "open('{hidden}/file'); open('{shown}/file', 'r+')") == "done"
    assert scene.attempt(host, "open('{shown}/folder/new', 'w')") == "done"
    assert scene.attempt(host, "open('{hidden}/file', 'r+')") == "EROFS"
    assert scene.attempt(host, "os.chmod('{hidden}/file', 0o666)") == "EROFS"
    assert scene.attempt(host, "os.chmod('{shown}/folder', 0o777)") == "done"


def test_what_is_not_there_or_closed_to_the_caller_is_not_shown(scene: Scene) -> None:
    closed = scene.path / "closed"
    closed.mkdir(mode=0o700)
    os.chown(closed, 12, 12)
    (closed / "file").touch()
    view = (*SYSTEM, (f"{scene.path}/none", "rw"), (f"{closed}/file", "rw"), (f"{scene.path}/shown", "r"))
    host = scene.host(view=view)
    assert scene.attempt(host, "open('{shown}/file')") == "done"
    assert scene.attempt(host, "open('{place}/closed/file')") == "EACCES"


def test_a_file_is_shown_by_itself(scene: Scene) -> None:
    host = scene.host(view=((f"{scene.path}/hidden/file", "rw"),))
    assert scene.attempt(host, "open('{hidden}/file', 'w').write('x')") == "done"
    assert scene.attempt(host, "open('{hidden}/program', 'rb')") == "EACCES"
    assert scene.attempt(host, "os.unlink('{hidden}/file')") in confined_.CLOSED
    assert scene.attempt(host, "os.chmod('{hidden}/file', 0o600)") == "done"
    assert scene.attempt(host, "os.chmod('{hidden}/program', 0o600)") == "EROFS"


def test_a_link_in_a_view_shows_what_it_leads_to(scene: Scene) -> None:
    (scene.path / "link").symlink_to("hidden")
    host = scene.host(view=((f"{scene.path}/link", "r"),))
    assert scene.attempt(host, "open('{hidden}/file')") == "done"


def test_an_empty_view_leaves_what_python_needs(scene: Scene) -> None:
    host = scene.host(view=())
    assert scene.attempt(host, "import sqlite3, xml.dom.minidom, cortexfs.tools.fs_read") == "done"
    for path in ("/etc/passwd", "/proc/self/status", "/dev/shm", "/tmp", "/"):
        assert scene.attempt(host, f"os.close(os.open({path!r}, os.O_RDONLY))") == "EACCES"


# -- abi.md 4.44

METADATA = {
    "chmod": "os.chmod('{read}/file', 0o640)",
    "chmod of what is hidden": "os.chmod('{hidden}/file', 0o666)",
    "fchmod": "os.fchmod(os.open('{read}/file', os.O_RDONLY), 0o640)",
    "chmod from a directory": "os.chmod('file', 0o640, dir_fd=os.open('{hidden}', os.O_PATH))",
    "chmod of a directory": "os.chdir('{hidden}'); os.chmod('.', 0o777)",
    "chown": "os.chown('{hidden}/file', -1, os.getgid())",
    "lchown": "os.lchown('{hidden}/link', -1, os.getgid())",
    "times": "os.utime('{hidden}/file', (1, 1))",
    "times of now": "os.utime('{hidden}/file')",
    "attributes": "os.setxattr('{hidden}/file', 'user.test', b'x')",
    "no attributes": "os.removexattr('{kept}/file', 'user.kept')",
    "flags": (  # adds a flag, as removing flags moves the file's blocks, which not every file allows
        "fd = os.open('{read}/file', os.O_RDONLY);"
        " (flags,) = struct.unpack('l', fcntl.ioctl(fd, 0x80086601, bytes(8)));"
        " fcntl.ioctl(fd, 0x40086602, struct.pack('l', flags | 0x40))"
    ),
}


def metadata(scene: Scene, source: str) -> tuple[str, str]:
    """Returns how the attempt ends in a confined host of that fork server, and in a free host."""
    kept = scene.path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    os.setxattr(kept / "file", "user.kept", b"x")
    for found in (kept, kept / "file"):
        os.chown(found, scene.uid, scene.uid)
    filled = source.replace("{kept}", str(kept))
    return scene.both(f"import struct; {filled}")


@pytest.mark.parametrize("what", METADATA)
def test_what_cannot_be_written_cannot_be_changed(scene: Scene, what: str) -> None:
    assert metadata(scene, METADATA[what]) == ("EROFS", "done")


@pytest.mark.parametrize("what", METADATA)
def test_where_there_are_no_mounts_the_calls_are_refused(mountless: Forks, what: str) -> None:
    # abi.md 4.44; issue: "where neither is to be had, these calls are EPERM"
    with staged(mountless, NOBODY) as scene:
        assert metadata(scene, METADATA[what]) == ("EPERM", "done")


ELSEWHERE = {
    "the program of the host": "os.chmod('/proc/self/exe', 0o4755)",
    "the program of another process": "os.chmod('/proc/{outsider}/exe', 0o4755)",
    "standard input": "os.chmod('/proc/self/fd/0', 0o640)",
    "the directory of another process": "os.chmod('/proc/{outsider}/cwd', 0o777)",
    "the root directory of another process": "os.chmod('/proc/{outsider}/root{hidden}/file', 0o666)",
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_no_way_leads_to_mounts_that_can_be_written(scene: Scene, what: str) -> None:
    before = os.stat(sys.executable).st_mode
    assert scene.confined(ELSEWHERE[what]) in ("EROFS", "EACCES", "EPERM", "done")
    assert (os.stat(sys.executable).st_mode, os.stat("/dev/null").st_mode & 0o777) == (before, 0o666)
    assert os.stat(scene.path / "hidden" / "file").st_mode & 0o777 == 0o644


def test_no_descriptor_of_a_confined_host_is_of_mounts_that_can_be_written(scene: Scene) -> None:
    source = "answer = [os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')]"
    source = source.replace("]", " if os.path.exists(f'/proc/self/fd/{n}')]")
    for opened in scene.host().ask(source):
        assert opened.startswith(("pipe:", "socket:", "/proc/")) or opened.endswith("errors"), opened


SET_ID = {
    "chmod": "os.chmod('{shown}/program', 0o4755)",
    "setgid": "os.chmod('{shown}/program', 0o2755)",
    "fchmod": "os.fchmod(os.open('{shown}/program', os.O_RDONLY), 0o6755)",
    "fchmodat": "os.chmod('program', 0o4755, dir_fd=os.open('{shown}', os.O_PATH))",
    "a directory": "os.chmod('{shown}/folder', 0o2755)",
    "open": "os.close(os.open('{shown}/new', os.O_CREAT | os.O_WRONLY, 0o4755))",
    "creat": ("path = ctypes.create_string_buffer(b'{shown}/new'); call(85, ctypes.addressof(path), 0o4755)"),
    "without a name": "os.close(os.open('{shown}', os.O_TMPFILE | os.O_WRONLY, 0o4755))",
    "mknod": "os.mknod('{shown}/new', 0o104755)",
}


@pytest.mark.parametrize("what", SET_ID)
def test_no_program_gives_its_owners_powers_away(scene: Scene, what: str) -> None:
    # abi.md 4.45
    if what == "creat" and os.uname().machine != "x86_64":
        pytest.skip("no such call on this machine")
    assert scene.both(SET_ID[what]) == ("EPERM", "done")
    assert not [path for path in (scene.path / "read").rglob("*") if path.lstat().st_mode & 0o6000]


def test_a_view_of_many_files_needs_few_descriptors(scene: Scene) -> None:
    # carving.py creates as many entries for a folder with a capped file.
    many = scene.path / "many"
    many.mkdir()
    view = [*SYSTEM]
    for number in range(300):
        (many / str(number)).touch()
        os.chown(many / str(number), scene.uid, scene.uid)
        view.append((str(many / str(number)), "rw"))
    with Forks("prlimit", "--nofile=128:1024") as forks:
        host = forks.spawn(scene.identity(view=tuple(view)))
        assert (
            scene.attempt(host, "open('{place}/many/299', 'w'); os.chmod('{place}/many/0', 0o600)") == "done"
        )
        assert scene.attempt(host, "os.chmod('{place}/many', 0o777)") == "EROFS"


def test_a_mode_that_counts_for_nothing_is_none(scene: Scene) -> None:
    # open(2): without O_CREAT the mode is ignored, so it is whatever the register holds.
    number = {"x86_64": 257, "aarch64": 56}[os.uname().machine]
    source = "path = ctypes.create_string_buffer(b'{shown}/file')\n"
    source += f"os.close(call({number}, -100, ctypes.addressof(path), 0, 0o6755))"
    assert scene.confined(source) == "done"


# -- docs/security.md, "What is not claimed": the kernel refuses none of these, but permissions still do

UNCOVERED = {
    "stat": "os.stat('{hidden}/file')",
    "access": "assert os.access('{hidden}/file', os.R_OK)",
    "readlink": "os.readlink('{hidden}/link')",
    "inotify": "assert libc.inotify_add_watch(libc.inotify_init1(0), b'{hidden}', 2) >= 0",
    "chdir": "os.chdir('{hidden}')",
    "priority": "os.setpriority(os.PRIO_PROCESS, {outsider}, 19)",
}


@pytest.mark.parametrize("source", UNCOVERED.values(), ids=UNCOVERED.keys())
def test_what_landlock_does_not_cover(scene: Scene, source: str) -> None:
    assert scene.confined(source) == "done"
