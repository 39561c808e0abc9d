"""Attachments of a message: they are judged by their bytes, their size, and the model's abilities."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from cortexfs.client import attaching
from cortexfs.core.errors import Fault
from cortexfs.models.ask.question import PromptMedia, PromptText, model_input

SEES = ("chat", "vision", "pdf_input")
FILES = {
    "image/png": b"\x89PNG\r\n\x1a\n...",
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/gif": b"GIF89a",
    "image/webp": b"RIFF\0\0\0\0WEBPVP8 ",
    "application/pdf": b"%PDF-1.7 \xff",
}


@pytest.mark.parametrize("media_type", FILES)
def test_pictures_and_pdfs_go_as_what_they_are(media_type: str) -> None:
    # abi.md 8.15: whatever their names are
    data = FILES[media_type]
    named, part = attaching.parts("notes.txt", data, SEES)
    assert (part["media_type"], base64.b64decode(part["data"])) == (media_type, data)
    (said,) = model_input({"content": [{"type": "text", "text": "look"}, named, part]}).said
    assert said.text == "look\n\n[notes.txt]"
    assert isinstance(said.parts[-1], PromptMedia)


@pytest.mark.parametrize("media_type", FILES)
def test_what_a_model_cannot_take_is_refused(media_type: str) -> None:
    # abi.md 8.15: "with a clear refusal where the model cannot"
    with pytest.raises(
        Fault, match=r"cat: this model takes no (pictures|PDFs); choose a model whose"
    ) as refused:
        attaching.parts("cat", FILES[media_type], ("chat",))
    assert refused.value.code == "EINVAL"


def test_a_text_goes_to_every_model() -> None:
    (part,) = attaching.parts("a.md", "# ü\n```\nx\n```\n".encode(), ())
    (said,) = model_input({"content": [part]}).said
    assert said.parts == (PromptText("\n\na.md:\n````\n# ü\n```\nx\n```\n````\n"),)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a\0b", b"RIFF\0\0\0\0WAVE\xff"])
def test_nothing_else_goes(data: bytes) -> None:
    with pytest.raises(Fault, match="x is not text, a picture"):
        attaching.parts("x", data, SEES)


def test_what_has_no_room_in_a_message_is_refused() -> None:
    with pytest.raises(Fault, match=r"big has 2,097,152 bytes, over the limit of 770,048") as refused:
        attaching.parts("big", bytes(2 << 20), SEES)
    assert refused.value.code == "EMSGSIZE"


def test_the_abilities_of_an_agent_are_its_models(tmp_path: Path) -> None:
    for folder, name, text in (("model/p/m.d", "cap", "chat\nvision\n"), ("agent/a.d", "model", "main\n")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_text(text)
    (tmp_path / "model/main").symlink_to(tmp_path / "model/p/m")
    for path in ("model/main", "model/p/m", "agent/a"):
        assert attaching.abilities(str(tmp_path), str(tmp_path / path)) == ["chat", "vision"]
    with pytest.raises(Fault, match="cannot be read"):
        attaching.abilities(str(tmp_path), str(tmp_path / "model/none"))
