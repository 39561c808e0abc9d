"""`ctx policy`: why a call would be allowed or denied, what is wrong, and how to undo changes of policies.

Rules: nothing is run, and only `reset` changes something. The code that decides about calls gives the answers
(core/policy/decision.py), from the present text of the tree's files.
"""

from __future__ import annotations

import argparse
import os
from typing import get_args

from msgspec.structs import replace

from cortexfs.cli import mounts, objects, output
from cortexfs.cli.agent import policy_facts, servers
from cortexfs.cli.parser import JSON, ROOT, Command, arg, flag
from cortexfs.core.errors import EXIT_FAILED, EXIT_OK, exit_status, os_faults
from cortexfs.core.policy import lint
from cortexfs.core.policy.decision import Decision, PolicyQuery, decide
from cortexfs.core.policy.risk import Mode
from cortexfs.core.policy.rules import TO_RUN
from cortexfs.core.safe_text import within
from cortexfs.core.tree import controls


def _explain(options: argparse.Namespace) -> int:
    root = mounts.answering(options.root)
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
    beyond = servers.layers(root, question, options.config)
    decision = decision._replace(steps=(*decision.steps, *beyond))
    _show(question, decision, options.json)
    return EXIT_OK if decision.allowed else exit_status("EACCES")


def _show(question: PolicyQuery, decision: Decision, as_json: bool) -> None:
    if as_json:
        request = {
            "caller": question.caller.name,
            "object": f"{question.thing.class_}/{question.thing.name}",
            "permission": question.permission,
        }
        answer = decision._asdict() | {"steps": [step._asdict() for step in decision.steps]}
        return output.emit(request | answer)
    print(within(decision.reason))
    print(within(f"rule: {decision.rule}"))
    print()
    cells = ((step.layer, step.result, step.rule or "-", step.why) for step in decision.steps)
    output.table(("layer", "result", "rule", "why"), cells)


def _reset(options: argparse.Namespace) -> None:
    root = mounts.answering(options.root)
    for word in options.objects:
        below = policy_facts.real(root, objects.resolve(root, word)).below
        with os_faults(f"{below}.d/policy"), open(os.path.join(root, f"{below}.d/policy"), "wb") as file:
            file.write(controls.RESET)


def _lint(options: argparse.Namespace) -> int:
    root = mounts.root(options.root)
    status = mounts.status_text(root)
    found = lint.lint(policy_facts.world(root, options.config, status))
    fields = ("level", "code", "subject", "why", "mend")
    values = [{name: getattr(finding, name) for name in fields} for finding in found]
    cells = (
        (
            finding.level,
            finding.code,
            finding.subject,
            f"{finding.why}{f'; {finding.mend}' if finding.mend else ''}",
        )
        for finding in found
    )
    output.print_rows(options.json, values, fields[:-1], cells)
    return EXIT_OK if lint.passed(found) else EXIT_FAILED


_OPTIONS = (ROOT, arg("--config", "DIR", "where policy.toml is (default: CTX_CONFIG)"), JSON)
_OBJECT = "a tool, model or agent, as for: ctx run"
VERBS = {
    "explain": Command(
        _explain,
        (
            *_OPTIONS,
            arg("caller", "CALLER", "a user, a uid, or agent/NAME"),
            arg("wanted", "OBJECT", _OBJECT),
            arg("--user", "USER", "for whom the agent works (default: you)"),
            arg("--mode", None, "as if policy.toml had this mode", choices=get_args(Mode)),
            flag("--dry-run", "explain a dry run of the tool"),
        ),
        (
            "ctx policy explain agent/base tool/shell.exec",
            "ctx policy explain alice model/main",
            "ctx policy explain agent/base fs.write --mode strict --json | jq -r .rule",
        ),
        "say whether a caller may run an object, why, and by which rule",
    ),
    "reset": Command(
        _reset,
        (*_OPTIONS, arg("objects", "OBJECT", _OBJECT, nargs="+")),
        ("ctx policy reset tool/fs.read", "ctx policy reset agent/base agent/coder"),
        "undo what was written to policies, so that their defaults count",
    ),
    "lint": Command(
        _lint,
        _OPTIONS,
        ("ctx policy lint", "ctx policy lint --json | jq '.[] | select(.level == \"error\")'"),
        "look for what is wrong in policy files, labels and policy.toml",
    ),
}
COMMANDS = {"policy": Command(verbs=VERBS)}
