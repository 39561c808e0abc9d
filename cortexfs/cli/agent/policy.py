"""`ctx policy`: why a call would be allowed or not, what is wrong, and how to undo what was written.

Rules: nothing is run, and `reset` alone changes something. The code that decides about calls makes the
answers (core/policy/decision.py), from what the tree's files say now.
"""

from __future__ import annotations

import argparse
import os
from typing import get_args

from msgspec.structs import replace

from cortexfs.cli import mounts, objects, output, parser
from cortexfs.cli.agent import policy_facts
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, Fault, code_of, exit_status
from cortexfs.core.policy import lint
from cortexfs.core.policy.decision import Decision, PolicyQuery, decide
from cortexfs.core.policy.risk_settings import Mode
from cortexfs.core.policy.rules import TO_RUN
from cortexfs.core.tree import controls


def declare(into: parser.CommandParser) -> None:
    verbs = into.add_subparsers(metavar="VERB", required=True, dest="verb")
    for verb, (summary, declares, _, examples) in VERBS.items():
        one = verbs.add_parser(verb, help=summary, description=f"{summary[:1].upper()}{summary[1:]}.")
        one.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.root_option(one)
        one.add_argument("--config", metavar="DIR", help="where policy.toml is (default: CTX_CONFIG)")
        declares(one)
        parser.json_option(one)
        parser.examples(one, *examples)
    parser.examples(into, *(some[0] for _, _, _, some in VERBS.values()))


def run(options: argparse.Namespace) -> int:
    status: int = VERBS[options.verb][2](options)
    return status


def _declare_explain(into: argparse.ArgumentParser) -> None:
    into.add_argument("caller", metavar="CALLER", help="a user, a uid, or agent/NAME")
    into.add_argument("wanted", metavar="OBJECT", help="a tool, model or agent, as for: ctx run")
    into.add_argument("--user", metavar="USER", help="for whom the agent works (default: you)")
    into.add_argument("--mode", choices=get_args(Mode), help="as if policy.toml had this mode")
    into.add_argument("--dry-run", action="store_true", help="of a dry run of the tool")


def _explain(options: argparse.Namespace) -> int:
    root = mounts.root(options.root)
    mounts.status_text(root)
    thing = policy_facts.thing(root, options.wanted)
    settings = policy_facts.settings(root, options.config)
    if options.mode:
        settings = replace(settings, mode=options.mode, auto_approve_up_to=None)
    caller = policy_facts.caller(root, options.caller, options.user)
    question = PolicyQuery(
        caller,
        replace(thing, is_its_model=policy_facts.is_its_model(root, caller, thing)),
        TO_RUN[thing.class_],
        serves=policy_facts.serves(root),
        settings=settings,
        dry_run=options.dry_run,
    )
    decision = decide(question)
    _show(question, decision, options.json)
    return EXIT_OK if decision.allowed else exit_status("EACCES")


def _show(question: PolicyQuery, decision: Decision, as_json: bool) -> None:
    if as_json:
        asked = {
            "caller": question.caller.name,
            "object": f"{question.thing.class_}/{question.thing.name}",
            "permission": question.permission,
        }
        said = decision._asdict() | {"steps": [step._asdict() for step in decision.steps]}
        return output.emit(asked | said)
    print(output.printable(decision.reason))
    print(output.printable(f"rule: {decision.rule}"))
    print()
    cells = ((step.layer, step.result, step.rule or "-", step.why) for step in decision.steps)
    output.table(("layer", "result", "rule", "why"), cells)


def _declare_reset(into: argparse.ArgumentParser) -> None:
    into.add_argument("objects", metavar="OBJECT", nargs="+", help="a tool, model or agent, as for: ctx run")


def _reset(options: argparse.Namespace) -> int:
    root = mounts.root(options.root)
    for word in options.objects:
        below = policy_facts.real(root, objects.resolve(root, word)).below
        try:
            with open(os.path.join(root, f"{below}.d/policy"), "wb") as file:
                file.write(controls.RESET)
        except OSError as error:
            raise Fault(code_of(error.errno), f"{below}.d/policy: {error.strerror}") from None
    return EXIT_OK


def _declare_lint(into: argparse.ArgumentParser) -> None:
    """It takes no argument of its own."""


def _lint(options: argparse.Namespace) -> int:
    root = mounts.root(options.root)
    status = mounts.status_text(root)
    found = lint.lint(policy_facts.world(root, options.config, status))
    if options.json:
        fields = ("level", "code", "subject", "why", "mend")
        output.emit([{name: getattr(one, name) for name in fields} for one in found])
    else:
        cells = (
            (one.level, one.code, one.subject, f"{one.why}{f'; {one.mend}' if one.mend else ''}")
            for one in found
        )
        output.table(("level", "code", "subject", "why"), cells)
    return EXIT_OK if lint.passed(found) else EXIT_FAILED


VERBS = {
    "explain": (
        "say whether a caller may run an object, why, and by which rule",
        _declare_explain,
        _explain,
        (
            "ctx policy explain agent/base tool/shell.exec",
            "ctx policy explain alice model/main",
            "ctx policy explain agent/base fs.write --mode strict --json | jq -r .rule",
        ),
    ),
    "reset": (
        "undo what was written to policies, so that their defaults count",
        _declare_reset,
        _reset,
        ("ctx policy reset tool/fs.read", "ctx policy reset agent/base agent/coder"),
    ),
    "lint": (
        "look for what is wrong in policy files, labels and policy.toml",
        _declare_lint,
        _lint,
        ("ctx policy lint", "ctx policy lint --json | jq '.[] | select(.level == \"error\")'"),
    ),
}
