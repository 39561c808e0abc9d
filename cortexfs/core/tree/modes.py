"""The types and permissions of the files in the tree, as st_mode of stat(2)."""

from __future__ import annotations

import stat

READ_ONLY = stat.S_IFREG | 0o444
LOG = stat.S_IFREG | 0o600
WRITABLE = stat.S_IFREG | 0o644
PROGRAM = stat.S_IFREG | 0o555
SOCKET = stat.S_IFSOCK | 0o666
OWN_SOCKET = stat.S_IFSOCK | 0o600
LINK = stat.S_IFLNK | 0o777
DIRECTORY = stat.S_IFDIR | 0o755
PRIVATE = stat.S_IFDIR | 0o700
