"""The tree: its entries, that inodes never lie, and what the kernel must forget after a change."""

from __future__ import annotations

import stat
from collections.abc import Iterator

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.registry import Object, Registry
from cortexfs.core.tree import places
from cortexfs.core.tree.places import AGENT, FOLDER, HOME, MODEL, ROOT, TOOL, Keep
from cortexfs.core.tree.tree import Tree
from tests.tables import each_of

MOUNTED = 1_000
NOW = 2_000


def thing(class_: str, name: str, **extra: str) -> Object:
    return Object(class_=class_, name=name, description="It does.", extra=extra, registered=3.0)


def registry(*objects: Object) -> Registry:
    return Registry({object_.key: object_ for object_ in objects})


EXAMPLES = registry(
    thing("tool", "fs.read"),
    thing("tool", "shell"),
    thing("model", "openai/gpt", session="socket"),
    thing("model", "openai/small"),
    thing("agent", "coder"),
)


def make(objects: Registry = EXAMPLES) -> Tree:
    tree = Tree(
        owner=(10, 20),
        shebang=b"#!/usr/bin/cortexfs-object-runner\n",
        programs={"ctx": "/usr/bin/ctx", "cortexfs-object-runner": "/usr/bin/cortexfs-object-runner"},
        tool_timeout=1800.0,
        now=MOUNTED,
    )
    tree.apply(objects, MOUNTED)
    return tree


def at(tree: Tree, path: str) -> int:
    inode: int | None = ROOT
    for name in path.split("/"):
        assert inode is not None
        inode = tree.lookup(inode, name)
    assert inode is not None, path
    return inode


def names(tree: Tree, path: str) -> list[str]:
    folder = at(tree, path) if path else ROOT
    return [name for name, _ in tree.listing(folder)][2:]


def walk(tree: Tree, folder: int = ROOT, path: str = "") -> Iterator[tuple[str, int, int, str]]:
    for name, inode in tree.listing(folder)[2:]:
        yield f"{path}/{name}", inode, folder, name
        attributes = tree.attributes(inode)
        if attributes is not None and stat.S_ISDIR(attributes.mode):
            yield from walk(tree, inode, f"{path}/{name}")


def test_the_root_holds_what_the_abi_lists_and_no_more() -> None:
    # abi.md 1.11, 1.13
    assert names(make(), "") == ["agent", "bin", "home", "model", "shared", "status", "tool"]
    assert names(make(), "shared") == ["main"]
    assert names(make(), "bin") == ["cortexfs-object-runner", "ctx"]


def test_objects_are_triples_and_tools_have_no_socket() -> None:
    # abi.md 1.6, 1.7, 1.9
    tree = make()
    assert names(tree, "tool") == ["fs.read", "fs.read.d", "shell", "shell.d"]
    assert names(tree, "agent") == ["coder", "coder.d", "coder.sock"]
    assert names(tree, "model") == ["openai"]
    assert names(tree, "model/openai") == ["gpt", "gpt.d", "gpt.sock", "small", "small.d"]
    assert tree.lookup(at(tree, "model/openai"), "small.sock") is None
    assert tree.lookup(TOOL, "shell.sock") is None


def test_what_is_listed_is_what_lookup_finds_with_inodes_of_its_own() -> None:
    tree = make()
    tree.home(1000, 1000, NOW)
    tree.aliases.add(at(tree, "home/1000/tool"), "sh", b"/ctx/tool/shell", NOW)
    tree.aliases.add(MODEL, "main", b"/ctx/model/openai/gpt", NOW)
    found = list(walk(tree))
    assert len(found) > 80
    assert len({inode for _, inode, _, _ in found}) == len(found)
    for path, inode, folder, name in found:
        assert tree.lookup(folder, name) == inode, path
        assert tree.nodes.parent(inode) == folder, path
        assert tree.name(inode) == name, path
        assert tree.attributes(inode) is not None, path


