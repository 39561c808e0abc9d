"""Claims of [sandbox] at the other boundaries, and under a user's own daemon. Issue: "under each level, as
root daemon and as user daemon"; tests/mounted/test_plugin_sandboxes.py tests the claims one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from cortexfs.core.manifest.governance import Mechanism
from cortexfs.linux import kernel_support
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.plugins import TOOLS, TOP, tool_source
from tests.mounted.test_plugin_sandboxes import MODULE, PROBE, PTRACE, SCRIPT, STREAMING
from tests.mounted.test_user_daemon import as_user, home
from tests.shell import declaring

__all__ = ["home"]  # a fixture
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="calls as other users"),
    pytest.mark.skipif(Mechanism.LANDLOCK not in kernel_support.available(), reason="no Landlock"),
]

CLAIMS = (
    'network = "none"\nfilesystem = "plugin_only"\nseccomp = "default"\nmemory_mb = 128\ncpu_seconds = 2\n'
)
NATIVE = '[native]\nlibrary = "lib/lib.so"\nisolation = "trusted_in_process"\nabi_version = 1\n'
# Tries one action after the other, and prints the outcome of each.
TRIES = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>

static const char *ended(long result)
{
    return result < 0 ? strerrorname_np(errno) : "done";
}
static CortexBuffer execute(void *self, CortexBuffer name, CortexBuffer input, CortexBuffer invocation)
{
    char said[512], *some;
    int status = 0, at = 0, room = sizeof said;
    pid_t child;
    (void)self, (void)name, (void)input, (void)invocation;
    at += snprintf(said + at, room - at, "network %s", ended(socket(AF_INET, SOCK_STREAM, 0)));
    at += snprintf(said + at, room - at, ", read %s", ended(open("OUTSIDE", O_RDONLY)));
    at += snprintf(said + at, room - at, ", write %s", ended(open("OUTSIDE.new", O_WRONLY | O_CREAT, 0600)));
    if (!(child = fork()))
        _exit(7);
    waitpid(child, &status, 0);
    at += snprintf(said + at, room - at, ", fork %d", WEXITSTATUS(status));
    if (!(child = fork()))
        _exit(ptrace(PTRACE_TRACEME, 0, 0, 0) < 0 ? errno : 0);
    waitpid(child, &status, 0);
    errno = WEXITSTATUS(status);
    at += snprintf(said + at, room - at, ", ptrace %s", ended(errno ? -1 : 0));
    some = malloc(300u << 20);
    snprintf(said + at, room - at, ", memory %s", some ? "done" : "ENOMEM");
    free(some);
    return cortex_result(said, 0);
}
"""
OPEN = "network done, read done, write done, fork 7, ptrace done, memory done"
CLOSED = "network EACCES, read EACCES, write EROFS, fork 7, ptrace EPERM, memory ENOMEM"


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def manifest(name: str, claims: str, text: str, trust: str = "") -> str:
    return f'name = "{name}"\n{TOP.format(version="1.0")}{trust}{TOOLS}[sandbox]\n{claims}{text}'


def library(where: Path, name: str, claims: str, outside: Path) -> Path:
    """Write and build a library whose tool runs TRIES; returns its folder."""
    source = tool_source(name, TRIES.replace("OUTSIDE", str(outside)))
    level = 'level = "trusted_in_process"\n'
    text = manifest(name, level + claims, NATIVE, 'trust = "trusted_native"\n')
    folder = written(where / name, {"manifest.toml": text, "src/tool.c": source, "lib/empty": ""})
    command = ["cc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-I", str(declaring.INCLUDE)]
    subprocess.run([*command, "-o", str(folder / "lib/lib.so"), str(folder / "src/tool.c")], check=True)
    return folder


