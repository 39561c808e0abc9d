"""`ctx web`: the tree in a browser, served by a process of its user's.

Rules: arguments are public, other users read the journal, and the link lets in the first visitor. So the
browser and the journal get the path of a file of the user's alone, which leads to the link and goes when the
page ends.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial

from cortexfs.cli import mounts, objects, output
from cortexfs.cli.parser import Command, arg, flag
from cortexfs.core.errors import Fault
from cortexfs.state import directories

SIGNALLED = 128
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # if one of these is set, a browser can be shown
_WAY = """<!doctype html><meta charset="utf-8"><title>CortexFS</title>
<meta http-equiv="refresh" content="0;url={link}"><a href="{link}">CortexFS</a>
"""


def run(options: argparse.Namespace) -> int:
    import trio  # a slow import that only the page needs

    from cortexfs.web.children import WebPlace
    from cortexfs.web.serving import Page, serve

    page = Page(options.bind, options.port, options.cert, options.key)
    page.check()
    root = mounts.answering(options.root)
    program = (sys.executable, "-P", "-m", "cortexfs.cli.main")
    place = WebPlace(root, program, partial(_objects, root))
    with contextlib.ExitStack() as ending:

        def announce(link: str) -> None:
            is_logged = _goes_to_journal()
            if not is_logged:
                print(link, flush=True)
            opens = not options.no_browser and any(map(os.environ.get, SCREENS))
            if not (opens or is_logged):
                return
            try:
                way = ending.enter_context(_way(link))
            except Fault as fault:
                return output.say(fault.message)  # a printed link still works
            if is_logged:
                print(f"the link is in {way}, for its user alone", flush=True)
            if opens:
                import webbrowser  # needed only to open a browser

                threading.Thread(target=webbrowser.open, args=(f"file://{way}",), daemon=True).start()

        number = trio.run(serve, page, place, announce)
    return SIGNALLED + number


def _objects(root: str) -> list[dict[str, str]]:
    return [row._asdict() for row in objects.rows(root, objects.paths(mounts.answering(root)))]


def _goes_to_journal() -> bool:
    """Returns True if systemd keeps the output (systemd.exec(5), JOURNAL_STREAM)."""
    status = os.fstat(sys.stdout.fileno())
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


@contextlib.contextmanager
def _way(link: str) -> Iterator[str]:
    """Yields the path of a file that leads to the link, and that only its user can read."""
    folder = directories.cache(os.environ, os.getuid())
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, path = tempfile.mkstemp(prefix="web-", suffix=".html", dir=folder)  # of mode 0600
    except OSError as problem:
        raise Fault(
            "EIO", f"{folder} cannot be written, so no file has the link: {problem.strerror}"
        ) from None
    try:
        with open(descriptor, "w") as file:
            file.write(_WAY.format(link=html.escape(link)))
        yield path
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port")
    return int(text)


COMMANDS = {
    "web": Command(
        run,
        (
            arg("--port", "N", "the port to listen at (default: a free port)", type=_port, default=0),
            arg("--bind", "ADDR", "its address; other machines need --cert and --key", default="127.0.0.1"),
            arg("--cert", "FILE", "a certificate for that address, with its chain"),
            arg("--key", "FILE", "its private key"),
            flag("--no-browser", "only print the link"),
        ),
        ("ctx web", "ctx web --no-browser --port 8800     # and elsewhere: ssh -L 8800:127.0.0.1:8800 HOST"),
    )
}
