"""The built-in tools. They use the public SDK alone, which shows that the SDK suffices.

Rules: a tool imports the SDK, the standard library and (fs.search) pathspec, all at the start: later the
process may be in a caller's container, which has none of them. The host calls `before_leaving` so that the
program of fs.search is at hand there. A tool runs as the caller, in one of several threads: it never changes
the process (chdir, umask, signals, os.environ), and takes the environment from the runtime.
"""

from __future__ import annotations

from cortexfs.sdk import Tool
from cortexfs.tools.agent_run import run
from cortexfs.tools.fs_glob import glob
from cortexfs.tools.fs_list import list_, stat_
from cortexfs.tools.fs_read import read
from cortexfs.tools.fs_replace import replace
from cortexfs.tools.fs_search import search
from cortexfs.tools.fs_write import write
from cortexfs.tools.shell_exec import exec_
from cortexfs.tools.support.ripgrep import hold
from cortexfs.tools.text import word_count

plugin: list[Tool] = [read, list_, stat_, glob, search, write, replace, exec_, word_count, run]
before_leaving = hold
