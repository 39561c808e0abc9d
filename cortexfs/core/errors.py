"""The one table from error codes to errno and exit status.

Rules: a code is a stable errno name, for frames, exit status and FUSE alike (abi.md 4.23, 6.3).
A `Fault` says whose fault it was and what to do, in one sentence. It is raised where the fault is
found, and translated once, by the code that answers the caller.
This file must never know what a frame, a file or a socket is.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import TypeVar

AnyError = TypeVar("AnyError", bound=BaseException)

EXIT_OK = 0
EXIT_FAILED = 1

# A code that is not in this table exits 1 (abi.md 4.23).
EXIT_STATUS = {
    "EINVAL": 2,
    "EMSGSIZE": 2,
    "EACCES": 13,
    "EPERM": 13,
    "EHOSTDOWN": 69,
    "EPROTO": 70,
    "ECANCELED": 130,
}


class Fault(Exception):
    """A failure with a stable code and a sentence for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    @property
    def errno(self) -> int:
        return errno_of(self.code)


def bare(error: AnyError) -> AnyError:
    """Returns `error` without its traceback, context and cause, so that it can be kept or reported later.

    The frames of a traceback hold all their variables, such as a prompt of some MiB. They often lead back
    to the object that keeps the error."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def timed_out(tool: str, seconds: float) -> str:
    """Returns the sentence of ETIMEDOUT for a call. All code that notices the end of its time uses it."""
    return f"the tool {tool} did not end within {seconds:g} s"


def is_code(name: object) -> bool:  # a tool may call anything a code
    """Returns True if `name` is an errno name that a frame may carry."""
    return isinstance(name, str) and name.startswith("E") and isinstance(getattr(errno, name, None), int)


def errno_of(code: str) -> int:
    number: int = getattr(errno, code, errno.EIO)
    return number


def code_of(number: object) -> str:
    """Returns the code of an errno number, and EIO for a number without a name."""
    return errno.errorcode.get(number, "EIO") if isinstance(number, int) else "EIO"


def exit_status(code: str) -> int:
    return EXIT_STATUS.get(code, EXIT_FAILED)


@contextlib.contextmanager
def naming(subject: str) -> Iterator[None]:
    """Begins the sentences of Faults with their subject, such as the path of a file."""
    try:
        yield
    except Fault as fault:
        raise Fault(fault.code, f"{subject}: {fault.message}") from None


@contextlib.contextmanager
def os_faults(text: str) -> Iterator[None]:
    """Raises a Fault for an OSError: `text`, as in "the file cannot be read", and the system's message."""
    try:
        yield
    except OSError as problem:
        raise Fault(code_of(problem.errno), f"{text}: {problem.strerror}") from None
