"""`ctx model new`: a model of one's own, made from one that a provider has.

    ctx model new openai/gpt-4o-coder --from openai/gpt-4o --set temperature=0.2

Rules: it is a table at the end of the provider's file, which stays as its owner wrote it: a real object
with an id and defaults of its own, as the seed wants it, not an alias that overrides.
"""

from __future__ import annotations

import argparse
import os

import msgspec

from cortexfs.cli import output, reload
from cortexfs.cli.parser import MOUNTED, Command, arg
from cortexfs.core import names, value_formats
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.models.ask.model import EFFORTS, parameters
from cortexfs.models.exchange.sources import every_offer
from cortexfs.models.providers.files import Providers
from cortexfs.models.providers.listing import resolved
from cortexfs.state import directories


def _new(options: argparse.Namespace) -> int:
    where = directories.places(os.environ, os.getuid(), state=options.state, config=options.config)
    providers = Providers(where.config, where.state)
    names.check_object("model", options.name)
    offers = every_offer(providers)
    if any(offer.name == options.name for offer in offers):
        raise Fault("EEXIST", f"there is a model {options.name} already; choose another name")
    origin = resolved(offers, options.origin.removeprefix("model/"))
    value_formats.parameters("".join(f"{line}\n" for line in options.set))
    kept = origin.declared
    made = msgspec.structs.replace(
        kept,
        name=options.name,
        description=options.description or kept.description,
        default=kept.default | parameters("\n".join(options.set)),
        effort=options.effort or kept.effort,
    )
    providers.declare(origin.provider, made)
    said = reload.told(options.root, reload.broken("provider", origin.provider, "cannot be used"))
    output.say(f"made model/{options.name} in {providers.path(origin.provider)}; {said}")
    return EXIT_OK


NEW = Command(
    _new,
    (
        *MOUNTED,
        arg("name", "NEW", "provider/model, as the tree is to have it"),
        arg("--from", "MODEL", "the model that it is", dest="origin", required=True),
        arg("--set", "KEY=VALUE", "a default parameter", action="append", default=[]),
        arg("--effort", None, "how long it thinks", choices=("auto", *EFFORTS)),
        arg("--description", None, "a sentence for listings", default=""),
    ),
    (
        "ctx model new openai/gpt-4o-coder --from openai/gpt-4o --set temperature=0.2",
        "ctx model new openai/thinker --from openai/o4 --effort high",
    ),
    "make a model with defaults of its own",
)
COMMANDS = {
    "model": Command(
        verbs={"new": NEW}, examples=(NEW.examples[0], "ln -s openai/gpt-4o-coder /ctx/model/coder")
    )
}
