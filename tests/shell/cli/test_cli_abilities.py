"""`ctx provider abilities`: the abilities of models whose providers do not list them."""

from __future__ import annotations

import io
import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cortexfs.cli.main import main
from cortexfs.core.errors import Fault
from cortexfs.models.exchange import tool_probe
from cortexfs.models.exchange.sources import served
from cortexfs.models.providers import abilities
from cortexfs.models.providers.files import Providers
from cortexfs.models.providers.listing import BASIC, NATIVE, ListedModel, cap
from cortexfs.models.providers.provider import Provider
from cortexfs.models.providers.secrets import Secrets
from tests.shell.cli import test_cli_provider
from tests.shell.cli.test_cli_provider import Server

place, server = test_cli_provider.place, test_cli_provider.server

SEER = {"mode": "chat", "max_input_tokens": 9000, "supports_vision": True, "supports_function_calling": True}
LIST: dict[str, Any] = {
    "sample_spec": {
        "mode": "one of: chat, embedding",
        "max_input_tokens": "a number",
        "supports_vision": True,
    },
    "m1": SEER,
    "mine/other": {"mode": "chat", "supports_reasoning": True},
    "other": {"mode": "chat", "supports_audio_input": True},
    "vectors": {"mode": "embedding", "max_input_tokens": 512},
    "plain": {"mode": "chat", "supports_vision": "yes", "max_input_tokens": -3},
    "painter": {"mode": "image_generation"},
    "worse": 7,
}


