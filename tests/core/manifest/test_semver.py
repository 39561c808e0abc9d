"""Versions and ranges as npm has them (abi.md 9.11).

While core/manifest/semver.py was written it was compared with npm's own implementation (semver 7.8.5). Its
tables of included and excluded versions, and 3,738 ranges times 36 versions, gave the same answers, except
for ranges and versions that are refused here.
"""

from __future__ import annotations

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.manifest import semver
from tests.tables import each_of

# a range, versions inside it, versions outside it
RANGES = {
    "1.2.3": ("1.2.3 1.2.3+build", "1.2.4 1.2.3-beta 0.0.0"),
    "=v1.2.3": ("1.2.3", "1.2.2"),
    ">1.2.3": ("1.2.4 9.0.0", "1.2.3 2.0.0-beta"),
    ">= 2.0": ("2.0.0 3.1.4", "1.9.9 2.0.0-rc.1"),
    ">1.2": ("1.3.0", "1.2.9"),
    "<1.2": ("1.1.9", "1.2.0 1.2.0-rc.1 1.1.9-rc.1"),
    "<=1": ("1.9.9 0.1.0", "2.0.0 2.0.0-0"),
    "<2.0.0-0": ("1.9.9", "2.0.0-0 2.0.0"),
    "^1.0": ("1.0.0 1.9.0", "2.0.0 0.9.9 2.0.0-alpha"),
    "^1.2.3": ("1.2.3 1.9.9", "1.2.2 2.0.0 1.3.0-beta"),
    "^0.2.3": ("0.2.3 0.2.9", "0.3.0 0.2.2 1.0.0"),
    "^0.0.3": ("0.0.3", "0.0.4 0.0.2"),
    "^0.0": ("0.0.0 0.0.9", "0.1.0"),
    "^0": ("0.9.9", "1.0.0"),
    "^1.2.3-beta.2": ("1.2.3-beta.2 1.2.3-beta.10 1.2.3 1.3.0", "1.2.3-beta.1 1.2.4-beta.2 2.0.0-0"),
    "^1.2.3 >=2.0.0-0": ("", "1.9.9 2.0.0-0 2.0.0-alpha"),
    "~1.2.3": ("1.2.3 1.2.9", "1.3.0 1.2.2"),
    "~1.2": ("1.2.0 1.2.9", "1.9.0 1.3.0"),
    "~1": ("1.0.0 1.9.0", "2.0.0"),
    "~> 3.2.1": ("3.2.2", "3.3.2"),
    "1.x": ("1.0.0 1.9.9", "2.0.0 1.0.0-rc1"),
    "1.2.*": ("1.2.0", "1.3.0"),
    "2": ("2.9.9", "3.0.0"),
    "*": ("0.0.0 99.0.0", "1.0.0-rc1"),
    "": ("1.2.3", "1.2.3-beta"),
    ">=*": ("0.0.0", "0.0.0-0"),
    "<x": ("", "0.0.0 1.0.0"),
    "1.2.3 - 2.3": ("1.2.3 2.3.9", "1.2.2 2.4.0"),
    "1.2.3-pre - 2.4.3-pre": ("1.2.3-pre.2 1.2.3 2.4.3-alpha", "2.4.3 1.2.4-pre"),
    "x - 1.x": ("0.9.7 1.9.9", "2.0.0"),
    ">=0.2.3 || <0.0.1": ("0.0.0 0.2.4", "0.0.3 0.2.2"),
    "~1.2.1 >=1.2.3": ("1.2.3", "1.2.2 1.3.0"),
    ">=0.51.0": ("0.53.1", "0.50.9"),
    "1.2.3-beta || *": ("1.2.3", "1.2.3-beta"),
}
# oldest first
ORDER = """
    0.0.0-0 0.0.0-foo 0.0.0 0.9.9 0.10.0 1.2.3-4 1.2.3-5 1.2.3-4-foo 1.2.3-R2 1.2.3-a 1.2.3-a.5
    1.2.3-a.10 1.2.3-a.b 1.2.3-a.b.c.5.d.100 1.2.3-a.b.c.10.d.5 1.2.3-r100 1.2.3-r2 1.2.3 1.2.10
    2.0.0 10.0.0
"""
NO_VERSION = """
    1 1.2 1.2.3.4 v1.2.3 =1.2.3 01.2.3 1.02.3 1.2.3- 1.2.3-01 1.2.3-a..b 1.2.3-a_b 1.2.3+ 1.2.3+a+b
    9007199254740992.0.0 -1.2.3 latest \u0663.1.1 1.2.3-\u00e9
"""
NO_RANGE = """
    latest 1..2 1.x.3 X.1 ==1 !=1 >>1 ^^1 >=>1 1.2.3.4 01.2.3 ~1.2.3beta 1-2 >=1.2.3,<2.0.0 1.2|1.3
    9007199254740992.0.0 \u0663
"""


def test_a_range_takes_what_npm_says() -> None:
    # abi.md 9.11
    for text, (taken, refused) in RANGES.items():
        range_ = semver.parse_range(text)
        assert [one for one in taken.split() if not semver.satisfies(semver.parse(one), range_)] == [], text
        assert [one for one in refused.split() if semver.satisfies(semver.parse(one), range_)] == [], text


def test_versions_sort_as_semver_says() -> None:
    # semver 11: numbers before words, a prerelease before its release
    order = ORDER.split()
    assert sorted(reversed(order), key=lambda text: semver.parse(text).key) == order
    assert semver.parse("1.2.3+a").key == semver.parse("1.2.3+b").key


def test_a_version_is_written_as_it_was_read() -> None:
    for text in (*ORDER.split(), "1.2.3-beta.1+build.7"):
        assert str(semver.parse(text)) == text


@each_of(("parse", "texts"), [(semver.parse, NO_VERSION), (semver.parse_range, NO_RANGE)])
def test_what_is_no_version_or_range_is_refused(parse: object, texts: str) -> None:
    # abi.md 9.3
    assert callable(parse)
    for text in (*texts.split(), "1.2.3 - ", "1 - 2 - 3", "1" * 300):
        with pytest.raises(Fault, match=r"version|range|part|number"):
            parse(text)


def test_no_range_costs_more_than_its_length() -> None:
    # at most 256 characters, and no pattern that backtracks: if that changes, these texts take for ever
    for text in ("1.2.3" + " " * 245 + "y", "1.2.3-" + "a." * 120 + "!", "1 - " * 60, ">" * 250, "^1 " * 90):
        with pytest.raises(Fault) as raised:
            semver.parse_range(text)
        assert len(raised.value.message) < 500
