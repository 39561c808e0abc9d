"""The user's own prices: `prices.toml` in the configuration directory (core/models/prices.py has its form).

Rules: it is read when a command shows money, and never written. Without the file nothing has a price.
"""

from __future__ import annotations

import os
import tomllib

import msgspec

from cortexfs.core.errors import Fault
from cortexfs.core.models.prices import Prices
from cortexfs.state import believed, directories

FILE = "prices.toml"
MAX_FILE = 1 << 20


def load() -> Prices:
    """Returns the prices of whoever runs the command; every fault names the file and the key."""
    path = directories.places(os.environ, os.getuid()).config / FILE
    try:
        table = tomllib.loads((believed.whole(path, MAX_FILE, "list of prices") or b"").decode())
        return msgspec.convert(table, Prices)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise Fault("EINVAL", f"{path} is not TOML: {problem}") from None
    except msgspec.ValidationError as problem:
        mend = 'a price is written: [models."openai/gpt-4.1-mini"], below it input and output'
        raise Fault("EINVAL", f"{path}: {problem}; {mend}") from None
