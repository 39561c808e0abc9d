"""The user's own prices: `prices.toml` in the configuration directory (core/models/prices.py has its form).

Rules: the file is read when a command shows money, and never written. Without the file nothing has a price.
"""

from __future__ import annotations

import os

from cortexfs.core import tomltext
from cortexfs.core.models.prices import Prices
from cortexfs.state import believed, directories

FILE = "prices.toml"
MAX_FILE = 1 << 20


def load() -> Prices:
    """Returns the prices of the user who runs the command. Each fault names the file and the key."""
    path = directories.places(os.environ, os.getuid()).config / FILE
    data = believed.content_of(path, MAX_FILE, "list of prices") or b""
    return tomltext.converted(tomltext.table(data, str(path)), Prices, str(path))
