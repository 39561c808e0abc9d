"""The rights that each version of Landlock can refuse, by its number (landlock(7), "ABI versions")."""

from __future__ import annotations

from cortexfs.linux import landlock
from tests.tables import each_of

SINCE = {1: (0x1FFF, 0, 0), 2: (0x3FFF, 0, 0), 3: (0x7FFF, 0, 0), 4: (0x7FFF, 3, 0), 5: (0xFFFF, 3, 0)}
SINCE |= dict.fromkeys(range(6, 11), (0xFFFF, 3, 3))  # 9 brings sockets with a path, which nobody has


@each_of("abi", SINCE)
def test_what_each_version_of_landlock_can_refuse(abi: int) -> None:
    assert landlock.handled(abi) == SINCE[abi]


def test_letters_give_all_there_is_and_each_right_once() -> None:
    given = [landlock.rights(letter) for letter in "rwx"]
    assert sum(given) == landlock.rights("rwx") == landlock.handled(99)[0]
    assert landlock.rights("") == 0
