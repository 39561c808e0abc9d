"""A real browser for tests of the page: Debian's Chromium in its sandbox, as a user without rights."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.mounted.ctx_mount import NOBODY, Ctx
from tests.places import PROJECT
from tests.waiting import PATIENCE

PLAYWRIGHT = PROJECT / "build/web"
CHROMIUM = "/usr/bin/chromium"
Tab: TypeAlias = Any  # playwright.sync_api.Page, which is installed for these tests alone
WRAPPER = """#!/bin/sh
exec {as_user} env HOME={home} {chromium} "$@" --user-data-dir={home}
"""


class WebProcess:
    """A running `ctx web`, and the link that it printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout
        self.link = process.stdout.readline().strip()
        self.url, _, self.ticket = self.link.partition("#ticket=")
        assert self.ticket, process.stderr and process.stderr.read()
        self.port = int(self.url.rstrip("/").rpartition(":")[2])


@contextlib.contextmanager
def web(
    ctx: Ctx, *words: str, uid: int | None = None, env: dict[str, str] | None = None
) -> Iterator[WebProcess]:
    """Serve the page of this mount for that user."""
    options: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []} if uid is not None else {}
    process = subprocess.Popen(
        [str(ctx.python), "-I", "-m", "cortexfs.cli.main", "web", *(words or ("--no-browser",))],
        env=ctx.environ | (env or {}),
        cwd=ctx.work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        yield WebProcess(process)
    finally:
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE)
    assert said == "", said


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """Start a browser. Each `new_context()` stands for a person with an own profile."""
    if not PLAYWRIGHT.exists() or not shutil.which(CHROMIUM):
        pytest.skip("Playwright or Chromium is missing; make test-web installs them")
    if str(PLAYWRIGHT) not in sys.path:
        sys.path.append(str(PLAYWRIGHT))
    home = Path(tempfile.mkdtemp(prefix="ctx-browser-"))
    wrapper = home.with_suffix(".sh")
    as_user = ""
    if os.geteuid() == 0:
        os.chown(home, NOBODY, NOBODY)
        as_user = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --inh-caps=-all"
    wrapper.write_text(WRAPPER.format(as_user=as_user, home=home, chromium=CHROMIUM))
    wrapper.chmod(0o755)
    try:
        with importlib.import_module("playwright.sync_api").sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=str(wrapper), chromium_sandbox=has_sandbox())
            try:
                yield browser
            finally:
                browser.close()
    finally:
        wrapper.unlink()
        shutil.rmtree(home, ignore_errors=True)


def has_sandbox() -> bool:
    """Returns True if Chromium's sandbox works here, which needs user namespaces."""
    options: dict[str, Any] = {"user": NOBODY, "group": NOBODY} if os.geteuid() == 0 else {}
    there = subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False, **options)
    if there.returncode:
        warnings.warn("no user namespaces here: Chromium runs without its sandbox", stacklevel=1)
    return not there.returncode


@contextlib.contextmanager
def person(browser: Any, link: str) -> Iterator[Tab]:
    """A tab of a person who has opened the link. No script of the page may fail in it."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE * 1000)
    try:
        yield opened(context, link)
    finally:
        context.close()


def opened(context: Any, link: str) -> Tab:
    tab = context.new_page()
    faults: list[str] = []
    tab.on("pageerror", lambda problem: faults.append(str(problem)))

    def hear(said: Any) -> None:
        if "Content Security Policy" in said.text:
            faults.append(said.text)

    tab.on("console", hear)
    tab.faults = faults
    tab.goto(link)
    return tab
