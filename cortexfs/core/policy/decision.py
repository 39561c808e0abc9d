"""The decision about a caller and an object: the layers of policy, asked in order, and their answers.

    daemon → mode bits → mount view → label → the object's policy → the caller's policy → effects → sandbox

Rules: the refusal of any layer refuses, the first refusal is the reason, and a query that no layer allows is
denied. People are judged by mode bits. Agents also need a line of their own policy, and one of the object's
policy unless that is empty. Every layer returns why and by which rule, so that a decision can be explained.
This file must never know where the facts come from: they come in, a Decision goes out.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from cortexfs.core import value_formats
from cortexfs.core.names import CLASSES
from cortexfs.core.policy import rules as policy
from cortexfs.core.policy.confirming import CallerKind, CallForm, ConfirmVerdict, verdict
from cortexfs.core.policy.risk import CALM, DEFAULT, FILE, Circumstances, RatedTool, RiskSettings
from cortexfs.core.policy.rules import Rule

READ, WRITE, EXECUTE = 4, 2, 1
ALLOW, PASS, DENY = "allow", "pass", "deny"


class Bits(NamedTuple):
    """Owner and mode of a path, and the permission that is needed on it."""

    path: str
    uid: int
    gid: int
    mode: int
    need: int = EXECUTE


class PolicyCaller(msgspec.Struct, frozen=True):
    """The caller. An agent has the uid and the groups of the person for whom it works."""

    name: str
    uid: int
    groups: frozenset[int] = frozenset()
    kind: CallerKind = CallerKind.PERSON
    label: str = ""  # the type of an agent's label
    rules: tuple[Rule, ...] = ()
    file: str = ""  # the agent's policy
    mounts: str = ""  # the agent's mount table; empty for the default view
    always_ask: bool = False
    can_ask: bool = True
    home: int | None = None  # the uid of the home that the agent is in; that user has chosen its label

    @property
    def policy_name(self) -> str:
        """Returns the agent's name in objects' policies. No label that a user writes equals one of agent/."""
        return policy.policy_name(self.label, self.home)


class Thing(msgspec.Struct, frozen=True):
    """The object that is asked for."""

    class_: str
    name: str
    bits: tuple[Bits, ...] = ()  # those of the folders on the way, and its own
    rules: tuple[Rule, ...] = ()  # the rules of its policy
    file: str = ""  # the name of its policy
    tool: RatedTool | None = None  # the tool, if effects count
    path: str = ""  # the path of its file, as mount tables name it
    is_its_model: bool = False  # the agent's own model, which it does not call
    alias: str = ""  # the alias in model/ by which the caller asked; only the daemon's owner makes those


class PolicyQuery(msgspec.Struct, frozen=True):
    caller: PolicyCaller
    thing: Thing
    permission: str
    serves: int | None = None  # the only user that the daemon serves; None: all users
    settings: RiskSettings = DEFAULT
    call: Circumstances = CALM
    dry_run: bool = False
    tried_dry: bool = False

    @property
    def object(self) -> str:
        return f"{self.thing.class_}:{self.thing.name}"

    @property
    def line_parts(self) -> tuple[str, str, str, str]:
        """Returns the parts of the line that would allow it in the caller's policy."""
        return (self.caller.label, self.thing.class_, self.thing.name, self.permission)

    @property
    def object_line_parts(self) -> tuple[str, str, str, str]:
        """Returns the parts of the line that would allow it in the object's policy."""
        return (self.caller.policy_name, *self.line_parts[1:])

    @property
    def line(self) -> str:
        return Rule(*self.line_parts).text


class LayerAnswer(NamedTuple):
    """The answer of one layer. The result `pass` neither allows nor denies."""

    layer: str
    result: str
    why: str
    rule: str = ""


class Decision(NamedTuple):
    allowed: bool
    reason: str  # a sentence
    rule: str  # file:line, or a phrase in its place
    confirm: bool
    dry_run_first: bool
    steps: tuple[LayerAnswer, ...]
    asked: str = ""  # the reason for asking the user first, in words for that user


def decide(question: PolicyQuery) -> Decision:
    judgment, is_agent = _effects_verdict(question), question.caller.kind is CallerKind.AGENT
    steps = tuple(
        LayerAnswer(layer, *answer)
        for layer, look in LAYERS.items()
        if (is_agent or layer not in _FOR_AGENTS) and (answer := look(question, judgment))
    )
    decisive = next((step for step in steps if step.result == DENY), None) or next(
        (step for step in reversed(steps) if step.result == ALLOW), NOBODY
    )
    allowed = decisive.result == ALLOW
    sentence = (
        f"{question.caller.name} {'may' if allowed else 'may not'} {question.permission} {question.object}"
    )
    confirm, first = (judgment.confirm, judgment.dry_run_first) if judgment and allowed else (False, False)
    after = f"; {judgment.why}" if judgment and (confirm or first) else ""
    cause = judgment.asked if judgment and confirm else ""
    return Decision(
        allowed, f"{sentence}: {decisive.why}{after}", decisive.rule, confirm, first, steps, cause
    )


NOBODY = LayerAnswer("default", DENY, "nothing allows it", "default deny")
LayerParts = tuple[str, str, str]  # result, why, rule


def _effects_verdict(question: PolicyQuery) -> ConfirmVerdict | None:
    """Returns the decision that follows from the effects of a tool."""
    caller, tool = question.caller, question.thing.tool
    if tool is None:
        return None
    form = CallForm(caller.kind, caller.always_ask, caller.can_ask, question.dry_run, question.tried_dry)
    return verdict(tool, form, question.settings, question.call)