def test_modes_and_owners_are_the_abis() -> None:
    tree = make()
    tree.home(1000, 1001, NOW)
    seen = {path: tree.attributes(inode) for path, inode, _, _ in walk(tree)}

    def shown(path: str) -> tuple[str, int, int]:
        found = seen[path]
        assert found is not None
        return stat.filemode(found.mode), found.uid, found.gid

    assert shown("/tool/shell") == ("-r-xr-xr-x", 10, 20)  # abi.md 1.4
    assert shown("/tool/shell.d") == ("drwxr-xr-x", 10, 20)  # editors rename in that folder
    assert shown("/tool/shell.d/policy") == ("-rw-r--r--", 10, 20)  # abi.md 3.8
    assert shown("/tool/shell.d/name") == ("-r--r--r--", 10, 20)
    assert shown("/agent/coder.sock") == ("srw-rw-rw-", 10, 20)  # abi.md 5.2
    assert shown("/home/1000") == ("drwx------", 1000, 1001)  # abi.md 1.10
    assert shown("/home/1000/tool")[1:] == (1000, 1001)
    assert shown("/bin/ctx")[0] == "lrwxrwxrwx"


def test_sizes_are_exact() -> None:
    # abi.md 1.16
    tree = make()
    executable = at(tree, "tool/shell")
    object_ = tree.object_at(executable)
    assert object_ is not None
    found = tree.attributes(executable)
    assert found is not None
    assert found.size == len(tree.executable(object_))


def test_an_executable_shows_metadata_and_never_code() -> None:
    # abi.md 1.18
    tree = make(
        registry(thing("model", "p/m", driver="a", cap="chat\nstream", session="socket", id="native"))
    )
    object_ = tree.registry.get("model", "p/m")
    assert object_ is not None
    assert tree.executable(object_).decode().splitlines() == [
        "#!/usr/bin/cortexfs-object-runner",
        "# cortexfs.object=model",
        "# cortexfs.name=p/m",
        "# cortexfs.description=It does.",
        "# cortexfs.runner=/usr/bin/cortexfs-object-runner",
        "# cortexfs.status=ready",
        "# cortexfs.plugin=builtin",
        "# cortexfs.id=native",
        "# cortexfs.driver=a",
        "# cortexfs.session=socket",
        "# cortexfs.cap=chat,stream",
    ]


def test_a_description_of_many_lines_cannot_forge_a_key() -> None:
    forged = Object(class_="tool", name="x", description="a\n# cortexfs.status=ready\n" + "b" * 1000)
    tree = make(registry(forged))
    assert len(tree.executable(forged).splitlines()) == 7


def test_the_configured_timeout_is_what_a_tool_without_one_shows() -> None:
    tree = make()
    object_ = tree.registry.get("tool", "shell")
    assert object_ is not None
    assert tree.control(object_, "timeout") == "1800\n"


def test_only_an_executables_inode_names_an_object() -> None:
    tree = make()
    executable = at(tree, "tool/shell")
    object_ = tree.object_at(executable)
    assert object_ is not None
    assert object_.name == "shell"
    assert tree.object_at(executable | FOLDER) is None
    assert all(tree.object_at(inode) is None for inode in (0, ROOT, 999 << places.BITS))


def test_inodes_are_stable_and_a_path_that_comes_back_has_its_own() -> None:
    # abi.md 1.14
    tree = make()
    shell, read = at(tree, "tool/shell"), at(tree, "tool/fs.read.d/policy")
    tree.apply(registry(thing("tool", "new")), NOW)
    assert tree.lookup(TOOL, "shell") is None
    assert tree.attributes(shell) is None
    assert tree.attributes(read) is None
    new = at(tree, "tool/new")
    tree.apply(EXAMPLES, NOW)
    assert at(tree, "tool/shell") == shell
    assert at(tree, "tool/fs.read.d/policy") == read
    assert new not in {inode for _, inode, _, _ in walk(tree)}


def test_a_change_outdates_names_that_came_and_went_also_missing_ones() -> None:
    tree = make()
    executable = at(tree, "tool/shell")
    stale = tree.apply(registry(thing("tool", "fs.read"), thing("tool", "new")), NOW)
    assert {(TOOL, "new"), (TOOL, "new.d"), (TOOL, "shell"), (TOOL, "shell.d")} <= set(stale.entries)
    assert (TOOL, "fs.read") not in stale.entries
    assert (MODEL, "openai") in stale.entries
    assert {executable, executable | FOLDER, TOOL, MODEL, AGENT} <= set(stale.inodes)
    folder = tree.attributes(TOOL)
    assert folder is not None
    assert folder.mtime == NOW


