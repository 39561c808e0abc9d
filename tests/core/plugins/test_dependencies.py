"""The plugins that load, and their order (abi.md 9.11, 9.12)."""

from __future__ import annotations

import itertools

from cortexfs.plugins.dependencies import HOST_VERSION, InstalledPlugin, load_order
from tests.tables import each_of


def plugin(
    name: str, *wanted: str, version: str = "1.0.0", enabled: bool = True, peers: str = ""
) -> InstalledPlugin:
    """A plugin; `wanted` and `peers` are written as name@range."""
    ranges = {one.partition("@")[0]: one.partition("@")[2] or "*" for one in wanted}
    beside = {one.partition("@")[0]: one.partition("@")[2] or "*" for one in peers.split()}
    return InstalledPlugin(name, version, ranges, beside, enabled)


def test_a_plugin_loads_after_its_dependencies_and_else_as_they_were_given() -> None:
    every = [plugin("b", "z"), plugin("a", "c", "b"), plugin("z"), plugin("c"), plugin("off", enabled=False)]
    assert load_order(every).names == ("z", "b", "c", "a")
    assert load_order(reversed(every)).names == ("c", "z", "b", "a")
    for order in itertools.permutations(every):
        names = load_order(order).names
        assert sorted(names) == ["a", "b", "c", "z"]
        assert names.index("z") < names.index("b") < names.index("a") > names.index("c")
    assert load_order(every).refused == {}
    assert load_order([]).names == ()


# the plugins of a faulty set, and for each refused plugin one sentence with the whole chain
REFUSED: list[tuple[list[InstalledPlugin], dict[str, str]]] = [
    (
        [plugin("a", "b@^1.0"), plugin("b", "c@~2.1"), plugin("d")],
        {
            "a": "a needs b ^1.0, which needs c ~2.1, which is not installed; "
                 "install it with ctx plugin install c",
            "b": "b needs c ~2.1, which is not installed; install it with ctx plugin install c",
        },
    ),
    (
        [plugin("a", "b"), plugin("b", enabled=False)],
        {"a": "a needs b *, which is not enabled; enable it with ctx plugin enable b"},
    ),
    (
        [plugin("a", "b@>=2.0"), plugin("b", version="1.9.9")],
        {"a": "a needs b >=2.0, and b 1.9.9 is installed; install a version in >=2.0"},
    ),
    (
        [plugin("a", "b"), plugin("b", "c"), plugin("c", "b")],
        {
            "a": "a needs b *, which needs c *, which needs b *, which is a cycle; "
            "their authors must break it",
            "b": "b needs c *, which needs b *, which is a cycle; their authors must break it",
            "c": "c needs b *, which needs c *, which is a cycle; their authors must break it",
        },
    ),
    # abi.md 9.12
    (
        [plugin("a", peers="b@^2")],
        {"a": "a needs b ^2, which is not installed; install it with ctx plugin install b"},
    ),
    (
        [plugin("a", peers="b"), plugin("b", "c")],
        {
            "a": "a needs b *, which needs c *, which is not installed; install it with ctx plugin install c",
            "b": "b needs c *, which is not installed; install it with ctx plugin install c",
        },
    ),
    # issue 6: "cortex = 0.53.1, this host's declared version"
    (
        [plugin("a", peers="cortex@>=1.0.0")],
        {"a": "a needs cortex >=1.0.0, and this host is cortex 0.53.1; "
              "install a version of the plugin that takes it"},
    ),
]  # fmt: skip


def test_what_is_missing_or_cyclic_is_refused_with_the_chain() -> None:
    # issue 6: "missing or cyclic refuses to enable"; what needs nothing of it still loads
    for plugins, refused in REFUSED:
        for order in itertools.permutations(plugins):
            found = load_order(order)
            assert found.refused == refused
            enabled = {one.name for one in plugins if one.enabled}
            assert set(found.names) == enabled - refused.keys()


@each_of("range_", [">=0.51.0", "^0.53.0", "*"])
def test_the_host_answers_to_its_version(range_: str) -> None:
    # Of the originals: '"cortex" is the host, not a plugin: do not resolve as one'
    assert HOST_VERSION == "0.53.1"
    assert load_order([plugin("a", peers=f"cortex@{range_}")]).names == ("a",)
    assert load_order([plugin("a", f"cortex@{range_}")]).names == ("a",)


def test_peers_may_be_peers_of_each_other() -> None:
    every = [plugin("b", peers="a@^1"), plugin("a", peers="b@^1")]
    assert load_order(every).names == ("b", "a")


def test_plugins_in_a_long_row_are_ordered() -> None:
    chain = [plugin(f"p{number:04}", f"p{number + 1:04}") for number in range(100)] + [plugin("p0100")]
    assert load_order(chain).names == tuple(f"p{number:04}" for number in range(100, -1, -1))
