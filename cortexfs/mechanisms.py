"""What the running kernel has to hold a plugin to what its manifest claims (core/governance.py).

Rules: what is here is applied by hosts, or by the programs that they start; a claim that needs anything else
is refused.
"""

from __future__ import annotations

from cortexfs.core.governance import Mechanism


def available() -> frozenset[Mechanism]:
    return frozenset((Mechanism.PROCESS, Mechanism.RLIMITS))
