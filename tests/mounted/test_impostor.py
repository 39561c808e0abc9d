"""A user shares a mount that looks like CortexFS: other users get there only if they name it.

The quotes are from abi.md 1.22, and from the issue that asked for it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.mounted.impostor import SAID
from tests.mounted.test_user_daemon import OTHER, USER, home
from tests.waiting import PATIENCE

__all__ = ["home"]  # a fixture

IMPOSTOR = Path(__file__).with_name("impostor.py")
CONFIGURATION = Path("/etc/fuse.conf")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not CONFIGURATION.exists(),
    reason="needs root, to be others, and fuse.conf",
)

# In its own mount namespace, which has this mount alone. The mount is gone with the process that serves it.
SCRIPT = """
awk '/ fuse.cortexfs / { print $2 }' /proc/mounts | xargs -rn 1 umount -l
mount --bind ../fuse /dev/fuse
mount --bind ../fuse.conf /etc/fuse.conf
AS="setpriv --clear-groups"
$AS --reuid=$USER --regid=$USER $PYTHON ../impostor.py $POINT > ../ready &
read line < ../ready
AS="$AS --reuid=$WHO --regid=$WHO"
$AS sh -c "$COMMAND"
status=$?
kill $!
exit $status
"""


def led(home: Path, python: Path, who: int, command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user where another user's impostor is the only mount."""
    base, point = home.parent, home / "ctx"
    if not point.exists():
        point.mkdir()
        os.chown(point, USER, USER)
        (base / "fuse.conf").write_text("user_allow_other\n")
        shutil.copy(IMPOSTOR, base / "impostor.py")
        os.mkfifo(base / "ready")
    told = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nowhere", "CTX_OUTPUT": "text"}
    told |= {"PYTHON": str(python), "USER": str(USER), "WHO": str(who), "POINT": str(point)}
    told |= {"COMMAND": f'ctx() {{ {python} -I -m cortexfs.cli.main "$@"; }}; {command}', **environ}
    return subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", SCRIPT],
        env=told,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        check=False,
    )


@pytest.mark.parametrize("who", [0, OTHER])
@pytest.mark.parametrize(
    "command",
    [
        "ctx run fs.read README.md",
        "ctx status",
        "ctx ls",
        "ctx env",
        "ctx send main hello",
        "ctx policy explain 0 tool/fs.read",
        "ctx umount",
        "ctx restart",
        "ctx pay",
    ],
)
def test_nobody_is_led_to_a_strangers_mount(home: Path, python: Path, who: int, command: str) -> None:
    # "a mount that belongs to another user than root or oneself is never implied"
    done = led(home, python, who, command)
    assert done.returncode in (2, 69), done
    assert SAID not in done.stdout
    # "Errors say which mounts were passed over and why."
    assert f"{home}/ctx is the mount of uid {USER}, which decides what runs there" in done.stderr
    assert f"name it: --root {home}/ctx" in done.stderr


@pytest.mark.parametrize("who", [0, OTHER])
def test_completion_and_help_know_nothing_of_it(home: Path, python: Path, who: int) -> None:
    done = led(home, python, who, "ctx complete -- ctx run fs.; ctx complete -- ctx pa; ctx --help")
    assert "fs.read" not in done.stdout
    assert "Pay." not in done.stdout
    assert "usage: ctx" in done.stdout
    doctor = led(home, python, who, "ctx doctor")
    assert f"{home}/ctx is the mount of uid {USER}" in doctor.stdout
    assert doctor.returncode == 69


def test_the_library_is_not_led_there_either(home: Path, python: Path) -> None:
    # docs/client.md: a name is below /ctx, which may be another user's mount too
    script = f"from cortexfs.client import places; places.DEFAULT_ROOT = '{home}/ctx'"
    script += "; print(places.object_path('tool/x'))"
    done = led(home, python, OTHER, f'$PYTHON -I -c "{script}"')
    assert f"is the mount of uid {USER}" in done.stderr
    done = led(home, python, USER, f'$PYTHON -I -c "{script}"')
    assert done.stdout == f"{home}/ctx/tool/x\n"


@pytest.mark.parametrize("who", [0, OTHER, USER])
def test_what_is_named_is_used(home: Path, python: Path, who: int) -> None:
    # "named with --root it is used, as the person said so. If CTX_ROOT is in the environment it was named."
    said = f"{SAID} {who}\n"
    point = f"{home}/ctx"
    done = led(home, python, who, f"ctx run --root {point} fs.read")
    assert done.stdout == said, done
    assert led(home, python, who, "ctx run fs.read", CTX_ROOT=point).stdout == said
    assert led(home, python, who, f"ctx run {point}/tool/fs.read").stdout == said  # a path names it too
    # A user's own mount needs no name.
    if who == USER:
        assert led(home, python, who, "ctx run fs.read").stdout == said


def test_root_does_not_take_it_for_its_own(home: Path, python: Path) -> None:
    done = led(home, python, 0, f"ctx mount {home}/ctx")
    assert done.returncode == 1
    mend = f"end it (ctx umount {home}/ctx)"
    assert f"{home}/ctx is the mount of uid {USER}, and not yours; {mend}" in done.stderr
