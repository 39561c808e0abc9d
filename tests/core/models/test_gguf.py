"""The facts that a GGUF file tells of itself, and the limits of a hostile file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core.errors import Fault
from cortexfs.models.local import gguf, weights
from tests.tables import each_of


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str, value: object) -> bytes:
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        kind = 8 if value and isinstance(value[0], str) else 4
        items = b"".join(text(v) if kind == 8 else struct.pack("<I", v) for v in value)
        return text(key) + struct.pack("<IIQ", 9, kind, len(value)) + items
    assert isinstance(value, int)
    return text(key) + struct.pack("<II", 4, value)


def file(*pairs: tuple[str, object], count: int | None = None, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs) if count is None else count)
    return head + b"".join(pair(*each) for each in pairs)


WHOLE = (
    ("general.architecture", "llama"),
    ("tokenizer.ggml.tokens", ["a", "b", "ccc"]),
    ("tokenizer.ggml.scores", [1, 2, 3]),
    ("general.name", "A Model"),
    ("general.organization", "Some One"),
    ("llama.context_length", 2048),
    ("tokenizer.chat_template", "{{x}}"),
    ("general.license", "mit"),
)


def read(tmp_path: Path, data: bytes) -> gguf.ModelFileFacts:
    path = tmp_path / "Some.Model-Q4.gguf"
    path.write_bytes(data)
    return gguf.facts(path)


def test_facts(tmp_path: Path) -> None:
    known = read(tmp_path, file(*WHOLE) + b"tensors follow")
    assert known == gguf.ModelFileFacts("A Model", "Some One", "llama", 2048, True, "mit")
    # abi.md 2.6
    assert weights.name_of(known, tmp_path / "Some Model-Q4.gguf") == "some-one/some-model-q4"
    bare = read(tmp_path, file(("general.architecture", "x")))
    assert (bare.context, bare.chats) == (None, False)
    assert weights.name_of(bare, Path("/m/tiny.gguf")) == "local/tiny"


def test_the_head_ends_where_the_vocabulary_begins(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    told = (WHOLE[0], WHOLE[3], WHOLE[4], WHOLE[5], WHOLE[7], ("tokenizer.ggml.model", "gpt2"))
    path.write_bytes(file(*told, count=9))  # the rest is not read, so a missing end does no harm
    assert gguf.facts(path, is_whole=False) == gguf.ModelFileFacts(
        "A Model", "Some One", "llama", 2048, False, "mit"
    )
    path.write_bytes(file(WHOLE[0], ("tokenizer.ggml.model", "gpt2"), *WHOLE[1:]))
    assert gguf.facts(path, is_whole=False).context == 2048  # found behind the tokenizer as well


def test_the_carried_weights(tmp_path: Path) -> None:
    path = weights.carried()
    assert path is not None
    known = gguf.facts(path)
    assert (known.architecture, known.context, known.chats, known.license) == (
        "llama",
        8192,
        True,
        "apache-2.0",
    )


@each_of(
    ("data", "said"),
    [
        (b"", "does not begin with GGUF"),
        (b"PK\3\4", "does not begin with GGUF"),
        (b"GGUF", "ends in the middle"),
        (file(*WHOLE, version=1), "version 1"),
        (file(*WHOLE, version=99), "version 99"),
        (file(*WHOLE, count=1 << 60), "over the limit of 10000"),
        (file(*WHOLE, count=9), "ends in the middle"),
        (file(*WHOLE)[:-1], "ends in the middle"),
        (file(count=1) + struct.pack("<Q", 1 << 62), "over the limit of 1048576"),
        (file(count=1) + text("k") + struct.pack("<I", 13), "unknown type 13"),
        (file(count=1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "list of lists"),
        (file(count=1) + text("k") + struct.pack("<IIQ", 9, 8, 1 << 40), "more than 4000000 texts"),
        (file(count=1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 61), "more than 256 MiB"),
        (file(count=1) + text("k") + struct.pack("<IIQQ", 9, 8, 1, 1 << 61), "more than 256 MiB"),
        (file(), "does not name the architecture"),
        (file(("general.architecture", "llama"), ("general.type", "adapter")), "of the type adapter"),
        (file(("general.architecture", "llama"), ("split.count", 3)), "one of 3 parts"),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(Fault) as caught:
        read(tmp_path, data)
    assert (caught.value.code, said in caught.value.message) == ("EINVAL", True), caught.value.message


@given(cut=st.integers(0, 400), noise=st.binary(max_size=40))
def test_noise_is_refused_or_read(cut: int, noise: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.gguf"
    data = file(*WHOLE)
    path.write_bytes(data[:cut] + noise + data[cut + len(noise) :])
    codes = []
    try:
        gguf.facts(path)
    except Fault as fault:
        codes.append(fault.code)
    assert codes in ([], ["EINVAL"])


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="No such file"):
        gguf.facts(tmp_path / "none.gguf")


def test_files_that_were_added(tmp_path: Path) -> None:
    config, path = tmp_path / "config", tmp_path / "m.gguf"
    path.write_bytes(file(*WHOLE))
    weights.add(config, "my/model", path)
    weights.add(config, "my/model", path)
    weights.add(config, "a/b", tmp_path / "gone.gguf")
    assert list(weights.added(config)) == [("a/b", tmp_path / "gone.gguf"), ("my/model", path)]
    by_name = {each.object.name: each for each in weights.found(config, 1024)}
    assert (
        by_name["my/model"].object.extra["limit"] == "1024"
    )  # the limit of a stream, not the length that the model was made for
    assert by_name["my/model"].object.status == "ready"
    assert by_name["a/b"].object.status.startswith("broken: ")
    assert by_name["a/b"].object.extra["limit"] == "unknown"
    # a file that is not our link, or has no valid name, is no model
    (config / "gguf/my/file.gguf").write_bytes(b"")
    (config / "gguf/my/-bad.gguf").symlink_to(path)
    assert [name for name, _ in weights.added(config)] == ["a/b", "my/model"]
    assert weights.remove(config, "my/model")
    assert not weights.remove(config, "my/model")
    with pytest.raises(Fault):
        weights.add(config, "../x", path)


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    # models/local/weights.py: "cached until the file changes"
    path = tmp_path / "m.gguf"
    weights.add(tmp_path, "my/model", path)
    for data, begins in (
        (file(*WHOLE), "ready"),
        (b"no model any more", "broken: "),
        (file(*WHOLE), "ready"),
    ):
        path.write_bytes(data)
        found = {each.object.name: each.object.status for each in weights.found(tmp_path, 1024)}
        assert found["my/model"].startswith(begins)


def test_a_missing_engine_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(file(*WHOLE))
    weights.add(tmp_path, "my/model", path)
    monkeypatch.setattr(weights, "PACKAGES", ("h11", "no_such_engine"))
    assert weights.missing() == ["no_such_engine"]
    (only,) = weights.found(tmp_path, 1024)  # without an engine the carried weights are no model
    assert (only.object.name, "ctx provider add-local" in only.object.status) == ("my/model", True)
