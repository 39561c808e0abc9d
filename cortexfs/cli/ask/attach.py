"""The attachments of a question: a file, an address or standard input, as its name and its bytes.

Rules: everything is read as the asking user, is bounded in size and in time, and is refused before anything
is sent. A pipe, a device or a folder is no attachment: opening one may block for ever, or have effects.
This file must never know models.
"""

from __future__ import annotations

import base64
import errno
import os
import sys
from urllib.parse import urlsplit

from cortexfs.cli import progress
from cortexfs.cli.bounded import beginning
from cortexfs.client.attaching import MOST
from cortexfs.core.errors import Fault, code_of

STDIN = "-"
FETCH_MOST, FETCH_SECONDS = 1 << 20, 30.0
FILE_SECONDS = 10.0
SCHEMES = ("http", "https")


def is_address(source: str) -> bool:
    return "://" in source or source.startswith("data:")


def read(source: str) -> tuple[str, bytes]:
    """Returns the attachment. Raises a Fault that names it."""
    if source == STDIN:
        return "standard input", piped()
    if source.startswith("data:"):
        return "the prompt's file", _inline(source)
    scheme, separator, _ = source.partition("://")
    if separator and scheme.lower() in SCHEMES:
        from cortexfs.net import web  # a slow import that only addresses need

        parts = urlsplit(source)
        with progress.shown(f"fetching {source}"):
            data = web.download(source, FETCH_MOST, FETCH_SECONDS)
        return os.path.basename(parts.path) or parts.hostname or source, data
    return os.path.basename(source), file(source)


def _inline(source: str) -> bytes:
    """Returns the bytes of a data: address (RFC 2397) in base64."""
    head, _, data = source.partition(",")
    try:
        if not head.endswith(";base64"):
            raise ValueError
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise Fault("EINVAL", f"{head[:100]} is no address with base64 in it") from None


def file(path: str) -> bytes:
    """Returns the beginning of a regular file, with one byte more than fits if it is too large."""
    path = os.path.expanduser(path)
    try:
        return beginning(path, MOST + 1, FILE_SECONDS)
    except OSError as problem:
        if problem.errno == errno.EINVAL:
            why = f"{path} is no regular file; attach a file, or pipe it in with -a -"
            raise Fault("EINVAL", why) from None
        why = f"{path} cannot be attached: {problem.strerror}"
        raise Fault(code_of(problem.errno), why) from None


def piped() -> bytes:
    """Returns standard input, as far as a message could hold it."""
    with progress.shown("reading standard input"):
        return sys.stdin.buffer.read(FETCH_MOST + 1)
