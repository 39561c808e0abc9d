"""The settings of each attack: root's mount, used by root and by another user, and a user's own mount.

A file that uses these fixtures has its own fixture `ctx`, a mount of root's. `placed` is a mount as a user
sees it: commands run as that user, unless another is passed. Its files and its `ctx` are the mount owner's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.spaces import Space, space

ROOTS = ("root", "another user")
OWN = "a mount of one's own"


@contextlib.contextmanager
def own_mount(
    python: Path, owner: int = NOBODY, config: str = "", place: Space | None = None
) -> Iterator[Ctx]:
    """A user's own mount, in a space where earlier mounts can be used too."""
    with (
        contextlib.nullcontext(place) if place else space() as inside,
        mounted(python, config=config, owner=owner, space=inside) as mount,
    ):
        (mount.work / "README.md").write_text("hello world\n")
        yield mount


@pytest.fixture(scope="module")
def own(ctx: Ctx, python: Path) -> Iterator[Ctx]:
    with own_mount(python) as mount:
        yield mount


@pytest.fixture(params=[*ROOTS, OWN])
def placed(request: pytest.FixtureRequest, ctx: Ctx) -> Ctx:
    if request.param == OWN:
        mount: Ctx = request.getfixturevalue("own")
        return mount
    return ctx.used_by(NOBODY) if request.param == ROOTS[1] else ctx
