"""The modules fetched for a JavaScript plugin stay the same: lock files, signatures, bit flips, updates."""

from __future__ import annotations

from pathlib import Path

from cortexfs.plugins.package import package
from cortexfs.plugins.trust import signing
from tests.shell import fetched
from tests.shell.fetched import GREET, SOURCE, TOOL, Desk, called, plugin
from tests.shell.moduleserver import PRIVATE, Site

certificates, site, desk = fetched.certificates, fetched.site, fetched.desk


def spoil(folder: Path) -> None:
    (cached,) = folder.rglob("index.js")
    cached.write_text(GREET.replace("Hello", "Goodbye"))


def locked(desk: Desk, source: Path) -> bytes:
    """Returns the lock file that Deno writes for the plugin."""
    desk.install(source)
    lock = (desk.installed / ".fetched" / "deno.lock").read_bytes()
    desk.said.ok("uninstall", "fetching", "--purge")
    return lock


def test_a_lock_file_of_its_author_is_kept_to(desk: Desk, site: Site, place: Path) -> None:
    site.npm("greet", {"index.js": GREET})
    source = plugin(place / "p", SOURCE)
    (source / "deno.lock").write_bytes(locked(desk, source))
    site.npm("greet", {"index.js": GREET}, "1.1.0")
    desk.install(source)
    assert "- npm:greet@1.0.0 sha512-" in desk.review(desk.installed)
    desk.said.ok("uninstall", "fetching", "--purge")
    # an import that the lock file does not name is refused
    (source / "mod.ts").write_text(f'import "npm:other";{SOURCE}')
    site.npm("other", {"index.js": ""})
    mend = "its publisher must write it anew with: deno cache --lock"
    assert f'"npm:other@1.0.0", which it imports, is not in its deno.lock; {mend}' in desk.refused(source)
    # a package replaced by another is refused as well
    (source / "mod.ts").write_text(SOURCE)
    site.pages.pop("/npm/greet")
    site.npm("greet", {"index.js": "module.exports = () => 'evil'"})
    assert "its imports cannot be fetched: " in desk.refused(source)
    (source / "deno.lock").write_text('{"version": "5", "npm": {"greet@1.0.0": {}}}')
    assert "deno.lock" in desk.refused(source)


def test_a_lock_file_holds_modules_at_addresses(desk: Desk, site: Site, place: Path) -> None:
    address = site.page("/part.js", "export const part = 1;")
    source = plugin(place / "p", f'import "{address}";{TOOL}')
    (source / "deno.lock").write_bytes(locked(desk, source))
    site.page("/part.js", "export const part = 2;")
    assert "its imports cannot be fetched: " in desk.refused(source)


def test_a_signed_plugin_has_to_pin_what_it_imports(desk: Desk, site: Site, place: Path) -> None:
    # a signature does not cover bytes that are fetched later
    site.npm("greet", {"index.js": GREET})
    source = plugin(place / "p", SOURCE)
    lock = locked(desk, source)
    desk.said.ok("keygen", str(place / "key"))
    sign = ("sign", str(source), "--key", str(place / "key"), "--publisher", "example.dev")
    desk.said.ok(*sign)
    install = ("install", str(source), "--yes", "--private", PRIVATE)
    mend = "its publisher must put a deno.lock beside manifest.json and sign it again"
    told = f'its signature does not cover its import "npm:greet@1.0.0"; {mend}'
    assert told in desk.said(*install)[2]
    (source / "deno.lock").write_bytes(lock)
    assert "is invalid" in desk.said(*install)[2] or "signature" in desk.said(*install)[2]
    desk.said.ok(*sign)
    assert "signed by example.dev" in desk.said.ok(*install)
    assert signing.verify(package.read(desk.installed)).status == "verified"
    assert desk.offered().name == "fetching"


def test_any_flipped_bit_of_what_was_fetched_is_refused(desk: Desk, site: Site, place: Path) -> None:
    # issue 6: "hash verified at load"
    site.npm("greet", {"index.js": GREET})
    address = site.page("/part.js", "export const part = 1;")
    desk.install(plugin(place / "p", f'import "{address}";{SOURCE}'))
    desk.offered()
    names = desk.fetched()
    kinds = {"deno.lock", "registries.json"} | {f"deno/{each}" for each in ("npm", "remote")}
    assert {"/".join(name.split("/")[:2]) for name in names} == kinds
    for name in names:
        path = desk.installed / ".fetched" / name
        data = path.read_bytes()
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        assert desk.fault().startswith('it has changed since it was installed: ".fetched/')
        path.write_bytes(data)
    added = desk.installed / ".fetched" / "deno" / "npm" / "new.js"
    added.write_text("")
    assert "it has changed since it was installed" in desk.fault()
    added.unlink()
    (desk.installed / ".fetched" / "deno.lock").unlink()
    assert "it has changed since it was installed" in desk.fault()


async def test_a_flipped_bit_of_the_copy_that_runs_is_mended(
    desk: Desk, site: Site, tmp_path: Path, place: Path
) -> None:
    site.npm("greet", {"index.js": GREET})
    desk.install(plugin(place / "p", SOURCE))
    spoil(Path(desk.offered().path))
    assert await called(desk, tmp_path) == "Hello, you"


# -- installed anew, and uninstalled


async def test_what_is_installed_is_not_fetched_again(
    desk: Desk, site: Site, tmp_path: Path, place: Path
) -> None:
    site.npm("greet", {"index.js": GREET})
    source = plugin(place / "p", SOURCE)
    desk.install(source)
    site.asked.clear()
    site.npm("greet", {"index.js": GREET}, "1.1.0")
    desk.said.ok("disable", "fetching")
    desk.said.ok("enable", "fetching")
    desk.install(source)
    assert "- npm:greet@1.0.0 " in desk.review(source)
    assert site.asked == []
    # a new version fetches anew; if that fails, the old version stays
    (source / "extra.ts").write_text("")
    desk.install(source)
    assert "- npm:greet@1.1.0 " in desk.review(desk.installed)
    site.pages.clear()
    (source / "more.ts").write_text("")
    assert desk.said("install", str(source), "--private", PRIVATE)[0]
    assert await called(desk, tmp_path) == "Hello, you"
    # a changed lock file is not accepted either
    (desk.installed / ".fetched" / "deno.lock").write_text("{}")
    assert desk.said("install", str(desk.installed), "--private", PRIVATE)[0]


async def test_what_a_package_brings_along_is_not_believed(
    desk: Desk, site: Site, tmp_path: Path, place: Path
) -> None:
    site.npm("greet", {"index.js": GREET})
    desk.install(plugin(place / "p", SOURCE))
    spoil(desk.installed)
    forged = place / "forged"
    desk.installed.rename(forged)
    site.asked.clear()
    desk.install(forged)
    assert site.asked != []
    assert await called(desk, tmp_path) == "Hello, you"


def test_purging_leaves_nothing_of_it(desk: Desk, site: Site, place: Path) -> None:
    # issue 6: "`ctx plugin uninstall --purge` removes it"
    site.npm("greet", {"index.js": GREET})
    desk.install(plugin(place / "p", SOURCE))
    assert desk.fetched()
    desk.said.ok("uninstall", "fetching", "--purge")
    assert not desk.installed.exists()
