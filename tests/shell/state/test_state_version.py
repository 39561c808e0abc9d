"""The version of a state: older states are upgraded, with a copy, and newer states are refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from cortexfs.core.errors import Fault
from cortexfs.state.state_version import STEPS, StateStep, settle, version


def append(word: str) -> StateStep:
    """Returns a step that may be taken twice, as every step must allow."""

    def take(state: Path) -> None:
        path = state / "tree/file"
        if word not in path.read_text().split():
            path.write_text(f"{path.read_text()} {word}")

    return StateStep(("tree", "missing"), take)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    (made / "tree").mkdir(parents=True)
    (made / "tree/file").write_text("old")
    (made / "tree/link").symlink_to("/nowhere")
    os.mkfifo(made / "tree/pipe")
    return made


# abi.md 8.37
def test_a_state_without_a_version_gets_one_and_stays_as_it_is(state: Path) -> None:
    settle(state)
    assert version(state) == len(STEPS) == 1
    assert (state / "version").stat().st_mode & 0o777 == 0o600
    assert not list(state.glob("before-*"))
    settle(state)
    assert version(state) == 1


def test_each_step_is_taken_once_with_a_copy_of_what_was_before(state: Path) -> None:
    steps = (*STEPS, append("one"), append("two"))
    settle(state, steps)
    assert version(state) == 3
    assert (state / "tree/file").read_text() == "old one two"
    assert (state / "before-2/tree/file").read_text() == "old"
    assert (state / "before-3/tree/file").read_text() == "old one"
    assert os.readlink(state / "before-2/tree/link") == "/nowhere"
    assert not (state / "before-2/tree/pipe").exists()
    assert (state / "before-2").stat().st_mode & 0o777 == 0o700
    settle(state, steps)
    assert (state / "tree/file").read_text() == "old one two"


def test_a_step_that_was_cut_off_is_taken_again_and_the_copy_stays_the_first(state: Path) -> None:
    def cut_off(state: Path) -> None:
        (state / "tree/file").write_text("old one")
        raise OSError(28, "No space left on device", str(state))

    with pytest.raises(Fault, match="cannot be upgraded to version 2"):
        settle(state, (*STEPS, StateStep(("tree",), cut_off)))
    assert version(state) == 1
    settle(state, (*STEPS, append("one")))
    assert (state / "tree/file").read_text() == "old one"
    assert (state / "before-2/tree/file").read_text() == "old"
    assert not (state / "before-2.copy").exists()


def test_half_a_copy_is_none(state: Path) -> None:
    (state / "before-2.copy/tree").mkdir(parents=True)
    settle(state, (*STEPS, append("one")))
    assert (state / "before-2/tree/file").read_text() == "old"


@pytest.mark.parametrize("steps", [STEPS, (*STEPS, append("one"))])
def test_a_newer_state_is_refused_and_left_alone(state: Path, steps: Sequence[StateStep]) -> None:
    (state / "version").write_text("7\n")
    with pytest.raises(Fault, match=rf"of version 7, .* this one knows {len(steps)}") as told:
        settle(state, steps)
    assert told.value.code == "EPROTO"
    assert (state / "tree/file").read_text() == "old"
    assert (state / "version").read_text() == "7\n"


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "1.5", "9" * 100, "\0"])
def test_what_is_no_version_is_refused(state: Path, text: str) -> None:
    (state / "version").write_text(text)
    with pytest.raises(Fault) as told:
        settle(state)
    if len(text) < 9:
        assert f"if this CortexFS was the last to use that state: echo {len(STEPS)} >" in told.value.message
    assert (state / "version").read_text() == text


def test_the_version_of_somebody_else_is_not_believed(state: Path) -> None:
    (state / "version").write_text("1\n")
    (state / "version").chmod(0o666)
    with pytest.raises(Fault, match="users other than its owner may write it"):
        settle(state)
