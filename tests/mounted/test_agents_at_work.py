"""The daily commands of agents work inside of the writable view, although no file outside can be changed.

Issue: "inside the writable view git clone, commit, tar x, cp -p, chmod +x, ln, pip install and npm install
work (each a test)".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cortexfs.linux import seccomp
from tests.mounted import agents
from tests.mounted.agents import shell
from tests.mounted.ctx_mount import NOBODY, Ctx

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="several users need a root daemon"),
    pytest.mark.skipif(os.uname().machine not in seccomp.MACHINES, reason="no filter for this machine"),
]

ctx, coder = agents.ctx, agents.coder

# Creates a repository with a file in it.
FIRST = "{git} init -q . && echo x > file && {git} add . && {git} commit -qm one"
GIT = "git -c user.name=a -c user.email=a@b -c init.defaultBranch=main -c safe.directory=*"
WORKS = {
    "git commit": f"mkdir new && cd new && {FIRST} && {{git}} log",
    "git clone": (
        f"mkdir one && cd one && {FIRST} && cd .. && {{git}} clone -q one two && cmp one/file two/file"
        " && cd two && {git} gc -q"
    ),
    "tar": (
        "mkdir -p t/d && echo x > t/d/file && chmod 751 t/d/file && touch -d 2001-01-01 t/d/file"
        " && tar cf t.tar t && mv t u && tar xpf t.tar"
        " && stat -c %a%Y t/d/file > 1 && stat -c %a%Y u/d/file > 2 && cmp 1 2"
    ),
    "cp -p": "echo x > one && chmod 640 one && touch -d 2001-01-01 one && cp -pr one two && cmp one two",
    "chmod +x": "printf '#!/bin/sh\\necho ran' > run && chmod +x run && ./run | grep ran",
    "ln": "echo x > file && ln file hard && ln -s file soft && cmp hard soft && test $(stat -c %h file) = 2",
    "rsync": "mkdir a && echo x > a/file && rsync -a a/ b && cmp a/file b/file",
    "install": "echo x > file && install -m 755 file there && test -x there",
    "an editor": "echo one > file && vi -es -c '%s/one/two/' -c wq file && grep two file",
    "pip install": (
        "TMPDIR=$PWD {python} -m pip install -q --no-index --no-build-isolation --target=lib ./package"
        " && ls lib/package.py"
    ),
    "npm install": (
        "HOME=$PWD npm_config_cache=$PWD/cache npm install --offline --no-audit --no-fund ./npmpackage"
        " && ls node_modules/npmpackage/package.json"
    ),
}


@pytest.fixture
def place(ctx: Ctx, request: pytest.FixtureRequest) -> Path:
    """A folder with a pip package and an npm package, which are installed without a registry."""
    for name in ("package", "npmpackage"):
        (ctx.work / name).mkdir(exist_ok=True)
    setup = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    (ctx.work / "package" / "pyproject.toml").write_text(setup)
    (ctx.work / "package" / "backend.py").write_text(BACKEND)
    (ctx.work / "npmpackage" / "package.json").write_text(
        json.dumps({"name": "npmpackage", "version": "1.0.0"})
    )
    return ctx.work


# The smallest possible build backend (PEP 517).
BACKEND = """
import os, zipfile
def build_wheel(place, config_settings=None, metadata_directory=None):
    name = "package-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(place, name), "w") as wheel:
        wheel.writestr("package.py", "")
        info = "package-1.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: package\\nVersion: 1\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


@pytest.mark.parametrize("what", WORKS)
@pytest.mark.parametrize("uid", [None, NOBODY])
def test_it_works_inside_of_the_view(ctx: Ctx, coder: str, place: Path, what: str, uid: int | None) -> None:
    folder = f"{what.replace(' ', '-')}-{uid}"
    (place / folder).mkdir()
    for name in ("package", "npmpackage"):
        subprocess.run(["cp", "-r", str(place / name), str(place / folder)], check=True)
    subprocess.run(["chown", "-R", f"{uid or 0}", str(place / folder)], check=True)
    words = WORKS[what].replace("{git}", GIT).replace("{python}", sys.executable)
    said = shell(ctx, coder, f"cd {folder} && ({words}) 2>&1 && echo it worked", uid)
    assert "it worked" in said, said
