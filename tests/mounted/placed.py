"""The settings in which an attack is tried: a mount of root's, by root and by another user, and a user's own.

A file that takes these fixtures has a `ctx` for itself, which is root's. `placed` is a mount as one user
has it: what runs on it runs as that user, if no other is named; its files and `ctx` are its owner's.
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
    """A mount of a user's own; beside it is what was mounted before."""
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
