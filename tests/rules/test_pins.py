"""The lock file, which `make up` installs, knows each package that pyproject.toml names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
NEEDED = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]


@pytest.mark.parametrize("requirement", NEEDED)
def test_a_checkout_installs_what_it_needs(requirement: str) -> None:
    # pip install --no-deps -e . comes after the lock file: a package missing from the file is not installed
    name = re.split(r"[<>=~!\[; ]", requirement)[0]
    assert re.search(rf"^{re.escape(name)}==", (TOP / "requirements-dev.lock").read_text(), re.MULTILINE)
