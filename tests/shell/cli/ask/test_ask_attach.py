"""Attachments of `ctx ask`: files, addresses and standard input, and the inputs that are refused."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cortexfs.cli.ask import attach
from cortexfs.client.attaching import MOST
from cortexfs.core import frames
from cortexfs.core.errors import Fault
from tests.shell.cli_tree import ctx, plant
from tests.shell.client_server import Served, served
from tests.shell.webserving import served as web_served

GPT = "model/openai/gpt-5"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(16)


class _Web(http.server.BaseHTTPRequestHandler):
    """A server: /file answers, /away redirects to a local file, /round to itself, and /endless never ends."""

    done = threading.Event()

    def do_GET(self) -> None:
        targets = {"/away": "file:///etc/passwd", "/round": "/round", "/there": "/file"}
        target = targets.get(self.path)
        self.send_response(302 if target else 404 if self.path == "/none" else 200)
        if target:
            self.send_header("Location", target)
        self.end_headers()
        if self.path == "/file":
            self.wfile.write(b"text of it")
        while self.path == "/endless":
            try:
                self.wfile.write(bytes(1 << 16))
            except OSError:
                return
        if self.path == "/silent":
            self.done.wait()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[str]:
    _Web.done.clear()
    with web_served(http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Web)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"
        _Web.done.set()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = plant(tmp_path / "ctx")
    (root / f"{GPT}.d" / "cap").write_text("chat\nvision\n")
    return root


@pytest.fixture
def server(root: Path) -> Iterator[Served]:
    with served(root / f"{GPT}.sock") as server:
        yield server


def fault_of(source: str) -> Fault:
    with pytest.raises(Fault) as fault:
        attach.read(source)
    return fault.value


def test_a_file_is_read(tmp_path: Path) -> None:
    # abi.md 8.25
    (tmp_path / "a.txt").write_text("hello")
    assert attach.read(str(tmp_path / "a.txt")) == ("a.txt", b"hello")


def test_what_is_no_regular_file_is_refused_and_not_opened(tmp_path: Path) -> None:
    # issue: "an attachment that is a FIFO, device, directory"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero"), Path("/dev/tty")):
        assert (fault_of(str(path)).code, "no regular file" in fault_of(str(path)).message) == (
            "EINVAL",
            True,
        )
    assert fault_of(str(tmp_path / "none")).code == "ENOENT"


def test_a_file_is_read_no_further_than_a_message_goes(tmp_path: Path) -> None:
    # issue: "an attachment that is too large"
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    assert len(attach.read(str(tmp_path / "sparse"))[1]) == MOST + 1


def test_an_address_is_fetched_and_a_redirect_followed(web: str) -> None:
    # abi.md 8.25
    assert attach.read(f"{web}/file") == ("file", b"text of it")
    assert attach.read(f"{web}/there") == ("there", b"text of it")


@pytest.mark.parametrize(
    ("path", "code", "sentence"),
    [
        ("/away", "EINVAL", "is not an http or https address"),
        ("/round", "ELOOP", "more than 5 redirects"),
        ("/endless", "EMSGSIZE", "it is over 1 MiB"),
        ("/none", "ENOENT", "HTTP 404"),
        ("/silent", "ETIMEDOUT", "no whole answer within 0.2 s"),
    ],
)
def test_an_address_that_leads_astray_or_never_ends_is_refused(
    web: str, path: str, code: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # issue: "URL that redirects or never ends"
    if path == "/silent":
        monkeypatch.setattr(attach, "FETCH_SECONDS", 0.2)
    fault = fault_of(f"{web}{path}")
    assert (fault.code, sentence in fault.message) == (code, True), fault


def test_text_pictures_and_standard_input_go_along(server: Served, root: Path, tmp_path: Path) -> None:
    # abi.md 8.15, 8.25
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "a.txt").write_text("noted")
    files = ["-a", str(tmp_path / "a.png"), "-a", str(tmp_path / "a.txt"), "-a", "-"]
    done = ctx("ask", *files, "what is this", root=root, input="piped")
    assert (done.returncode, done.stderr) == (0, "")
    log = [*server.world.logs.values()][-1]
    said = frames.decode(log[1].line)
    assert isinstance(said, frames.Message)
    parts = [getattr(part, "text", "") for part in said.content]
    assert parts == [
        "what is this",
        "\n\n[a.png]",
        "\n\na.txt:\n```\nnoted\n```\n",
        "\n\nstandard input:\n```\npiped\n```\n",
    ]


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.pdf", b"%PDF-1.7", "a.pdf: this model takes no PDFs"),
        ("a.bin", b"\0\1\2", "a.bin is not text, a picture"),
        ("big.png", PNG + bytes(MOST), "make it smaller"),
    ],
)
def test_what_the_model_cannot_take_is_refused_before_it_is_sent(
    server: Served, root: Path, tmp_path: Path, name: str, data: bytes, sentence: str
) -> None:
    # abi.md 8.15
    (tmp_path / name).write_bytes(data)
    done = ctx("ask", "-a", str(tmp_path / name), "x", root=root)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert sentence in done.stderr
    assert server.accepted == 0
