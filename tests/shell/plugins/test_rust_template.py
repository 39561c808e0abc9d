"""The plugin of `ctx plugin new --template rust`, built against stand-ins for its two crates, as tests cannot
reach the registry."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cortexfs.plugins.package.package import platform
from cortexfs.state import directories
from tests.places import PROJECT
from tests.shell import plugin_commands
from tests.shell.plugin_commands import Said

places, said = plugin_commands.places, plugin_commands.said
CRATES = PROJECT / "tests/fixtures/rust"
PACKAGE = f"cortex-plugin-native-hello-v0.1.0-{platform()}.cpx"
SOURCES = """
[source.crates-io]
replace-with = "stand-ins"

[source.stand-ins]
directory = "{}"
"""


def build(folder: Path, crates: Path) -> None:
    """Build as the author would, with the stand-ins in place of the registry."""
    for crate in CRATES.iterdir():
        shutil.copytree(crate, crates / crate.name)
        (crates / crate.name / ".cargo-checksum.json").write_text('{"files":{},"package":null}')
    (folder / ".cargo").mkdir()
    (folder / ".cargo/config.toml").write_text(SOURCES.format(crates))
    done = subprocess.run(
        ["cargo", "build", "--release", "--offline"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not shutil.which("cargo"), reason="there is no cargo")
def test_the_quick_start_in_rust_is_built_tested_and_installed(
    places: directories.Places, said: Said, tmp_path: Path
) -> None:
    # issue: "`ctx plugin new --template rust` makes the SDK's quick start in Rust"
    made = said.ok("new", "my-words", "words", "--template", "rust")
    assert made == ("made words; next: (cd words && cargo build --release) && ctx plugin test words --run\n")
    build(Path("words"), tmp_path / "crates")
    out = said.ok("test", "words", "--run", "--yes")
    assert "ok: it loads, with my-words\n" in out
    assert 'ok: tool my-words called with {"text":"to be or not to be"}: 6 words' in out
    said.ok("install", "words")
    assert (places.state / "plugins/my-words/lib/libcortex_plugin_my_words.so").exists()
    assert not (places.state / "plugins/my-words/target").exists()


@pytest.mark.skipif(not shutil.which("cargo"), reason="there is no cargo")
def test_the_text_of_a_panic_reaches_its_caller(
    places: directories.Places, said: Said, tmp_path: Path
) -> None:
    # abi.md 4.58
    said.ok("new", "inks", "inks", "--template", "rust")
    source = Path("inks/src/lib.rs")
    answer = source.read_text().partition("Ok(ToolResult::success(")[2].partition("\n")[0]
    source.write_text(
        source.read_text().replace(f"Ok(ToolResult::success({answer}", 'panic!("out of ink: {text}")')
    )
    build(Path("inks"), tmp_path / "crates")
    status, out, _ = said("test", "inks", "--run", "--yes")
    assert status == 1
    assert "was killed by SIGABRT during the call; it printed last: " in out
    assert "out of ink: to be or not to be" in out


@pytest.mark.skipif(not shutil.which("cargo"), reason="there is no cargo")
def test_a_newcomer_gets_through_the_quick_start_as_it_is_documented(
    places: directories.Places, said: Said, tmp_path: Path
) -> None:
    # issue: "a scaffold as upstream's documentation tells a newcomer to make it, step by step"
    # There the names of the crate, of the manifest and of the library differ.
    said.ok("new", "word_count", "cortex-plugin-native-hello", "--template", "rust")
    folder = Path("cortex-plugin-native-hello")
    for file, old, new in (
        ("Cargo.toml", "cortex-plugin-word_count", "cortex-plugin-native-hello"),
        ("src/lib.rs", 'name: "word_count"', 'name: "my-plugin"'),
        ("manifest.toml", 'name = "word_count"', 'name = "native-hello"'),
        ("manifest.toml", "cortex_plugin_word_count", "cortex_plugin_native_hello"),
        ("manifest.toml", '"1.6.9"', '"1.6.4"'),
        ("manifest.toml", '["tools"]', '["tools"]\nsecrets = false'),
    ):
        text = (folder / file).read_text()
        assert old in text, (file, old)
        (folder / file).write_text(text.replace(old, new))
    build(folder, tmp_path / "crates")
    key, package = tmp_path / "home/.config/cortex/plugin-signing/example-dev.ed25519", PACKAGE
    said.ok("review", str(folder))
    said.ok("test", str(folder))
    said.ok("keygen", str(key))
    said.ok("sign", str(folder), "--key", str(key), "--publisher", "example.dev")
    line = said.ok("pack", str(folder)).splitlines()[-1]
    assert line.endswith(f"  {package}")
    Path(f"{package}.sha256").write_text(f"{line}\n")
    installed = said.ok("install", package, "--yes")
    assert installed.startswith("installed native-hello 0.1.0, signed by example.dev; ")
    assert (places.state / "plugins/native-hello/lib/libcortex_plugin_native_hello.so").exists()


def test_what_is_not_built_says_what_to_do(places: directories.Places, said: Said) -> None:
    said.ok("new", "words", "words", "--template", "rust")
    status, out, _ = said("test", "words")
    assert status == 1
    assert "libcortex_plugin_words.so" in out
    assert "or build it" in out
