"""The sources of plugins: a directory, a .cpx, an address, or a release of a repository.

Rules: each download is bounded in size and time, and compared with the .sha256 beside it, if there is one.
Each source but a directory is a package, which must be signed.
This file must never know the place of installed plugins, nor the trusted publishers.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path
from typing import NamedTuple

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.jsontext import UNREADABLE
from cortexfs.net import web
from cortexfs.plugins.package import package
from cortexfs.plugins.package.directory import bounded
from cortexfs.plugins.package.package import SUFFIX, PackageFiles
from cortexfs.plugins.package.tarball import MAX_PACKED

CHECKSUM = ".sha256"
RELEASES = "https://api.github.com/repos"
OWNER, PREFIX = "by-scott", "cortex-plugin-"  # of a plugin without an owner in its name
FETCH_SECONDS = 300.0
_MAX_ANSWER = 4 << 20  # bytes of a checksum, or of the description of a release
_GZIP = b"\x1f\x8b"
_RELEASE = re.compile(r"(?:([\w.-]+)/)?([\w.-]+?)(?:@v?([\w.+-]+))?", re.ASCII)


class PluginSource(NamedTuple):
    tree: PackageFiles
    packaged: bool
    told: str  # the source, for a person


class _Asset(msgspec.Struct, frozen=True):
    name: str
    browser_download_url: str


class _Release(msgspec.Struct, frozen=True):
    assets: tuple[_Asset, ...] = ()


def read(source: str) -> PluginSource:
    path = Path(source)
    if source.startswith(("http://", "https://")):
        return _fetched(source)
    if path.is_dir():
        return PluginSource(package.read(path), False, str(path.resolve()))
    if source.endswith(SUFFIX) or path.exists():
        return _file(path)
    found = _RELEASE.fullmatch(source)
    if not found or source.startswith((".", "/")):
        forms = f"a directory, a {SUFFIX} file, an address, owner/repo[@version] or name[@version]"
        raise Fault("ENOENT", f"there is no {source!r}; name {forms}")
    owner, repo, version = found.groups()
    if owner is None:
        owner, repo = OWNER, PREFIX + repo.removeprefix(PREFIX)
    return _fetched(_asset(owner, repo, version))


def _file(path: Path) -> PluginSource:
    data = bounded(path, MAX_PACKED)
    beside = path.with_name(path.name + CHECKSUM)
    if beside.exists():
        package.check_checksum(_text(bounded(beside, _MAX_ANSWER)), data, path.name)
    if not data.startswith(_GZIP) and path.suffix != SUFFIX:
        raise Fault(
            "EINVAL", f"{path} is not a package of a plugin; to make a script a tool: ctx tool add {path}"
        )
    return PluginSource(package.unpack(data, str(path)), True, str(path.resolve()))


def _fetched(address: str) -> PluginSource:
    data = web.download(address, MAX_PACKED, FETCH_SECONDS)
    name = urllib.parse.unquote(urllib.parse.urlsplit(address).path).rpartition("/")[2]
    parts = urllib.parse.urlsplit(address)
    beside = urllib.parse.urlunsplit(parts._replace(path=parts.path + CHECKSUM))
    try:
        package.check_checksum(_text(web.download(beside, _MAX_ANSWER, FETCH_SECONDS)), data, name)
    except Fault as fault:
        if fault.code != "ENOENT":  # no checksum is published
            raise
    return PluginSource(package.unpack(data, address), True, address)


def _asset(owner: str, repo: str, version: str | None) -> str:
    """Returns the address of a release's package for this system."""
    tag = f"tags/v{version}" if version else "latest"
    address = f"{RELEASES}/{owner}/{repo}/releases/{tag}"
    data = web.download(address, _MAX_ANSWER, FETCH_SECONDS)
    try:
        release = msgspec.json.decode(data, type=_Release)
    except UNREADABLE:
        raise Fault("EPROTO", f"GitHub did not describe a release of {owner}/{repo}; try again") from None
    platform = package.platform()
    fitting = [asset for asset in release.assets if asset.name.endswith(f"-{platform}{SUFFIX}")]
    fitting.sort(key=lambda asset: not asset.name.startswith(f"{repo}-v"))
    if not fitting:
        why = f"the release of {owner}/{repo} has no package ({SUFFIX}) for {platform}"
        raise Fault("ENOENT", f"{why}; ask its author, or name another version")
    return fitting[0].browser_download_url


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
