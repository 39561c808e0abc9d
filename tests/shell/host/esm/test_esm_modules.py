"""A plugin in TypeScript as authors write it: several files, classes, control flow, and an npm package."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.places import PROJECT
from tests.shell import fetched
from tests.shell.calling import serving
from tests.shell.fetched import GREET, Desk, plugin
from tests.shell.moduleserver import Site
from tests.shell.wat import Asked

certificates, site, desk = fetched.certificates, fetched.site, fetched.desk

LEDGER = PROJECT / "tests" / "fixtures" / "esm" / "ledger"


async def test_a_plugin_of_six_files_works_as_its_author_has_it(
    desk: Desk, site: Site, tmp_path: Path, place: Path
) -> None:
    # abi.md 9.40, of modules with control flow, classes and generators, and a package of npm's
    site.npm("greet", {"index.js": GREET})
    folder = shutil.copytree(LEDGER, place / "p")
    desk.install(plugin(folder))
    async with serving(tmp_path, desk.config.state) as world:
        asked = Asked(world, desk.offered())
        assert await asked.said("balance", text="ann 3.50\nbob 2\n\nann 1.25") == "Hello, ann: 6.75"
        assert (await asked("balance", text="ann 3\nbob x")).message == "line 2 has no amount but x"