def test_a_changed_object_keeps_its_names_so_that_who_stands_in_its_folder_stays() -> None:
    # If the kernel forgot the folder's entry, getcwd(2) would fail in the folder.
    tree = make()
    folder = at(tree, "model/openai/gpt.d")
    changed = {**EXAMPLES.objects, ("model", "openai/gpt"): thing("model", "openai/gpt")}
    stale = tree.apply(Registry(changed), NOW)
    assert [name for _, name in stale.entries] == ["gpt.sock"]
    assert folder in stale.inodes
    assert "gpt.sock" not in names(tree, "model/openai")


def test_what_nobody_looked_up_need_not_be_forgotten() -> None:
    tree = make(registry(*(thing("tool", f"t{number}") for number in range(100))))
    assert tree.apply(Registry(), NOW).inodes == [TOOL]


def test_aliases_are_links_with_owner_time_and_target() -> None:
    tree = make()
    tree.home(1000, 1001, NOW)
    inode = tree.aliases.add(at(tree, "home/1000/agent"), "main", b"/ctx/model/openai/gpt", NOW)
    found = tree.attributes(inode)
    assert found is not None
    assert (stat.filemode(found.mode), found.uid, found.gid) == ("lrwxrwxrwx", 1000, 1001)
    assert (found.size, found.mtime, found.keep) == (21, NOW, Keep.ALWAYS)
    assert tree.link(inode) == b"/ctx/model/openai/gpt"
    # A folder of sessions in a home's model/ may take the same name without the kernel's noticing.
    hidden = tree.attributes(tree.aliases.add(at(tree, "home/1000/model"), "debug", b"x", NOW))
    assert hidden is not None
    assert hidden.keep is Keep.NOTHING


@each_of(
    ("path", "name", "code"),
    [
        ("tool", "shell", "EEXIST"),
        ("model", "openai", "EEXIST"),
        ("tool", "x.d", "EINVAL"),
        ("tool", "-x", "EINVAL"),
        ("model/openai", "x", "EROFS"),
        ("tool/shell.d", "policy", "EROFS"),
        ("home", "x", "EROFS"),
        ("shared/main", "x", "EROFS"),
    ],
)
def test_where_and_what_an_alias_may_not_be(path: str, name: str, code: str) -> None:
    tree = make()
    with pytest.raises(Fault) as raised:
        tree.aliases.check(at(tree, path), name, b"target")
    assert raised.value.code == code


def test_an_object_hides_an_alias_of_its_name_until_it_goes() -> None:
    # abi.md 1.5
    tree = make()
    alias = tree.aliases.add(TOOL, "later", b"x", NOW)
    stale = tree.apply(registry(thing("tool", "later")), NOW)
    assert (TOOL, "later") in stale.entries
    assert tree.object_at(at(tree, "tool/later")) is not None
    assert names(tree, "tool") == ["later", "later.d"]
    tree.apply(Registry(), NOW)
    assert at(tree, "tool/later") == alias


def test_a_moved_alias_keeps_its_inode_and_replaces_what_was_there() -> None:
    tree = make()
    tree.home(1000, 1000, NOW)
    target = at(tree, "home/1000/tool")
    first, second = tree.aliases.add(TOOL, "a", b"1", NOW), tree.aliases.add(target, "b", b"2", NOW)
    alias = tree.aliases.at(first)
    assert alias is not None
    tree.aliases.move(alias, target, "b", NOW)
    assert tree.lookup(TOOL, "a") is None
    assert tree.lookup(target, "b") == first
    assert tree.link(first) == b"1"
    assert tree.attributes(second) is None


