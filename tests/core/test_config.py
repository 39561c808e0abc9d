"""config.toml, plugins.json and the places: refused values with their sentences, and which value wins."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from cortexfs import config
from cortexfs.config import LimitSettings
from cortexfs.core.errors import Fault
from cortexfs.state import directories, state_lock
from cortexfs.state.directories import Places
from tests.tables import each_of

DOCS = Path(__file__).parents[2] / "docs" / "config.md"
SECTIONS: dict[str, type[msgspec.Struct]] = {
    field.name: field.type for field in msgspec.structs.fields(config.ConfigFile)
}


@pytest.fixture
def where(tmp_path: Path) -> Places:
    (tmp_path / "config").mkdir()
    return Places(tmp_path / "state", tmp_path / "config")


def written(where: Places, text: str) -> config.Config:
    (where.config / "config.toml").write_text(text)
    return config.load(where)


def refused(where: Places, text: str) -> str:
    with pytest.raises(Fault) as caught:
        written(where, text)
    assert caught.value.code == "EINVAL"
    return caught.value.message.removeprefix(f"{where.config}/config.toml")


def test_every_key_has_a_default(where: Places) -> None:
    # abi.md 8.4
    loaded = config.load(where)
    assert loaded.turn.tool_timeout_secs == 1800
    assert loaded.limits == LimitSettings()
    assert config.enabled(loaded) == []
    assert (loaded.state, loaded.directory) == (where.state, where.config)


def test_a_file_sets_what_it_names_and_nothing_else(where: Places) -> None:
    loaded = written(where, "[turn]\ntool_timeout_secs = 0.5\n[limits]\ndepth = 3\n")
    assert loaded.turn.tool_timeout_secs == 0.5
    assert loaded.limits == LimitSettings(depth=3)


@each_of(
    ("text", "sentence"),
    [
        ("[limits]\nmemory-mib = 1", ": unknown key limits.memory-mib; did you mean memory_mib?"),
        ("[limit]\ndepth = 1", ": unknown key limit; did you mean limits?"),
        ("[turn]\nqqq = 1", ": unknown key turn.qqq; known are tool_timeout_secs"),
        ('[limits]\ndepth = "8"', ": limits.depth: expected integer, got string"),
        ("[limits]\ndepth = 0", ": limits.depth: expected integer >= 1"),
        ("[limits]\nprocesses = 1", ": limits.processes: expected integer >= 8"),
        *(
            (f"[limits]\n{key} = {1 << 64}", f": limits.{key}: expected integer <= {1 << 32}")
            for key in ("memory_mib", "processes", "open_files", "connections")
        ),
        ("[turn]\ntool_timeout_secs = nan", ": turn.tool_timeout_secs: expected number > 0.0"),
        ("[turn]\ntool_timeout_secs = inf", ": turn.tool_timeout_secs: expected number <= 604800.0"),
        ("[callers]\nsandboxed = 'x'", ": callers.sandboxed: expected one of refuse, allow, or a list"),
        ("[callers]\nsandboxed = ['x']", ": callers.sandboxed[0]: expected integer, got string"),
        ("[[usage.limits]]\ntokens = 1\nmoney = 1", ": usage.limits[0]: expected either tokens or money"),
        (
            "[[usage.limits]]\ntokens = 1\nmodels = []",
            ": usage.limits[0].models: expected array of length >= 1",
        ),
        ("limits = 3", ": limits: expected table, got integer"),
        ("[limits", ": it is not TOML: Expected ']' at the end of a table declaration (at end of document)"),
        ('[plugins]\nenabled = ["a/b"]', None),
        ('[plugins]\nenabled = "notes"', ": plugins.enabled: expected array, got string"),
    ],
)
def test_a_fault_names_the_file_the_key_and_the_mend(where: Places, text: str, sentence: str | None) -> None:
    message = refused(where, text)
    if sentence is None:
        assert message.startswith(": plugins.enabled: the name 'a/b' may hold only letters")
    else:
        assert message == sentence


def test_bytes_that_are_no_text_are_refused(where: Places) -> None:
    (where.config / "config.toml").write_bytes(b"\xff")
    with pytest.raises(Fault, match="it is not UTF-8"):
        config.load(where)


def test_a_file_without_end_is_not_read(where: Places) -> None:
    (where.config / "config.toml").write_bytes(b"#" * (config.MAX_FILE + 1))
    with pytest.raises(Fault) as caught:
        config.load(where)
    assert caught.value.code == "EMSGSIZE"


def test_decisions_win_over_the_file(where: Places) -> None:
    loaded = written(where, '[plugins]\nenabled = ["notes", "maps"]\n')
    config.choose(where.config, "maps", False)
    config.choose(where.config, "alarm", True)
    assert config.enabled(loaded) == ["notes", "alarm"]
    config.choose(where.config, "maps", True)
    # abi.md 11.30; issue: "between plugins (built-ins first, then order of enabling) too"
    assert config.enabled(loaded) == ["notes", "alarm", "maps"]


def test_deciding_leaves_a_persons_file_alone(where: Places) -> None:
    text = '# ours\n[plugins]\nenabled = ["notes"]  # keep\n'
    written(where, text)
    config.choose(where.config, "notes", False)
    assert (where.config / "config.toml").read_text() == text
    named = sorted(path.name for path in where.config.iterdir())
    assert named == [".plugins.json.lock", "config.toml", "plugins.json"]


@each_of("text", ["[]", "{", '{"notes": 1}', "\xff"])
def test_damaged_decisions_are_said_at_start(where: Places, text: str) -> None:
    (where.config / "plugins.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(Fault, match=r"plugins\.json is not a table"):
        config.load(where)


def test_a_name_that_cannot_be_one_is_not_decided(where: Places) -> None:
    # abi.md 2.4
    with pytest.raises(Fault, match="the name 'a/b'"):
        config.choose(where.config, "a/b", True)
    assert list(where.config.iterdir()) == []


def test_consent_is_a_decision_and_can_be_forgotten(where: Places) -> None:
    # issue: "enabling a plugin that takes an existing name needs consent (--replace ...)"
    loaded = written(where, "")
    config.choose(where.config, "notes", config.REPLACE)
    config.choose(where.config, "maps", ("tool/fs.read",))
    assert config.enabled(loaded) == ["notes", "maps"]
    assert config.consents(loaded) == {"notes": config.REPLACE, "maps": ("tool/fs.read",)}
    config.choose(where.config, "maps", True)
    config.choose(where.config, "notes", None)
    config.choose(where.config, "never", None)
    assert (config.enabled(loaded), config.consents(loaded)) == (["maps"], {})


@each_of(
    ("environ", "uid", "state", "directory"),
    [
        # abi.md 8.1, 8.3
        ({}, 0, "/var/lib/cortexfs", "/etc/cortexfs"),
        ({"HOME": "/root", "XDG_STATE_HOME": "/x"}, 0, "/var/lib/cortexfs", "/etc/cortexfs"),
        ({"XDG_STATE_HOME": "/s", "XDG_CONFIG_HOME": "/c"}, 7, "/s/cortexfs", "/c/cortexfs"),
        ({"HOME": "/home/u"}, 7, "/home/u/.local/state/cortexfs", "/home/u/.config/cortexfs"),
        ({"HOME": "/h", "XDG_STATE_HOME": "s"}, 7, "/h/.local/state/cortexfs", "/h/.config/cortexfs"),
        ({"CTX_STATE": "/s", "CTX_CONFIG": "/c"}, 0, "/s", "/c"),
        ({"CTX_STATE": "/s/../t", "CTX_CONFIG": "/c/"}, 7, "/t", "/c"),
    ],
)
def test_places(environ: dict[str, str], uid: int, state: str, directory: str) -> None:
    assert directories.places(environ, uid) == Places(Path(state), Path(directory))


def test_arguments_win_over_the_environment() -> None:
    found = directories.places({"CTX_STATE": "/s", "CTX_CONFIG": "/c"}, 0, state="/mine", config="/own")
    assert found == Places(Path("/mine"), Path("/own"))


def test_a_user_without_home_is_told_what_to_do() -> None:
    with pytest.raises(Fault, match="name the directories with --state and --config"):
        directories.places({}, 7)


def test_state_is_made_for_its_owner_alone(where: Places) -> None:
    directories.create(where)
    assert where.state.stat().st_mode & 0o777 == 0o700
    directories.create(where)


def test_a_place_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Fault, match=r"cannot be made: .*; name others with --state and --config"):
        directories.create(Places(tmp_path / "file" / "state", tmp_path))


@each_of("text", [None, "", "x\n", "12 13\n"])
def test_a_lock_file_without_pid_names_nobody(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "lock").write_text(text)
    assert state_lock.holder(tmp_path) is None


def test_a_lock_file_names_the_daemon(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("4711\n")
    assert state_lock.holder(tmp_path) == 4711


def test_the_page_has_every_key_with_default_and_sentence() -> None:
    # abi.md 8.4
    rows = re.findall(r"^\| `(\S+)` \| `(.*)` \| (.*) \|$", DOCS.read_text(), re.MULTILINE)
    documented = {key: (default, sentence) for key, default, sentence in rows}
    assert documented == {
        f"{section}.{field.name}": (_toml(_default(field)), _sentence(field))
        for section, struct in SECTIONS.items()
        for field in msgspec.structs.fields(struct)
    }


def _default(field: msgspec.structs.FieldInfo) -> object:
    made: object = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return made


def _toml(default: object) -> str:
    return json.dumps(default) if isinstance(default, tuple | str) else str(default)


def _sentence(field: msgspec.structs.FieldInfo) -> str:
    return str(get_args(field.type)[-1])
