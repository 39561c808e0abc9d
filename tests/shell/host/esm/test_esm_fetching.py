"""Imports of JavaScript plugins from npm, JSR and https: fetched once, at install, and pinned."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from cortexfs.cli import progress
from cortexfs.host.esm import fetch
from cortexfs.plugins.install import fetch as fetching
from cortexfs.plugins.package import package
from cortexfs.plugins.package.manifest_hash import package_digest
from tests.places import PROJECT
from tests.shell import esmodules, fetched
from tests.shell.calling import serving
from tests.shell.fetched import GREET, SOURCE, TOOL, Desk, called, plugin
from tests.shell.moduleserver import PRIVATE, Site
from tests.shell.wat import Asked, broken
from tests.waiting import until

certificates, site, desk = fetched.certificates, fetched.site, fetched.desk

MANUAL = PROJECT / "docs" / "plugins.md"


async def test_a_package_is_fetched_when_it_is_installed(
    desk: Desk, site: Site, tmp_path: Path, place: Path
) -> None:
    # issue 6: "npm: specifiers from a cache filled at install only"
    integrity = site.npm("greet", {"index.js": GREET})
    said = desk.install(plugin(place / "p", SOURCE))
    assert "unsigned, with 1 module from elsewhere (see: ctx plugin review " in said
    assert f"- npm:greet@1.0.0 {integrity}" in desk.review(desk.installed)
    asked = [*site.asked]
    site.pages.clear()
    assert await called(desk, tmp_path) == "Hello, you"
    assert site.asked == asked


async def test_the_tool_of_the_manual_works(desk: Desk, site: Site, tmp_path: Path, place: Path) -> None:
    # docs/plugins.md, "Modules from elsewhere"
    blocks = re.findall(r"^```js\n(.*?)^```", MANUAL.read_text(), re.DOTALL | re.MULTILINE)
    (text,) = (each for each in blocks if "slugify" in each)
    slugify = (
        "module.exports = (text, { lower }) => text.replaceAll(' ', '-')[lower ? 'toLowerCase' : 'trim']()"
    )
    site.npm("slugify", {"index.js": slugify}, "1.6.6")
    desk.install(plugin(place / "p", text))
    async with serving(tmp_path, desk.config.state) as world:
        assert await Asked(world, desk.offered()).said("slug", title="A New Day") == "a-new-day"


async def test_what_packages_need_comes_with_them(
    desk: Desk, site: Site, tmp_path: Path, place: Path
) -> None:
    site.npm("word", {"index.js": "exports.word = 'Hello'", "data.json": '{"end": "!"}'})
    text = """
        const fs = require('fs'); const { word } = require('word');
        const { end } = JSON.parse(fs.readFileSync(require.resolve('word/data.json'), 'utf8'));
        module.exports = (name) => word + ', ' + name + end + (process.env.HOME ?? '');"""
    site.npm("greet", {"index.js": text}, dependencies={"word": "*"})
    desk.install(plugin(place / "p", SOURCE))
    assert await called(desk, tmp_path) == "Hello, you!"
    assert "- npm:word@1.0.0 sha512-" in desk.review(desk.installed)


@pytest.mark.parametrize("form", ["https", "jsr", "npm"])
async def test_an_entry_point_may_be_an_address(
    desk: Desk, site: Site, tmp_path: Path, place: Path, form: str
) -> None:
    # abi.md 9.6
    # issue 6: "https:, jsr: and npm: entry points fetched and pinned by hash at install"
    site.page("/lib/part.ts", "export const part: string = 'part';", "application/typescript")
    site.jsr("@test/tools", TOOL)
    site.npm("tools", {"index.js": TOOL}, type="module")
    entry = {
        "https": site.page("/lib/mod.ts", 'import "./part.ts";' + TOOL, "application/typescript"),
        "jsr": "jsr:@test/tools@1",
        "npm": "npm:tools@1.0.0",
    }[form]
    desk.install(plugin(place / "p", entryPoint=entry))
    site.pages.clear()
    assert await called(desk, tmp_path) == "from elsewhere: you"
    pinned = {
        "https": f"- {site.base}/lib/part.ts sha256:",
        "jsr": "- jsr:@test/tools@1.0.0 sha256:",
        "npm": "- npm:tools@1.0.0 sha512-",
    }[form]
    assert pinned in desk.review(desk.installed)


@pytest.mark.parametrize("begins", ["", "file://"])
async def test_an_entry_point_may_be_an_absolute_path(
    desk: Desk, tmp_path: Path, place: Path, begins: str
) -> None:
    # abi.md 9.6
    folder = place / "p"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "part.ts").write_text("export const part = 'elsewhere';")
    (folder / "src" / "mod.ts").write_text(f'import "./part.ts";{TOOL}')
    desk.install(plugin(folder, entryPoint=f"{begins}{folder}/src/mod.ts"))
    (folder / "src" / "mod.ts").write_text("throw new Error('what was installed counts')")
    assert await called(desk, tmp_path) == "from elsewhere: you"
    hash_ = f"sha256:{hashlib.sha256(b'export {}').hexdigest()}"
    (folder / "src" / "mod.ts").write_text("export {}")
    desk.install(plugin(folder, entryPoint=f"{begins}{folder}/src/mod.ts", hash=hash_))
    outside = plugin(place / "q", entryPoint=f"{begins}/etc/passwd")
    said = desk.said("install", str(outside))
    assert 'etc/passwd" is not among its files; put it there, or name the file that is' in said[2]


def test_the_hash_of_an_entry_point_at_an_address(desk: Desk, site: Site, place: Path) -> None:
    # abi.md 9.9
    address = site.page("/mod.js", TOOL)
    wrong = plugin(place / "p", entryPoint=address, hash=f"sha256:{'0' * 64}")
    assert f"hash: says sha256:{'0' * 64}, but the files are" in desk.refused(wrong)
    right = f"sha256:{hashlib.sha256(TOOL.encode()).hexdigest()}"
    desk.install(plugin(place / "p", entryPoint=address, hash=right))
    assert desk.offered().name == "fetching"
    # the digest of a package covers no code from elsewhere, unless the package has a lock file
    bare = package.read(plugin(place / "p", entryPoint=address))
    site.page("/mod.js", TOOL + "\n")
    with_digest = plugin(place / "p", entryPoint=address, hash=package_digest(bare.contents))
    _, _, err = desk.said("install", str(with_digest), "--private", PRIVATE)
    assert f"does not cover {address}; put a deno.lock beside it, and write the hash anew" in err


async def test_nothing_of_it_runs_while_it_is_fetched(
    desk: Desk, site: Site, tmp_path: Path, place: Path
) -> None:
    # Of the originals, issue 6: "the fetch itself runs without the plugin's code being executed"
    mark = place / "mark"
    spoil = f"require('fs').writeFileSync({str(mark)!r}, 'run');"
    scripts = {each: f"touch {mark}" for each in ("preinstall", "install", "postinstall", "prepare")}
    site.npm("greet", {"index.js": spoil + GREET}, scripts=scripts, hasInstallScript=True)
    desk.install(plugin(place / "p", f"Deno.writeTextFileSync({str(mark)!r}, 'run');{SOURCE}"))
    assert not mark.exists()
    assert "Requires write access" in await broken(tmp_path, desk.offered())
    assert not mark.exists()


def test_a_review_lists_what_would_be_fetched(desk: Desk, site: Site, place: Path) -> None:
    # issue 6: "listed by `ctx plugin review` (what packages, versions, integrity) before consent"
    integrity = site.npm("greet", {"index.js": GREET}, "1.2.3")
    address = site.page("/part.js", "export const part = 1;")
    said = desk.review(plugin(place / "p", f'import "{address}";{SOURCE}'))
    digest = hashlib.sha256(b"export const part = 1;").hexdigest()
    assert f"  Fetched:\n    - npm:greet@1.2.3 {integrity}\n    - {address} sha256:{digest}\n" in said
    assert not desk.installed.exists()
    site.pages.clear()
    said = desk.review(place / "p")
    assert "fail: modules from elsewhere (its imports cannot be fetched: " in said
    # `test` calls the plugin's tools as well
    site.npm("greet", {"index.js": GREET})
    (place / "p" / "mod.ts").write_text(SOURCE)
    tried = desk.said.ok("test", str(place / "p"), "--run", "--yes", "--private", PRIVATE)
    assert "tool tool called with {}: Hello, undefined" in tried


def test_a_plugin_that_imports_nothing_fetches_nothing(desk: Desk, site: Site, place: Path) -> None:
    said = desk.install(plugin(place / "p", '/* "npm:greet" */ fetch("https://localhost/");' + TOOL))
    assert "elsewhere" not in said
    assert (site.asked, desk.fetched()) == ([], set())


# -- addresses


def test_private_addresses_are_refused(desk: Desk, site: Site, place: Path) -> None:
    # issue 6: "only https (no private addresses, no redirects into them)"
    site.npm("greet", {"index.js": GREET})
    desk.install(plugin(place / "p", SOURCE))
    desk.said.ok("uninstall", "fetching", "--purge")
    site.asked.clear()
    for named in ("", "10.0.0.0/8"):
        refused = desk.refused(place / "p", named)
        assert '"localhost" has the private address ' in refused
        assert "which is not allowed; name its network with --private" in refused
    assert site.asked == []


def test_a_redirect_into_a_private_network_is_refused(desk: Desk, site: Site, place: Path) -> None:
    target = site.page("/inner.js", "export const secret = 1;").replace("localhost", "127.0.0.2")
    outer = site.redirect("/outer.js", target)
    said = desk.refused(plugin(place / "p", f'import "{outer}";{TOOL}'))
    assert '"127.0.0.2" has a private address' in said
    assert site.asked == ["/outer.js"]


def test_only_https_is_fetched(desk: Desk, site: Site, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = f"http://localhost:{site.port}/a.js"
    for source in (f'import "{plain}";{TOOL}', f'import "{site.redirect("/to.js", plain)}";{TOOL}'):
        assert "is not an https" in desk.refused(plugin(place / "p", source))
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", f"http://localhost:{site.port}/npm/")
    said = desk.refused(plugin(place / "p", SOURCE))
    assert "NPM_CONFIG_REGISTRY must be an https address without a password; change or unset it" in said


def test_what_configures_deno_elsewhere_does_not_count(
    desk: Desk, site: Site, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # such a file could choose the registry or send a user's token to it, and so decide what is fetched
    site.npm("greet", {"index.js": GREET})
    site.npm("@test/scoped", {"index.js": ""})
    source = plugin(place / "p", f'import "npm:@test/scoped";{SOURCE}')
    (source / "deno.json").write_text('{"imports": {"npm:greet@^1": "npm:other"}, "nodeModulesDir": "auto"}')
    (source / "package.json").write_text(
        '{"dependencies": {"other": "1"}, "scripts": {"postinstall": "false"}}'
    )
    evil = f"registry={site.base}/evil/"
    npmrc = f"{evil}\n@test:{evil}\n//localhost:{site.port}/:_authToken=x\n"
    for folder in (source, place):
        (folder / ".npmrc").write_text(npmrc)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.chdir(source)
    desk.install(source)
    assert not [path for path in site.asked if "evil" in path or "other" in path]
    assert site.tokens == []


def test_a_server_that_nobody_vouches_for_is_refused(
    desk: Desk, site: Site, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.npm("greet", {"index.js": GREET})
    monkeypatch.delenv("DENO_CERT")
    assert "invalid peer certificate" in desk.refused(plugin(place / "p", SOURCE))
    assert site.asked == []


def test_files_of_this_machine_are_no_modules(desk: Desk, site: Site, place: Path) -> None:
    # Of the originals: "a static import reads any file without permission"
    (place / "beside.ts").write_text("export const part = 1;")
    site.npm("greet", {"index.js": GREET})
    for name in ("../beside.ts", f"file://{place}/beside.ts"):
        said = desk.refused(plugin(place / "p", f'import "{name}";{SOURCE}'))
        assert "its imports cannot be fetched: " in said, said


# -- amounts


@pytest.mark.parametrize(
    ("bound", "value", "told"),
    [
        ("MAX_FILES", 40, "its imports are over 40 files"),
        ("MAX_BYTES", 2 << 20, "are over 2 MiB"),
        ("SECONDS", 0.0, "its imports did not arrive within 0 s"),
    ],
)
def test_what_is_fetched_has_bounds(
    desk: Desk, site: Site, place: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: float, told: str
) -> None:
    # issue 6: "with limits on size, number of files and time"
    many = {f"f{at}.js": "" for at in range(50)} if bound == "MAX_FILES" else {}
    site.npm("greet", {"index.js": GREET, "zeroes": "0" * (3 << 20), **many})
    monkeypatch.setattr(fetch, bound, value)
    monkeypatch.setattr(fetch, "LOOK_SECONDS", 0.001)  # a fast Deno has fetched everything by the second look
    assert told in desk.refused(plugin(place / "p", SOURCE))


def test_what_comes_over_the_network_has_a_bound(
    desk: Desk, site: Site, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = site.page("/large.js", b"//" + os.urandom(3 << 20).hex().encode())
    monkeypatch.setattr(fetch, "MAX_BYTES", 1 << 20)
    assert "the fetched files are over 1 MiB" in desk.refused(
        plugin(place / "p", f'import "{address}";{TOOL}')
    )


def test_with_what_it_imports_a_plugin_has_the_bounds_of_any(
    desk: Desk, site: Site, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # docs/manifest-json.md: "A package holds at most 10,000 files and 128 MiB"
    site.npm("greet", {"index.js": GREET, **{f"f{at}.js": "" for at in range(50)}})
    monkeypatch.setattr(fetching, "MAX_ENTRIES", 40)
    told = "with its imports the plugin is over 40 files and 128 MiB; its author must import less"
    assert told in desk.refused(plugin(place / "p", SOURCE))


def test_what_no_run_needs_is_left_out(desk: Desk, site: Site, place: Path) -> None:
    more = {"registry.json": "{}", "index.d.ts": "", "index.d.mts": "", "index.js.map": "", "a.d.js": ""}
    site.npm("greet", {"index.js": GREET, **more})
    site.npm("@test/scoped", {"index.js": ""})
    desk.install(plugin(place / "p", f'import "npm:@test/scoped";{SOURCE}'))
    kept = {name.rpartition("/npm/")[2] for name in desk.fetched() if "/npm/" in name}
    assert kept == {
        "@test/scoped/1.0.0/index.js",
        "@test/scoped/1.0.0/package.json",
        "greet/1.0.0/a.d.js",
        "greet/1.0.0/index.js",
        "greet/1.0.0/package.json",
        "greet/1.0.0/registry.json",
    }


@pytest.mark.parametrize(
    "registry", ["", "https://a.example", "https://a.example/", "https://a.example/b/npm/"]
)
def test_catalogues_are_left_out_of_any_registry(tmp_path: Path, registry: str) -> None:
    top = tmp_path / "npm" / "a.example" / registry.removeprefix("https://a.example").strip("/")
    for name in ("a", "@s/b"):
        (top / name / "1.0.0").mkdir(parents=True)
        (top / name / "registry.json").write_text("{}")
        (top / name / "1.0.0" / "registry.json").write_text("{}")
    chosen = {"NPM_CONFIG_REGISTRY": registry} if registry else {}
    kept = {(tmp_path / path).relative_to(top).as_posix() for path, _ in fetch.files_of(tmp_path, chosen)}
    assert kept == {"a/1.0.0/registry.json", "@s/b/1.0.0/registry.json"}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_whoever_breaks_off_leaves_nothing_behind(
    desk: Desk, site: Site, place: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals
) -> None:
    site.npm("greet", {"index.js": GREET})
    site.silent.add("/npm/greet")
    temporary = place / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    words = [sys.executable, "-m", "cortexfs.cli.main", "plugin", "install", str(plugin(place / "p", SOURCE))]
    with subprocess.Popen([*words, "--private", PRIVATE], stderr=subprocess.PIPE) as running:
        until(lambda: site.asked, lambda asked: "/npm/greet" in asked)
        assert [*temporary.iterdir()]
        running.send_signal(sent)
        running.communicate(timeout=60)
        assert running.returncode
    assert [*temporary.iterdir()] == [] or sent == signal.SIGKILL  # SIGKILL leaves the files, but no program
    until(lambda: started_in(temporary), lambda found: not found)
    assert not desk.installed.exists()


def started_in(folder: Path) -> list[str]:
    """Returns the programs whose arguments name that folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found += [process.name] if os.fsencode(folder) in (process / "cmdline").read_bytes() else []
    return found


