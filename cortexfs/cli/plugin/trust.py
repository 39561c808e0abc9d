"""`ctx plugin trust`: whose plugins may be installed and loaded."""

from __future__ import annotations

import argparse

import msgspec

from cortexfs.cli import output, reload
from cortexfs.cli.daemons import places_of
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.plugins.trust.trust import TrustStore


def trust(options: argparse.Namespace) -> int:
    store = TrustStore(places_of(options).state)
    if options.action == "remove":
        if not options.publisher:
            raise Fault("EINVAL", "name the publisher; see: ctx plugin trust list")
        count = store.remove(options.publisher, options.fingerprint)
        said = reload.told(options.root)
        output.say(f"{options.publisher} is no longer trusted ({count} keys); {said}")
        return EXIT_OK
    known = store.read()
    if options.json:
        output.emit(msgspec.to_builtins(known))
    else:
        rows = [(one.publisher_id, one.fingerprint_sha256, one.trusted_at) for one in known]
        output.table(("publisher", "key", "trusted since"), rows)
    return EXIT_OK
