"""The frames of an agent of another machine, which may have another version."""

from __future__ import annotations

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.frames import Delta
from cortexfs.run import remote_agent


def test_a_type_that_is_not_known_is_ignored() -> None:
    # abi.md 6.4
    said = remote_agent._Said()
    lines: list[bytes | None] = [b'{"type":"later","x":1}', b'{"type":"delta","run":"r","text":"a","x":1}']
    assert said.frames(lines) == [Delta(text="a")]
    with pytest.raises(Fault, match="EPROTO: the agent's machine has sent an invalid frame"):
        said.frames([b'{"type":"delta"}'])
