"""`ctx model new`: a model of one's own, made from one that a provider has.

    ctx model new openai/gpt-4o-coder --from openai/gpt-4o --set temperature=0.2

Rules: it is a table at the end of the provider's file, which stays as its owner wrote it: a real object
with an id and defaults of its own, as the seed wants it, not an alias that overrides.
"""

from __future__ import annotations

import argparse
import os

from cortexfs.cli import output, parser, reload
from cortexfs.core import names, value_formats
from cortexfs.core.errors import EXIT_OK, Fault
from cortexfs.models.ask.model import EFFORTS, parameters
from cortexfs.models.exchange.sources import every_offer
from cortexfs.models.providers.files import Providers
from cortexfs.models.providers.listing import resolved
from cortexfs.models.providers.provider import DeclaredModel
from cortexfs.state import directories


def declare(into: parser.CommandParser) -> None:
    verbs = into.add_subparsers(metavar="VERB", required=True, dest="verb")
    summary = "make a model with defaults of its own"
    one = verbs.add_parser("new", help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
    one.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.root_option(one)
    parser.places_options(one)
    one.add_argument("name", metavar="NEW", help="provider/model, as the tree is to have it")
    one.add_argument("--from", dest="origin", metavar="MODEL", required=True, help="the model that it is")
    one.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a default parameter")
    one.add_argument("--effort", choices=("auto", *EFFORTS), help="how long it thinks")
    one.add_argument("--description", default="", help="a sentence for listings")
    lines = (
        "ctx model new openai/gpt-4o-coder --from openai/gpt-4o --set temperature=0.2",
        "ctx model new openai/thinker --from openai/o4 --effort high",
    )
    parser.examples(one, *lines)
    parser.examples(into, lines[0], "ln -s openai/gpt-4o-coder /ctx/model/coder")


def run(options: argparse.Namespace) -> int:
    where = directories.places(os.environ, os.getuid(), state=options.state, config=options.config)
    providers = Providers(where.config, where.state)
    names.check_object("model", options.name)
    offers = every_offer(providers)
    if any(offer.name == options.name for offer in offers):
        raise Fault("EEXIST", f"there is a model {options.name} already; choose another name")
    origin = resolved(offers, options.origin.removeprefix("model/"))
    value_formats.parameters("".join(f"{line}\n" for line in options.set))
    kept = origin.declared
    made = DeclaredModel(
        id=kept.id,
        name=options.name,
        description=options.description or kept.description,
        cap=kept.cap,
        limit=kept.limit,
        default=kept.default | parameters("\n".join(options.set)),
        effort=options.effort or kept.effort,
        fallback=kept.fallback,
    )
    providers.declare(origin.provider, made)
    said = reload.told(options.root, reload.broken("provider", origin.provider, "cannot be used"))
    output.say(f"made model/{options.name} in {providers.path(origin.provider)}; {said}")
    return EXIT_OK
