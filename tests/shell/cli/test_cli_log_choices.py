"""A user's choices for `ctx log`: the prices of models, and whether questions are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortexfs.cli import kept, prices
from cortexfs.core.errors import Fault


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


def test_prices_are_those_of_the_users_file(folder: Path) -> None:
    # abi.md 8.13
    assert prices.load().cost("openai/gpt", 1, 1) is None
    folder.mkdir()
    (folder / "prices.toml").write_text('currency = "EUR"\n[models."openai/*"]\ninput = 2\noutput = 8\n')
    found = prices.load()
    assert found.text(found.cost("openai/gpt", 1_000_000, 0)) == "2.0000 EUR"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[models", "it is not TOML"),
        ('[models."a/b"]\ninput = -1\noutput = 1', "models.NAME.input: expected number >= 0.0"),
        ('[models."a/b"]\ninput = 1', "missing key models.NAME.output"),
    ],
)
def test_a_fault_of_the_prices_names_the_file_and_the_key(folder: Path, text: str, why: str) -> None:
    folder.mkdir()
    (folder / "prices.toml").write_text(text)
    with pytest.raises(Fault) as caught:
        prices.load()
    assert caught.value.code == "EINVAL"
    assert str(folder / "prices.toml") in caught.value.message
    assert why in caught.value.message


def test_prices_that_others_may_write_are_not_used(folder: Path) -> None:
    # docs/config.md, "Whose files are used"
    folder.mkdir()
    (folder / "prices.toml").touch()
    (folder / "prices.toml").chmod(0o666)
    with pytest.raises(Fault, match="users other than its owner may write it"):
        prices.load()


def test_what_is_asked_is_kept_until_the_user_says_off(folder: Path) -> None:
    # abi.md 8.14
    assert kept.is_on()
    kept.turn(on=False)
    kept.turn(on=False)
    assert not kept.is_on()
    kept.turn(on=True)
    kept.turn(on=True)
    assert kept.is_on()


def test_a_user_without_a_directory_has_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    # abi.md 8.14
    for name in ("CTX_CONFIG", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    assert kept.is_on()