def probe(where: Path, kind: str, claims: str) -> Path:
    """Write the plugin of test_plugin_sandboxes.py, which executes its input; returns its folder."""
    name, code = f"probe-{kind}", PROBE.format(here="")
    if kind == "python":
        text = '[python]\nentry = "probing:plugin"\n'
        files = {"lib/probing.py": code + MODULE.format(name=name)}
    else:
        protocol = '[native]\nprotocol = "jsonl"\n' if kind == "jsonl" else ""
        text = (
            f'{protocol}[[native.tools]]\nname = "{name}"\ndescription = "For tests"\ncommand = "bin/run"\n'
            'input_schema = { type = "object", properties = { text = { type = "string" } } }\n'
        )
        interpreter = os.path.realpath(sys.executable)
        tail = STREAMING if kind == "jsonl" else SCRIPT
        files = {"bin/run": f"#!{interpreter} -SE\n{code}{tail}"}
    return written(where / name, {"manifest.toml": manifest(name, claims, text), **files})


@pytest.fixture(scope="module")
def mount(python: Path) -> Iterator[Ctx]:
    with mounted(python) as ctx:
        yield ctx


@pytest.mark.parametrize(("claims", "said"), [("", OPEN), (CLAIMS, CLOSED)], ids=["none", "all"])
def test_a_library_is_held(mount: Ctx, tmp_path: Path, claims: str, said: str) -> None:
    name = "tries-all" if claims else "tries-none"
    for uid in (0, NOBODY):
        outside = mount.work / f"{name}-{uid}"
        outside.write_text("x")
        os.chown(outside, uid, uid)
        mount.ctx("plugin", "install", str(library(tmp_path, name, claims, outside)))
        answer = mount.call(name, uid=uid)
        assert (uid, answer.output) == (uid, said), answer
        assert outside.with_name(f"{outside.name}.new").exists() is (not claims)


TRIED = {
    "socket.socket(socket.AF_INET)": ("done", "EACCES"),
    "socket.socket(socket.AF_UNIX)": ("done", "EACCES"),
    "said = open({secret!r}).read()": ("mine", "EACCES"),
    "said = open({secret!r} + str(os.getpid()), 'w').write('x')": ("1", "EROFS"),
    "said = os.waitstatus_to_exitcode(os.waitpid(os.fork() or os._exit(7), 0)[1])": ("7", "7"),
    PTRACE: ("done", "EPERM"),
    "said = len(bytearray(300 << 20)) >> 20": ("300", "no memory"),
    "resource.setrlimit(resource.RLIMIT_CPU, (3600, 3600)); said = 'set'": (
        "set",
        "not allowed to raise maximum limit",
    ),
}


@pytest.mark.parametrize("kind", ["process", "jsonl", "python"])
def test_a_users_own_daemon_holds_as_much(home: Path, python: Path, kind: str) -> None:
    secret = home / "secret"
    secret.write_text("mine")
    os.chown(secret, NOBODY, NOBODY)
    asks = home.parent / "asks"
    asks.mkdir()
    for number, text in enumerate(TRIED):
        (asks / f"{number}").write_text(json.dumps({"text": text.replace("{secret!r}", repr(str(secret)))}))
    calls = "\n".join(f"user: ctx/tool/probe-{kind} < {asks}/{number}" for number in range(len(TRIED)))
    plain, held = (probe(home.parent / word, kind, claims) for word, claims in (("a", ""), ("b", CLAIMS)))
    done = as_user(
        home,
        python,
        f"user: $CTX mount ctx\nuser: $CTX plugin install {plain}\n{calls}\n"
        f"user: $CTX plugin install {held}\n{calls}\nuser: $CTX umount ctx",
    )
    parts = [part.partition("\n")[2].strip() for part in done.stdout.split("-> ")]
    said = parts[2 : 2 + len(TRIED)], parts[3 + len(TRIED) : 3 + 2 * len(TRIED)]
    for number, (text, outcomes) in enumerate(TRIED.items()):
        assert (text, said[0][number], said[1][number]) == (text, *outcomes), done.stdout


def test_a_users_own_daemon_holds_libraries(home: Path, python: Path) -> None:
    secret = home / "secret"
    secret.write_text("mine")
    os.chown(secret, NOBODY, NOBODY)
    folder = library(home.parent, "tries", CLAIMS, secret)
    done = as_user(
        home,
        python,
        f"""
        user: $CTX mount ctx
        user: $CTX plugin install {folder}
        user: ctx/tool/tries
        user: $CTX umount ctx
        """,
    )
    assert CLOSED in done.stdout, done.stdout
