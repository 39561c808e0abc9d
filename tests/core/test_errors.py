"""abi.md 4.23, 4.24, 4.25, 4.26: the exit status; abi.md 6.3: the code."""

from __future__ import annotations

import errno

import pytest

from cortexfs.core import errors
from tests.tables import each_of


@each_of(
    ("code", "status"),
    [
        ("ENOENT", 1),
        ("EIO", 1),
        ("ETIMEDOUT", 1),
        ("EREMOTEIO", 1),
        ("EAGAIN", 1),
        ("EINVAL", 2),
        ("EMSGSIZE", 2),
        ("EACCES", 13),
        ("EPERM", 13),
        ("EHOSTDOWN", 69),
        ("EPROTO", 70),
        ("ECANCELED", 130),
    ],
)
def test_exit_status(code: str, status: int) -> None:
    assert errors.exit_status(code) == status


def test_codes_are_errno_names() -> None:
    for code in errors.EXIT_STATUS:
        assert errors.is_code(code)
        assert errors.errno_of(code) == getattr(errno, code)
    for name in ("", "E", "errorcode", "ENOSUCHTHING", "eio", "__doc__"):
        assert not errors.is_code(name)
    assert errors.errno_of("ENOSUCHTHING") == errno.EIO


def test_numbers_have_codes() -> None:
    assert errors.code_of(errno.ENOSPC) == "ENOSPC"
    assert errors.code_of(None) == "EIO"
    assert errors.code_of(99999) == "EIO"


def test_a_fault_says_code_and_sentence() -> None:
    fault = errors.Fault("EACCES", "this is not yours")
    assert str(fault) == "EACCES: this is not yours"
    assert fault.errno == errno.EACCES


def test_what_the_system_refuses_is_a_fault_with_its_words() -> None:
    said = r"^ENOSPC: it cannot be written: No space left on device$"
    with pytest.raises(errors.Fault, match=said), errors.os_faults("it cannot be written"):
        raise OSError(errno.ENOSPC, "No space left on device", "/.draft")
    with pytest.raises(ValueError, match="x"), errors.os_faults("nothing else"):
        raise ValueError("x")