def test_a_terminal_sees_how_far_it_is(
    desk: Desk, site: Site, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # issue 6: "shown by progress on a terminal"
    site.npm("greet", {"index.js": GREET})
    monkeypatch.setattr(fetch, "LOOK_SECONDS", 0.001)
    source = plugin(place / "p", SOURCE)
    assert "fetching" not in desk.said("review", str(source), "--private", PRIVATE)[2]
    shown: list[str] = []
    monkeypatch.setattr(progress, "shown", lambda text: nullcontext(shown.append))
    desk.said("review", str(source), "--private", PRIVATE)
    assert any(re.fullmatch(r"fetching its imports: \d+ connections, \d+\.\d MiB", it) for it in shown)


# -- at run


async def test_what_was_not_fetched_says_so(desk: Desk, site: Site, tmp_path: Path, place: Path) -> None:
    # issue 6: "what is not in the cache says so in one sentence with what to do"
    site.npm("greet", {"index.js": GREET})
    site.npm("late", {"index.js": ""})
    site.jsr("@test/late", "")
    site.page("/late.js", "")
    names = {
        "npm": ("npm:late", "late"),
        "jsr": ("jsr:@test/late", f"{site.base}/jsr/@test/late/meta.json"),
        "https": (f"{site.base}/late.js", f"{site.base}/late.js"),
        "newer": ("npm:greet@2", "greet"),
    }
    bodies = {tool: f"const name = '{name}'; await import(name)" for tool, (name, _) in names.items()}
    source = 'import "npm:greet@1";' + esmodules.source(bodies)
    may = ["tools", "network:fetch"]
    desk.install(plugin(place / "p", source, capabilities=may))
    desk.said.ok("permissions", "fetching", "--private", PRIVATE)
    site.asked.clear()
    async with serving(tmp_path, desk.config.state) as world:
        asked = Asked(world, desk.offered())
        for tool, (_, name) in names.items():
            answer = await asked(tool)
            mend = "name it in an import of its own files, and install it again"
            wanted = f'it imports "{name}", which was not fetched when it was installed; {mend}'
            assert wanted in (answer.message or ""), answer.message
    assert site.asked == []


async def test_one_that_was_never_fetched_says_so(tmp_path: Path, place: Path) -> None:
    plugin = esmodules.plugin(place / "p", 'import "npm:greet";' + TOOL)
    told = "it imports something from npm, which was not fetched when it was installed; name it in an import"
    assert told in await broken(tmp_path, plugin)
