"""A registry like npm's, a registry like JSR's, and plain modules, on one https server of this machine.

Its certificate is signed by an authority that DENO_CERT has to name; `environment` holds DENO_CERT and the
registries. It answers on all loopback addresses of IPv4, as a redirect has to lead somewhere else. The
certificate covers only 127.0.0.1, localhost, and far.invalid, a name that only a test's proxy resolves.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import json
import ssl
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PRIVATE = "127.0.0.1/32,::1/128"  # --private has to allow these, and no other loopback address
_NAMES = """
subjectAltName=DNS:localhost,DNS:far.invalid,IP:127.0.0.1
authorityKeyIdentifier=keyid
subjectKeyIdentifier=hash
"""
_SIGNS = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # Python 3.13 refuses an authority without it


class Certificates(NamedTuple):
    authority: Path
    chain: Path
    key: Path


def certificates(where: Path) -> Certificates:
    made = Certificates(where / "ca.pem", where / "server.pem", where / "server.key")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    authority = ("-keyout", where / "ca.key", "-out", made.authority, "-subj", "/CN=A test")
    _openssl("req", "-x509", *curve, *authority, *_SIGNS)
    _openssl("req", *curve, "-keyout", made.key, "-out", where / "asked", "-subj", "/CN=localhost")
    (where / "names").write_text(_NAMES)
    signed = ("-CA", made.authority, "-CAkey", where / "ca.key", "-CAcreateserial", "-days", "2")
    _openssl("x509", "-req", "-in", where / "asked", *signed, "-extfile", where / "names", "-out", made.chain)
    return made


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


class Site:
    """The pages of the server by their paths, and the paths that were requested."""

    def __init__(self, port: int, authority: Path) -> None:
        self.port = port
        self.base = f"https://localhost:{port}"
        self.authority = authority
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[str] = []
        self.tokens: list[str] = []  # the tokens that clients sent
        self.over = threading.Event()
        self.silent: set[str] = set()  # paths that are answered only when `over` is set

    @property
    def environment(self) -> dict[str, str]:
        registries = {"NPM_CONFIG_REGISTRY": f"{self.base}/npm/", "JSR_URL": f"{self.base}/jsr/"}
        return {"DENO_CERT": str(self.authority), **registries}

    def page(self, path: str, data: bytes | str, kind: str = "text/javascript") -> str:
        """Add a page and return its address."""
        body = data if isinstance(data, bytes) else data.encode()
        self.pages[path] = (200, {"Content-Type": kind}, body)
        return self.base + path

    def redirect(self, path: str, target: str) -> str:
        self.pages[path] = (302, {"Location": target}, b"")
        return self.base + path

    def npm(self, name: str, files: Mapping[str, str], version: str = "1.0.0", **package: object) -> str:
        """Publish a package and return its integrity."""
        about = {"name": name, "version": version, "main": "index.js", **package}
        data = _tarball({"package.json": json.dumps(about), **files})
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}"
        at = f"/npm/{name.replace('/', '%2f')}"  # npm's clients encode the slash of a scoped name
        tarball = self.page(f"{at}/-/{version}.tgz", data, "application/octet-stream")
        one = {**about, "dist": {"tarball": tarball, "integrity": integrity}}
        before = self.pages.get(at)
        versions = json.loads(before[2])["versions"] if before else {}
        catalogue = {"name": name, "dist-tags": {"latest": version}, "versions": {**versions, version: one}}
        self.page(at, json.dumps(catalogue), "application/json")
        return integrity

    def jsr(self, name: str, text: str, version: str = "1.0.0") -> None:
        scope, _, short = name.removeprefix("@").partition("/")
        about = {"scope": scope, "name": short, "latest": version, "versions": {version: {}}}
        self.page(f"/jsr/{name}/meta.json", json.dumps(about), "application/json")
        checksum = f"sha256-{hashlib.sha256(text.encode()).hexdigest()}"
        files = {"/mod.ts": {"size": len(text), "checksum": checksum}}
        detail = {"manifest": files, "exports": {".": "./mod.ts"}}
        self.page(f"/jsr/{name}/{version}_meta.json", json.dumps(detail), "application/json")
        self.page(f"/jsr/{name}/{version}/mod.ts", text, "application/typescript")


def _tarball(files: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return made.getvalue()


@contextlib.contextmanager
def site(found: Certificates) -> Iterator[Site]:
    class Answers(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            made.asked.append(self.path)
            if self.path in made.silent:
                made.over.wait()
            made.tokens += self.headers.get_all("Authorization", [])
            status, headers, body = made.pages.get(self.path, (404, {}, b""))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            del said

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *said: object) -> None:  # a client that breaks off is no fault of ours
            del said

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(found.chain, found.key)
    with Server(("", 0), Answers) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        made = Site(server.server_address[1], found.authority)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield made
        finally:
            made.over.set()
            server.shutdown()
            thread.join()
