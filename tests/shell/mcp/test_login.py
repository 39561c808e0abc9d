"""A login at an MCP server: only the browser that was sent there ends it, whoever else connects."""

from __future__ import annotations

import contextlib
import socket
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest

from cortexfs.mcp import login
from tests.mounted.mcp_login_places import logins

FORGED = ["error=access_denied", "code=of+another", "code=of+another&state=of+another", "state=of+another"]


def test_no_other_user_ends_a_login(tmp_path: Path) -> None:
    with logins(tmp_path) as address, contextlib.ExitStack() as ending:

        def browse(where: str) -> None:
            back = parse_qs(urlsplit(where).query)["redirect_uri"][0]
            port = urlsplit(back).port
            ending.enter_context(socket.create_connection((login.HOST, port)))  # it says nothing
            for query in FORGED:
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    urllib.request.urlopen(f"{back}?{query}")
            assert login.DONE in urllib.request.urlopen(where).read().decode()

        found = anyio.run(login.logged_in, address, login.LoginWish(), browse)
        assert found
        assert found.access_token
