"""What the documentation says of the tests is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "security.md").read_text())))


def test_security_names_tests() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("file", "test"), NAMED)
def test_each_test_that_security_names_exists(file: str, test: str) -> None:
    # security.md: "Each claim names the tests that show it"
    assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE)
