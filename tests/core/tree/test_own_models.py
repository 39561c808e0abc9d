"""Models in users' homes: each in the folder of its provider, which exists as long as it has models."""

from __future__ import annotations

import stat

from cortexfs.core.registry import Object
from cortexfs.core.tree import controls
from cortexfs.core.tree.places import Keep
from tests.core.tree.test_own_agents import UID, having, own, show
from tests.core.tree.test_spaces import there
from tests.core.tree.test_tree import at, make, names, thing

HOME = f"home/{UID}"


def model(name: str) -> Object:
    return Object(class_="model", name=name, home=UID, description="", registered=4.0)


def tool(name: str) -> Object:
    return Object(class_="tool", name=name, home=UID, description="", registered=4.0)


def test_a_model_is_in_the_folder_of_its_provider() -> None:
    tree = having(model("mine/big"), model("mine/small"), model("other/big"))
    assert names(tree, f"{HOME}/model") == ["mine", "other"]
    assert names(tree, f"{HOME}/model/mine") == ["big", "big.d", "small", "small.d"]
    assert tree.lookup(at(tree, f"{HOME}/model"), "openai") is None  # the shared folder is in model/
    assert names(tree, "model") == ["openai"]
    found = tree.attributes(at(tree, f"{HOME}/model/mine"))
    assert found
    assert (stat.filemode(found.mode), found.uid, found.gid) == ("drwx------", UID, UID + 5)
    assert found.keep is Keep.PASSING


def test_a_tool_and_an_agent_may_have_the_name_of_a_provider() -> None:
    tree = having(model("mine/big"), tool("mine"), own("mine"))
    for class_ in ("tool", "agent"):
        found = tree.object_at(at(tree, f"{HOME}/{class_}/mine"))
        assert found
        assert found.class_ == class_
    assert tree.object_at(at(tree, f"{HOME}/model/mine")) is None


def test_an_alias_may_be_beside_providers() -> None:
    tree = having(model("mine/big"))
    alias = tree.aliases.add(at(tree, f"{HOME}/model"), "main", b"mine/big", 1)
    assert at(tree, f"{HOME}/model/main") == alias
    assert tree.nodes.path_of_aliases(at(tree, f"{HOME}/model")) == ("home", str(UID), "model")
    assert tree.nodes.path_of_aliases(at(tree, "model")) == ("model",)


def test_ones_own_has_a_folder_of_sessions_where_everybodys_has_a_control() -> None:
    assert controls.has(thing("model", "openai/gpt"), "session")
    assert not controls.has(model("mine/big"), "session")


def test_folders_of_ones_own_can_hold_what_is_of_sessions() -> None:
    tree = having(model("mine/big"), tool("fmt"), own("helper"))
    for path in ("model/mine", "model/mine/big.d", "agent/helper.d", "tool/fmt.d"):
        folder = at(tree, f"{HOME}/{path}")
        place = tree.nodes.space(folder)
        assert place == there(f"{HOME}/{path}")
        assert tree.nodes.folder_of_space(place.parts) == folder
    for path in (f"{HOME}/model/mine/big", f"{HOME}/agent/helper", "model/openai", "agent/coder.d"):
        assert tree.nodes.space(at(tree, path)) is None
    for parts in (("home", str(UID)), ("shared", "main", "agent"), ("shared", "main", "agent", "coder.d")):
        assert tree.nodes.folder_of_space(parts) is None


def test_a_provider_goes_with_its_last_model_and_comes_back_as_another() -> None:
    tree = having(model("mine/big"), model("mine/small"))
    first = at(tree, f"{HOME}/model/mine")
    at(tree, f"{HOME}/model/mine/small")
    show(tree, model("mine/big"))
    assert at(tree, f"{HOME}/model/mine") == first
    show(tree)
    assert tree.attributes(first) is None
    assert tree.lookup(at(tree, f"{HOME}/model"), "mine") is None
    show(tree, model("mine/big"))
    assert at(tree, f"{HOME}/model/mine") != first


def test_what_is_made_and_removed_again_and_again_takes_no_memory() -> None:
    tree = make()
    tree.home(UID, UID, 1)
    some = (model("mine/big"), model("mine/small"), tool("fmt"), own("helper"))
    sizes = set()
    for _ in range(5):
        show(tree, *some)
        for path in ("model/mine/big", "model/mine/small", "tool/fmt", "agent/helper"):
            assert at(tree, f"{HOME}/{path}")
        show(tree)
        sizes.add((len(tree.nodes.at_block), len(tree.nodes.objects), len(tree._mtimes)))
    assert len(sizes) == 1
    assert tree.nodes.providers.keys() <= {"openai"}