def _daemon(question: PolicyQuery, _judgment: ConfirmVerdict | None) -> LayerParts:
    serves = question.serves
    if serves is None:
        return (PASS, "the daemon serves all users", "")
    if serves == question.caller.uid:
        return (PASS, "the daemon is this user's own", f"daemon of uid {serves}")
    return (DENY, "the daemon of a user serves only that user", f"daemon of uid {serves}")


def _mode_bits(question: PolicyQuery, _judgment: ConfirmVerdict | None) -> LayerParts:
    caller, bits = question.caller, question.thing.bits
    for each in bits:
        if not permits(each, caller.uid, caller.groups):
            verb = {READ: "read", WRITE: "write", EXECUTE: "execute"}[each.need]
            return (DENY, f"Unix permissions do not let uid {caller.uid} {verb} {each.path}", _mode(each))
    # For an agent mode bits are not enough: its policy must allow it too.
    result = PASS if caller.kind is CallerKind.AGENT else ALLOW
    rule = _mode(bits[-1]) if bits else "default for people"
    return (result, f"Unix permissions let uid {caller.uid} do so", rule)


def _mode(bits: Bits) -> str:
    return f"mode {bits.mode & 0o7777:04o} of {bits.path}, owner {bits.uid}:{bits.gid}"


def permits(bits: Bits, uid: int, groups: frozenset[int]) -> bool:
    """Returns True if the kernel would allow it (path_resolution(7)). Only the first class of bits that fits
    the user counts."""
    if uid == 0:
        return bits.need != EXECUTE or stat.S_ISDIR(bits.mode) or bool(bits.mode & 0o111)
    shift = 6 if uid == bits.uid else 3 if bits.gid in groups else 0
    return bits.mode >> shift & bits.need == bits.need


def _view(question: PolicyQuery, _judgment: ConfirmVerdict | None) -> LayerParts | None:
    caller, thing = question.caller, question.thing
    if thing.class_ not in CLASSES:
        return None
    if thing.is_its_model:
        return (PASS, "its own model needs no line in its mount table", "the agent's model")
    return mount_answer(caller.name, caller.mounts, thing.path)


def mount_answer(agent: str, mounts: str, path: str) -> LayerParts:
    """Returns the answer of an agent's mount table about running the object at `path`."""
    file = f"{agent}.d/mount"
    if not mounts:
        return (PASS, "the default view shows the whole mount", f"{file} is empty (default view)")
    found = value_formats.covering(mounts, path)
    if found is None:
        return (DENY, f"no line of its mount table shows {path}", f"{file} (no line)")
    number, line = found
    rule = f"{file}:{number}: {line.replace(value_formats.TAB, ' ')}"
    if "x" not in value_formats.rights(line):
        return (DENY, f"its mount table shows {path} with noexec", rule)
    return (PASS, f"its mount table shows {path}", rule)


def _label(question: PolicyQuery, _judgment: ConfirmVerdict | None) -> LayerParts:
    caller = question.caller
    if not caller.label:
        return (DENY, "it has no label, so no policy line can name it; write one to its .d/label", "no label")
    return (PASS, f"policy lines know it by its label {caller.label}", caller.label)


def _objects_policy(question: PolicyQuery, _judgment: ConfirmVerdict | None) -> LayerParts:
    thing = question.thing
    if not thing.rules:
        # Only the daemon's owner may write here. If lines were needed, no other user could set up an agent.
        return (PASS, "the object's policy has no lines, so the caller's policy decides", thing.file)
    if rule := policy.find(thing.rules, *question.object_line_parts):
        return (PASS, f"the object's policy says: {rule.text}", rule.where)
    line = Rule(*question.object_line_parts).text
    return (DENY, f"the object's policy has lines, but lacks: {line}", thing.file)


def _callers_policy(question: PolicyQuery, _judgment: ConfirmVerdict | None) -> LayerParts:
    caller = question.caller
    if rule := policy.find(caller.rules, *question.line_parts) or _by_alias(question):
        return (ALLOW, f"its policy says: {rule.text}", rule.where)
    file = f"{caller.file or 'no policy'} (default deny)"
    return (DENY, f"its policy lacks the line: {question.line}", file)


def _by_alias(question: PolicyQuery) -> Rule | None:
    """Returns the line that allows the model by the alias by which the caller asked for it."""
    label, class_, _, permission = question.line_parts
    if class_ != "model" or not question.thing.alias:
        return None
    return policy.find(question.caller.rules, label, class_, question.thing.alias, permission)


def _effects(question: PolicyQuery, judgment: ConfirmVerdict | None) -> LayerParts | None:
    if judgment is None:
        return None
    return (PASS if judgment.allowed else DENY, judgment.why, _effects_rule(question))


def _effects_rule(question: PolicyQuery) -> str:
    settings = question.settings
    if question.caller.kind is CallerKind.PERSON:
        return f"effects of {question.object}"
    limit = settings.auto_approve_up_to
    return f"{FILE}: " + (f"auto_approve_up_to = {limit}" if limit else f"mode = {settings.mode}")


def _sandbox(question: PolicyQuery, _judgment: ConfirmVerdict | None) -> LayerParts | None:
    if question.thing.class_ != "tool":
        return None
    return (PASS, "the agent's mount table decides which files it can open", "mount table")


# abi.md 7.1 has the order. The daemon, the view and the label have the places that they have in the original.
LAYERS: dict[str, Callable[[PolicyQuery, ConfirmVerdict | None], LayerParts | None]] = {
    "daemon": _daemon,
    "mode bits": _mode_bits,
    "mount view": _view,
    "label": _label,
    "object's policy": _objects_policy,
    "caller's policy": _callers_policy,
    "effects": _effects,
    "sandbox": _sandbox,
}
# The layers that have no answer about a person.
_FOR_AGENTS = ("mount view", "label", "object's policy", "caller's policy", "sandbox")
