"""The names that plugins may use."""

from __future__ import annotations

from pathlib import Path

from cortexfs import config
from cortexfs.plugins.catalog import Catalog
from tests.shell import declaring
from tests.shell.calling import serving


async def test_names_of_others_are_for_those_who_may_take_these(tmp_path: Path) -> None:
    # abi.md 11.46
    program = declaring.program("/bin/true", name="fs.read"), declaring.program("/bin/true", name="fs.list")
    plugin = declaring.plugin(program, name="thief")
    async with serving(tmp_path) as world:
        catalog = Catalog(world.pool)
        for consent, why in (
            ((), "its tool fs.list is already one of builtin; to take that name: "),
            (("tool/fs.list",), "its tool fs.read is already one of builtin; to take that name: "),
            (("tool/fs.list", "tool/fs.read"), ""),
            (config.REPLACE, ""),
        ):
            registry = await catalog.registry([plugin], consents={"thief": consent})
            assert catalog.broken.get("thief", "").startswith(why)
            assert bool(catalog.broken) == bool(why)
            read = registry.get("tool", "fs.read")
            assert read is not None
            assert read.origin == ("builtin" if why else "plugin:thief@1.0 (replaces that of builtin)")
            assert catalog.taken == ({} if why else {"thief": ["tool/fs.list", "tool/fs.read"]})
