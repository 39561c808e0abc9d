"""The keys of providers, and the secrets of MCP servers: files of state/secrets, 0600, written once and
never shown again.

Rules: a key is one word of visible ASCII, and a server's secret is one line. Other text could not stand in a
header, and the header's error would show it. A file that other users may read is not used.
No function here prints or logs a key.
This file must never know where a key is sent to.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from cortexfs.core import names
from cortexfs.core.errors import Fault, os_faults
from cortexfs.core.starter_command import needed
from cortexfs.models.providers.provider import KeySource
from cortexfs.state import believed, no_links, whole_files

FOLDER = "secrets"
MAX_KEY = 8192  # characters: some keys are tokens with claims
MAX_WORDS = 65536  # characters of a server's secret: a login has several words
COMMAND_SECONDS = 30.0  # a password manager may ask its user to confirm


# Runs the command that a provider names for its key. Returns its output and its status.
Run: TypeAlias = Callable[[str, tuple[str, ...]], Awaitable[tuple[bytes, int]]]


async def printed(provider: str, command: tuple[str, ...]) -> tuple[bytes, int]:
    """Returns the output and status of the command."""
    import trio  # imported here, as most commands that only name a key do not need it

    result = await trio.run_process(
        command,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        stdin=b"",
        env=needed(os.environ),
    )
    return result.stdout, result.returncode


class Secrets:
    """The folder of secrets in one state directory."""

    def __init__(self, state: Path, run: Run = printed) -> None:
        """`run` runs the command that a provider names for its key."""
        self._state, self._folder = state, state / FOLDER
        self.run = run

    def set(self, name: str, data: bytes, *, words: bool = False) -> None:
        """Write a key durably. A reader sees the old key or the new key, never a part."""
        key = checked(data, "the key", words=words)
        with no_links.folder(self._state, FOLDER, 0o700) as folder:
            believed.set_mode(folder, 0o700)
            whole_files.replace(folder / names.check(name), [key.encode(), b"\n"], 0o600, exact=True)

    def get(self, name: str, *, words: bool = False) -> str:
        """Returns the key, or "" if there is none. Raises EACCES if other users could read the file."""
        path = self._folder / names.check(name)
        mend = f"put another one there with: ctx provider secret set {name}"
        with os_faults(f"the key of {name} cannot be read"):
            try:
                most = (MAX_WORDS if words else MAX_KEY) + 1
                data = believed.secret(path, most, f"the key of {name} was", mend)
            except FileNotFoundError:
                return ""
        return checked(data, f"the key of {name}", words=words)

    def names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self._folder) if not name.startswith("."))
        return []

    def has(self, name: str) -> bool:
        return (self._folder / names.check(name)).exists()

    def remove(self, name: str) -> None:
        with no_links.folder(self._state, FOLDER, 0o700) as folder:
            (folder / names.check(name)).unlink(missing_ok=True)


def checked(data: bytes, title: str, *, words: bool = False) -> str:
    """Returns a key as text, of one word or, with `words`, of several. An EINVAL never shows a bad key."""
    text = data.decode("latin-1").strip("\r\n \t")
    if not text:
        raise Fault("EINVAL", f"{title} is empty")
    if len(text) > (most := MAX_WORDS if words else MAX_KEY):
        raise Fault("EINVAL", f"{title} is longer than {most} characters")
    if not text.isascii() or not text.isprintable() or (" " in text and not words):
        raise Fault("EINVAL", f"{title} is not one {'line' if words else 'word'} of visible ASCII characters")
    return text


def from_environment(provider: str, name: str) -> str:
    if not (value := os.environ.get(name)):
        why = f"the key of {provider} comes from the variable {name}, which is not set here"
        raise Fault("EACCES", f"{why}; set it, and mount again")
    return checked(os.fsencode(value), f"the variable {name}")


async def _from_command(provider: str, command: tuple[str, ...], run: Run) -> str:
    """Returns the first line of the command's output. Its standard error is dropped."""
    import trio  # as above

    title = f"the command for the key of {provider} ({command[0]})"
    try:
        with trio.fail_after(COMMAND_SECONDS):
            output, status = await run(provider, command)
    except (trio.TooSlowError, TimeoutError):
        raise Fault("EACCES", f"{title} took over {COMMAND_SECONDS:g} s") from None
    except OSError as problem:
        raise Fault("EACCES", f"{title} cannot be run: {problem.strerror}") from None
    if status:
        raise Fault("EACCES", f"{title} failed with status {status}")
    return checked(output.partition(b"\n")[0], f"the output of {command[0]}")


async def key_of(provider: str, reference: KeySource | None, secrets: Secrets) -> str:
    """Returns the key of a provider, or "" if it has none."""
    if reference and reference.env:
        return from_environment(provider, reference.env)
    if reference and reference.command:
        return await _from_command(provider, reference.command, secrets.run)
    return secrets.get(provider)
