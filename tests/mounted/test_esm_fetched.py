"""JavaScript plugins with modules from elsewhere in a running mount: for any caller, and for agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounted.agents import agent, call, results, run, say, script
from tests.mounted.ctx_mount import NOBODY, Ctx, mounted
from tests.mounted.plugins import said, tools
from tests.mounted.test_esm import plugin
from tests.mounted.test_manifestjson_plugins import row
from tests.shell import moduleserver
from tests.shell.moduleserver import PRIVATE, Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with moduleserver.site(moduleserver.certificates(tmp_path_factory.mktemp("certificates"))) as made:
        yield made


@pytest.fixture(scope="module")
def mount(python: Path, site: Site) -> Iterator[Ctx]:
    """The daemon starts without the environment for the fixture's site. Only installing needs it."""
    with mounted(python) as ctx:
        ctx.environ |= site.environment
        yield ctx


def test_it_is_fetched_for_everybody(mount: Ctx, site: Site, tmp_path: Path) -> None:
    # issue 6: "at `ctx plugin install`"; whoever calls has hosts of his own, and nobody of them fetches
    site.npm("greet", {"index.js": "module.exports = (name) => 'Hello, ' + name;"})
    folder = plugin(tmp_path, "greeting", {"greet": "return greet('you')"}, 'import greet from "npm:greet";')
    mount.ctx("plugin", "install", str(folder), "--private", PRIVATE)
    assert row(mount, "greeting")["status"] == "loaded"
    asked = [*site.asked]
    assert [said(mount, "greet", uid) for uid in (0, NOBODY)] == ["Hello, you"] * 2
    (mount.config / "policy.toml").write_text('mode = "open"\n')
    with agent(mount, "user", "greet") as path:
        task = script([call("greet", text="")], say("done"))
        (result,) = results(run(mount, path, task, uid=NOBODY).frames)
        assert result["output"] == "Hello, you"
    (mount.config / "policy.toml").unlink()
    assert site.asked == asked
    mount.ctx("plugin", "uninstall", "greeting", "--purge")
    assert "greet" not in tools(mount)


def test_one_flipped_bit_takes_it_out_of_use(mount: Ctx, site: Site, tmp_path: Path) -> None:
    # issue 6: "hash verified at load"
    site.npm("greet", {"index.js": "module.exports = (name) => 'Hello, ' + name;"})
    folder = plugin(tmp_path, "flipping", {"flip": "return greet('you')"}, 'import greet from "npm:greet";')
    mount.ctx("plugin", "install", str(folder), "--private", PRIVATE)
    mount.ctx("plugin", "disable", "flipping")
    (fetched,) = (mount.state / "plugins" / "flipping" / ".fetched").rglob("index.js")
    fetched.write_bytes(fetched.read_bytes().replace(b"Hello", b"Hallo"))
    told = mount.ctx("plugin", "enable", "flipping", check=False)
    assert "it has changed since it was installed" in told.stdout + told.stderr
    assert "flip" not in tools(mount)
    mount.ctx("plugin", "uninstall", "flipping", "--purge")
    assert not (mount.state / "plugins" / "flipping").exists()