def test_a_moved_alias_is_that_of_the_owner_of_its_folder() -> None:
    tree = make()
    tree.home(1000, 1001, NOW)
    alias = tree.aliases.at(tree.aliases.add(TOOL, "a", b"1", NOW))
    assert alias is not None
    for path, owner in (("home/1000/tool", (1000, 1001)), ("agent", (10, 20))):
        tree.aliases.move(alias, at(tree, path), "b", NOW)
        found = tree.attributes(at(tree, f"{path}/b"))
        assert found is not None
        assert (found.uid, found.gid) == owner
        alias = tree.aliases.at(at(tree, f"{path}/b"))
        assert alias is not None


def test_aliases_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, other in (("MAX_ALIASES", TOOL), ("MAX_ALIASES_IN_TREE", AGENT)):
        with monkeypatch.context() as patch:
            patch.setattr(places, limit, 2)
            tree = make()
            tree.aliases.add(TOOL, "a", b"1", NOW)
            tree.aliases.check(other, "b", b"2")
            tree.aliases.add(other, "b", b"2", NOW)
            with pytest.raises(Fault) as raised:
                tree.aliases.check(TOOL, "c", b"2")
            assert raised.value.code == "ENOSPC"
            tree.aliases.check(TOOL, "a", b"3")  # replacing an alias needs no room


@each_of("name", ["x", "01", "-1", "4294967295", "", "1000 ", "\u0661"])
def test_homes_are_named_by_user_id(name: str) -> None:
    with pytest.raises(Fault) as raised:
        places.uid_of(name)
    assert raised.value.code == "EINVAL"
    assert make().lookup(HOME, name) is None


def test_a_removed_control_is_gone_and_means_its_default() -> None:
    # abi.md 3.16
    tree = make()
    object_ = tree.registry.get("model", "openai/gpt")
    assert object_ is not None
    tree.values.put(object_.key, "effort", b"low\n", NOW)
    assert tree.control(object_, "effort") == "low\n"
    tree.values.remove(object_.key, "effort", NOW, holds=False)
    assert tree.control(object_, "effort") == "auto\n"
    assert "effort" not in names(tree, "model/openai/gpt.d")
    assert tree.lookup(at(tree, "model/openai/gpt.d"), "effort") is None
    tree.values.restore(object_.key, "effort", NOW)
    assert "effort" in names(tree, "model/openai/gpt.d")
    assert tree.control(object_, "effort") == "auto\n"
    assert tree.values.find(object_.key, "effort") is None
    tree.values.put(object_.key, "effort", b"low\n", NOW)
    tree.values.remove(object_.key, "effort", NOW, holds=True)
    tree.values.restore(object_.key, "effort", NOW)
    assert tree.control(object_, "effort") == "low\n"


def test_a_control_that_nobody_wrote_is_created_with_its_default() -> None:
    tree = make()
    object_ = tree.registry.get("model", "openai/gpt")
    assert object_ is not None
    tree.values.restore(object_.key, "effort", NOW)
    assert tree.values.find(object_.key, "effort") is None


def test_temporary_files_go_with_their_folder() -> None:
    tree = make()
    folder = at(tree, "tool/shell.d")
    temporary = tree.add_temporary(folder, "policy~", (0, 0), 0o600, NOW)
    tree.apply(registry(thing("tool", "fs.read")), NOW)
    tree.apply(EXAMPLES, NOW)
    assert tree.lookup(folder, "policy~") is None
    assert not temporary.linked


def test_times_are_of_registration_and_of_the_last_change() -> None:
    # abi.md 1.15
    tree = make()

    def mtime(path: str) -> int:
        found = tree.attributes(at(tree, path))
        assert found is not None
        return found.mtime

    assert (mtime("status"), mtime("tool/shell"), mtime("tool/shell.d/name")) == (
        MOUNTED,
        3 * 10**9,
        3 * 10**9,
    )
    changed = {**EXAMPLES.objects, ("tool", "shell"): thing("tool", "shell", policy="#")}
    tree.apply(Registry(changed), NOW)
    assert (mtime("tool/shell"), mtime("tool/shell.d/name")) == (NOW, NOW)
    assert (mtime("tool/shell.d"), mtime("tool/fs.read")) == (3 * 10**9, 3 * 10**9)
    tree.apply(Registry(), NOW)
    tree.apply(EXAMPLES, NOW)
    assert (mtime("tool/shell"), mtime("tool")) == (3 * 10**9, NOW)
