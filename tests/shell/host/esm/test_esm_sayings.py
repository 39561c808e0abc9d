"""Deno's error messages, reworded to help the author of the plugin."""

from __future__ import annotations

import pytest

from cortexfs.host.esm.sayings import in_our_words

NO_IMPORT = 'Import "x" not a dependency and not in import map from "file:///p/mod.ts"'
AT = "\n    at file:///p/mod.ts:1:15"


@pytest.mark.parametrize(
    ("hint", "told"),
    [
        ("If you want to use the npm package, try running `deno add npm:x`", "; import it as npm:x"),
        ("If you want to use the JSR package, try running `deno add jsr:@a/x`", "; import it as jsr:@a/x"),
        (
            "If you want to use a JSR or npm package, try running `deno add jsr:@a/x` or `deno add npm:@a/x`",
            "; import it as jsr:@a/x or npm:@a/x",
        ),
    ],
)
def test_a_package_is_imported_by_what_the_module_says(hint: str, told: str) -> None:
    # docs/plugins.md: "A module may import `npm:`, `jsr:` and `https:`"
    assert in_our_words(f"{NO_IMPORT}\n  hint: {hint}{AT}") == f"{NO_IMPORT}{told}{AT}"
    assert in_our_words(f"{NO_IMPORT} hint: {hint}") == f"{NO_IMPORT}{told}"


def test_the_capability_of_a_flag_is_named() -> None:
    said = in_our_words("Requires read access, run again with the --allow-read flag")
    assert said == "Requires read access; it takes fs:read in the capabilities of its manifest"


def test_a_capability_that_the_plugin_has_is_not_asked_for() -> None:
    # abi.md 9.50
    for flag, limit in {
        "read": "it may read only below the caller's directory",
        "write": "it may write only below the caller's directory",
        "net": "a private address takes: ctx plugin permissions NAME --private NETWORK",
        "env": "it takes a permission that no capability gives",
    }.items():
        refused = f"Requires {flag} access to x, run again with the --allow-{flag} flag"
        assert in_our_words(refused, ["net", "read", "write"]) == f"Requires {flag} access to x; {limit}"
