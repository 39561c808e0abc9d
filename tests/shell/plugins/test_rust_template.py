"""The plugin of `ctx plugin new --template rust`, built against stand-ins for the two crates that it names:
the registry cannot be had in tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from cortexfs.state import directories
from tests.places import PROJECT
from tests.shell import plugin_commands
from tests.shell.plugin_commands import Said

places, said = plugin_commands.places, plugin_commands.said
CRATES = PROJECT / "tests/fixtures/rust"
SOURCES = """
[source.crates-io]
replace-with = "stand-ins"

[source.stand-ins]
directory = "{}"
"""


def build(folder: Path, crates: Path) -> None:
    """As its author would, with the stand-ins in the place of the registry."""
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


def test_what_is_not_built_says_what_to_do(places: directories.Places, said: Said) -> None:
    said.ok("new", "words", "words", "--template", "rust")
    status, out, _ = said("test", "words")
    assert status == 1
    assert "libcortex_plugin_words.so" in out
    assert "or build it" in out
