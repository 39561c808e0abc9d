"""`ctx provider` and `ctx model` as commands, with their own files and a server that the tests play."""

from __future__ import annotations

import http.server
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cortexfs.cli.main import main
from cortexfs.models.providers.provider import PRESETS
from tests.shell.provider_server import KEY
from tests.shell.webserving import served

MODELS = {"data": [{"id": "m1", "context_length": 8192}, {"id": "vendor/m2"}]}


class Server(http.server.ThreadingHTTPServer):
    status, body = 200, json.dumps(MODELS).encode()
    location = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.seen: list[tuple[str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Answering(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        server.seen.append((self.path, dict(self.headers)))
        self.send_response(server.status)
        if server.location:
            self.send_header("Location", server.location)
        self.send_header("Content-Length", str(len(server.body)))
        self.end_headers()
        self.wfile.write(server.body)

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with served(Server()) as made:
        yield made


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CTX_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("CTX_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CTX_ROOT", str(tmp_path / "ctx"))
    return tmp_path


def run(*words: str) -> int:
    return main(["provider", *words])


def add(server: Server, name: str = "mine", *more: str) -> None:
    assert run("add", name, "--base-url", server.url, "--format", "openai.chat", *more) == 0


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_adding_lists_the_models(server: Server, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(server)
    said = capsys.readouterr().err
    assert "2 models listed" in said
    assert "the change takes effect with the next ctx mount" in said
    run("models", "mine", "--json")
    rows = json.loads(capsys.readouterr().out)
    assert [(row["model"], row["id"], row["limit"]) for row in rows] == [
        ("mine/m1", "m1", 8192),
        ("vendor/m2", "vendor/m2", None),
    ]
    assert len(server.seen) == 1  # the listing is kept
    assert (place / "state").stat().st_mode & 0o777 == 0o700
    run("models", "mine", "--refresh")
    assert len(server.seen) == 2
    assert run("add", "mine", "--base-url", server.url, "--format", "openai.chat") == 1
    assert "already" in capsys.readouterr().err
    assert run("add", "mine+box", "--base-url", server.url, "--format", "openai.chat") == 2  # abi.md 14.14


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_well_known_provider_needs_its_name_alone(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortexfs.models.exchange.listing_request.models", lambda *_: [])
    assert run("add", name) == 0
    text = (place / "config" / "providers" / f"{name}.toml").read_text()
    assert PRESETS[name].base_url in text
    assert ("tools = true" in text) is PRESETS[name].tools


def test_a_server_of_one_s_own_whose_models_take_tools(server: Server, place: Path) -> None:
    add(server, "mine", "--tools")
    assert "tools = true" in (place / "config" / "providers" / "mine.toml").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "opnai"], "did you mean openai?"),
        (["add", "mine", "--base-url", "x", "--format", "google"], "base_url"),
        (["add", "mine", "--base-url", "https://x", "--format", "soap"], "format"),
        (["add", "local", "--base-url", "https://x", "--format", "google"], "choose another"),
        (["add", "a/b", "--base-url", "https://x", "--format", "google"], "the name 'a/b'"),
        (
            ["add", "mine", "--base-url", "https://x", "--key-command", 'sh "'],
            "--key-command: no closing",
        ),
        (["remove", "nothing"], "no provider 'nothing'"),
        (["remove", "local"], "'local' has no file and no key: its models are built in; see: ctx ls model"),
        (["test", "debug"], "'debug' has no file and no key"),
        (["models", "nothing"], "no provider 'nothing'"),
        (["secret", "set", "nothing"], "no provider 'nothing'"),
        (["secret", "show", "nothing"], "show"),
    ],
)
def test_what_is_wrong(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) in (1, 2)
    assert said in capsys.readouterr().err


def test_a_key_is_kept_and_never_shown(
    server: Server, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # abi.md 8.2; issue: "keys read from stdin or a prompt into state/secrets (0600) ...; never shown again"
    add(server)
    type_in(monkeypatch, KEY + "\n")
    assert run("secret", "set", "mine") == 0
    file = place / "state" / "secrets" / "mine"
    assert file.read_text() == KEY + "\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert server.seen[-1][1]["Authorization"] == f"Bearer {KEY}"
    for words in (["list", "--json"], ["list"], ["models", "mine"], ["test", "mine"]):
        assert run(*words) == 0
    told = capsys.readouterr()
    assert KEY not in told.out + told.err
    assert "kept" in told.out
    file.chmod(0o644)
    assert run("test", "mine") == 13
    assert "open to others" in capsys.readouterr().err
    assert run("remove", "mine") == 0
    assert not file.exists()
    assert not list((place / "config" / "providers").iterdir())
    assert not list((place / "state" / "providers").iterdir())


@pytest.mark.parametrize("typed", ["", "\n", "two words\n", "k\xe9y\n", "x" * 9000])
def test_what_is_no_key(
    typed: str, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add(server)
    type_in(monkeypatch, typed)
    assert run("secret", "set", "mine") == 2
    assert not typed.strip() or typed.strip() not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "exit_status", "said"),
    [
        (401, 13, "has no key"),
        (500, 1, "failed (500)"),
        (429, 1, "limits the rate"),
        (404, 0, "lists no models"),
    ],
)
def test_testing_exits_as_a_call_would(
    status: int, exit_status: int, said: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    add(server)
    server.status = status
    assert run("test", "mine") == exit_status
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("status", "models"), [(200, 2), (404, None)])
def test_a_test_as_json(
    status: int, models: int | None, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    add(server)
    server.status = status
    capsys.readouterr()
    assert run("test", "mine", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"provider": "mine", "models": models, "ms": told["ms"]}


def test_no_redirection_is_followed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # a key is sent only to the server that it was meant for
    add(server)
    type_in(monkeypatch, KEY)
    run("secret", "set", "mine")
    server.status, server.location = 302, f"{server.url}/elsewhere"
    before = len(server.seen)
    assert run("test", "mine") == 1
    assert [path for path, _ in server.seen[before:]] == ["/v1/models"]


def test_an_unreachable_provider(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    add(server)
    server.socket.close()
    capsys.readouterr()
    assert run("test", "mine") == 69
    said = capsys.readouterr().err
    assert "cannot be reached" in said
    assert "ctx provider test" not in said  # the user has just run it
    words = ["--base-url", server.url, "--format", "openai.chat"]
    assert run("add", "later", *words) == 0
    assert "ask again with: ctx provider models later --refresh" in capsys.readouterr().err


@pytest.mark.parametrize("body", [b"<html>", b"{", b'{"data":{}}'])
def test_a_listing_that_cannot_be_read(
    body: bytes, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.body = body
    add(server, "mine", "--model", "declared")
    assert "not listed yet" in capsys.readouterr().err
    server.body = json.dumps(MODELS).encode()
    assert run("models", "mine", "--refresh", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["model"] == "mine/declared"


def test_the_models_of_all_providers_are_listed_and_refreshed(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    # issue: "cached, refreshable, `ctx provider models --refresh`"
    add(server, "mine", "--tools")
    assert run("add", "gone", "--base-url", "http://127.0.0.1:1/v1", "--format", "openai.chat") == 0
    capsys.readouterr()
    before = len(server.seen)
    assert run("models", "--refresh", "--json") == 69  # one provider cannot be reached
    said = capsys.readouterr()
    assert "gone: " in said.err
    rows = json.loads(said.out)
    assert len(rows) == 2
    assert all("tool_call_syntax" in row["cap"] for row in rows)
    assert len(server.seen) == before + 1
    assert run("models", "mine") == 0  # from the last listing
    assert len(server.seen) == before + 1


@pytest.mark.parametrize("listed", ["", "listed = false\n"])
def test_a_file_that_was_edited_counts_whether_its_server_answers_or_not(
    listed: str, server: Server, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # docs/models.md: "After an edit by hand, run `ctx provider models NAME --refresh`"
    add(server)
    file = place / "config" / "providers" / "mine.toml"
    file.write_text(file.read_text() + 'models = ["own"]\n' + listed)
    server.socket.close()
    capsys.readouterr()
    assert run("models", "mine", "--refresh") == (0 if listed else 69)
    assert "the change takes effect with the next ctx mount" in capsys.readouterr().err


def test_a_model_of_one_s_own(server: Server, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(server)
    file = place / "config" / "providers" / "mine.toml"
    file.write_text(file.read_text() + "# a remark of mine\n")
    words = ["--from", "model/vendor/m2", "--set", "temperature=0.5", "--effort", "high"]
    assert main(["model", "new", "vendor/own", *words]) == 0
    text = file.read_text()
    assert "# a remark of mine" in text  # "stays as its owner wrote it"
    assert "default = {temperature = 0.5}" in text
    run("models", "mine", "--json")
    row = json.loads(capsys.readouterr().out)[0]
    assert (row["model"], row["id"]) == ("vendor/own", "vendor/m2")
    assert main(["model", "new", "vendor/other", "--from", "vendor/own", "--set", "token=x"]) == 2
    assert main(["model", "new", "other", "--from", "vendor/own"]) == 2


def test_of_two_providers_the_first_has_the_name(server: Server, place: Path) -> None:
    # abi.md 2.7
    from cortexfs.models.exchange.sources import served
    from cortexfs.models.providers.files import Providers
    from cortexfs.models.providers.secrets import Secrets

    for name in ("zed", "abc"):
        add(server, name)
    found = served(Providers(place / "config", place / "state"), Secrets(place / "state"))
    first = [each for each in found.objects if each.name == "vendor/m2"]
    assert [each.origin for each in first] == ["provider:zed", "provider:abc"]


class TypedAt(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("typed", [KEY, ""])
def test_a_well_known_one_needs_a_key_and_nothing_else(
    place: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    # issue 14: "every vendor known by name needs a key and nothing else (`ctx provider add openai`)"
    asked: list[tuple[object, ...]] = []

    def models(*given: object) -> list[object]:
        asked.append(given)
        return []

    monkeypatch.setattr("cortexfs.models.exchange.listing_request.models", models)
    monkeypatch.setattr("getpass.getpass", lambda prompt: typed)
    monkeypatch.setattr("sys.stdin", TypedAt())
    assert run("add", "work", "--vendor", "openai") == 0
    assert asked[0][2] == typed
    assert (
        (place / "config" / "providers" / "work.toml")
        .read_text()
        .startswith('base_url = "https://api.openai.com/v1"')
    )
    assert (place / "state" / "secrets" / "work").exists() == bool(typed)
