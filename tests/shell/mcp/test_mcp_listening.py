"""The address at which `ctx mcp serve --http` listens."""

from __future__ import annotations

import pytest

from cortexfs.core.errors import Fault
from cortexfs.mcp.http import bound


def test_a_port_that_is_taken_is_told_in_one_sentence() -> None:
    with bound("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Fault, match=f"at 127.0.0.1 port {port}: Address already in use$"):
            bound("127.0.0.1", port)