def wheel(
    data: bytes,
    name: str = "litellm/model_prices_and_context_window_backup.json",
    packing: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as file:
        file.writestr("litellm/__init__.py", "raise SystemExit('nobody runs this')")
        file.writestr(name, data)
    return made.getvalue()


def run(*words: str) -> int:
    return main(["provider", *words])


@pytest.mark.parametrize("packed", [False, True])
def test_the_table_says_what_a_listing_does_not(place: Path, server: Server, packed: bool) -> None:
    # abi.md 8.35
    data = json.dumps(LIST).encode()
    source = place / "source"
    source.write_bytes(wheel(data) if packed else data)
    server.body = json.dumps(
        {
            "data": [
                {"id": "m1", "context_length": 8192},
                *({"id": id_} for id_ in ("other", "vectors", "unheard")),
            ]
        }
    ).encode()
    words = ("--base-url", server.url, "--format", "openai.responses", "--model", "plain")
    assert run("add", "mine", *words) == 0
    assert caps(place) == dict.fromkeys(("m1", "other", "vectors", "unheard", "plain"), (*BASIC,))
    assert run("abilities", "--renew", str(source)) == 0
    told = caps(place)
    assert told["m1"] == (*BASIC, NATIVE, "vision")
    assert told["other"] == (*BASIC, "reasoning")  # as this provider has it, not another one
    assert told["vectors"] == ("embedding",)
    assert told["unheard"] == told["plain"] == BASIC
    assert limits(place) == {"m1": "8192", "other": "unknown", "vectors": "512"} | dict.fromkeys(
        ("unheard", "plain"), "unknown"
    )


def caps(place: Path) -> dict[str, tuple[str, ...]]:
    return {name: tuple(extra["cap"].split()) for name, extra in objects(place).items()}


def limits(place: Path) -> dict[str, str]:
    return {name: extra["limit"] for name, extra in objects(place).items()}


def objects(place: Path) -> dict[str, Any]:
    found = served(Providers(place / "config", place / "state"), Secrets(place / "state"))
    return {each.name.removeprefix("mine/"): each.extra for each in found.objects}


def test_it_is_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("abilities") == 0
    assert "there is no table" in capsys.readouterr().err
    (place / "list.json").write_text(json.dumps(LIST))
    assert run("abilities", "--renew", str(place / "list.json")) == 0
    assert "5 models, of " in capsys.readouterr().err
    assert run("abilities", "M1") == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["m1", "9000", "chat"]
    assert run("abilities", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["source"], len(shown["models"])) == (str(place / "list.json"), 5)


def test_an_address_is_fetched_when_it_is_named(
    place: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.body = json.dumps(LIST).encode()
    assert run("abilities") == 0
    assert server.seen == []
    assert run("abilities", "--renew", server.url) == 0
    assert "5 models" in capsys.readouterr().err


BAD = [b"", b"{}", b"[" * 100_000, b"\xff\xfe", b'{"a": {"mode": "chat"', b"PK\3\4", wheel(b"{}")]


@pytest.mark.parametrize("data", [*BAD, wheel(json.dumps(LIST).encode(), "x.json")])
def test_what_is_no_list_leaves_the_table_as_it_is(
    place: Path, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    # abi.md 8.35
    (place / "source").write_text(json.dumps(LIST))
    assert run("abilities", "--renew", str(place / "source")) == 0
    before = (place / "state" / abilities.FILE).read_bytes()
    (place / "source").write_bytes(data)
    assert run("abilities", "--renew", str(place / "source")) == 2
    assert "is neither litellm's list of models" in capsys.readouterr().err
    assert (place / "state" / abilities.FILE).read_bytes() == before


@pytest.mark.parametrize("packing", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_source_is_read_or_refused(packing: int) -> None:
    whole = wheel(json.dumps(LIST).encode(), packing=packing)
    chance, codes = random.Random(5), set[str]()
    for _ in range(300):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        try:
            assert abilities.read(bytes(data), "it", 0).models
        except Fault as fault:
            codes.add(fault.code)
    assert codes == {"EINVAL"}


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_file_is_not_opened(place: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "it"
    if kind == "fifo":
        os.mkfifo(path)
    named = {"fifo": path, "device": Path("/dev/zero"), "folder": place}[kind]
    assert run("abilities", "--renew", str(named)) == 2
    assert "no regular file" in capsys.readouterr().err


def test_a_table_that_cannot_be_read_is_none(place: Path) -> None:
    (place / "state").mkdir(mode=0o700)
    kept = abilities.KeptAbilities(place / "state")
    for data in (b"", b"{", b"[]", b'{"source": 1}'):
        (place / "state" / abilities.FILE).write_bytes(data)
        assert kept.table().models == {}
    kept.keep(abilities.read(json.dumps(LIST).encode(), "it", 1.0))
    assert len(kept.table().models) == 5


def test_a_preset_guesses_and_a_table_knows() -> None:
    # docs/models.md: "The table counts more than that"
    rows = {"seer": {"mode": "chat", "supports_vision": True}, "worker": SEER}
    table = abilities.read(json.dumps(rows).encode(), "it", 0)
    vendor = Provider("https://example.org/v1", "openai.chat", tools=True)
    listed = [ListedModel("seer"), ListedModel("worker", cap=(*BASIC, "reasoning")), ListedModel("new")]
    found = {offer.declared.id: cap(offer, vendor) for offer in table.offers("v", vendor, listed)}
    assert found == {
        "seer": (*BASIC, "vision"),
        "worker": (*BASIC, "reasoning", NATIVE, "vision"),
        "new": (*BASIC, NATIVE),
    }


def test_no_table_is_an_empty_one_in_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("abilities", "--json") == 0
    assert json.loads(capsys.readouterr().out)["models"] == []


def test_nobody_is_asked_what_the_table_knows(
    place: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # abi.md 8.35: "else a request asks"
    asked: list[str] = []

    def calls(provider: Provider, key: str, model: str, post: tool_probe.Post) -> bool:
        asked.append(model)
        return False

    monkeypatch.setattr(tool_probe, "_calls", calls)
    (place / "source").write_text(json.dumps(LIST))
    assert run("abilities", "--renew", str(place / "source")) == 0
    server.body = json.dumps({"data": [{"id": "m1"}, {"id": "unheard"}]}).encode()
    assert run("add", "mine", "--base-url", server.url, "--format", "openai.chat") == 0
    assert asked == ["unheard"]
