"""The extra `mcp`: an error for users who have not installed it."""

from __future__ import annotations

from importlib.util import find_spec

from cortexfs.core.errors import Fault


def is_there() -> bool:
    return find_spec("mcp") is not None


def check() -> None:
    """Raises EHOSTDOWN if the extra is not installed."""
    if not is_there():
        raise Fault(
            "EHOSTDOWN", "MCP needs the extra mcp, which is not installed: pip install 'cortexfs[mcp]'"
        )
