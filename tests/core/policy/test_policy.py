"""Lines of policy v0: valid rules, refused lines, and how each refusal says what to write instead."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortexfs.core.errors import Fault
from cortexfs.core.policy import rules
from cortexfs.core.policy.rules import PERMISSIONS, TO_RUN, Rule, by_name, find, parse, type_of
from tests.tables import each_of


def refused(text: str) -> str:
    with pytest.raises(Fault) as caught:
        rules.parse(text)
    assert caught.value.code == "EINVAL"
    return caught.value.message


def test_a_rule_knows_its_file_and_line() -> None:
    # abi.md 7.4
    found = parse("# who\n\nallow coder_t tool:fs.read execute\n", "tool/fs.read.d/policy")
    assert found == (Rule("coder_t", "tool", "fs.read", "execute", "tool/fs.read.d/policy", 3),)
    assert found[0].where == "tool/fs.read.d/policy:3"
    assert found[0].text == "allow coder_t tool:fs.read execute"


@each_of(("class_", "permission"), [(class_, one) for class_, some in PERMISSIONS.items() for one in some])
def test_each_class_has_its_permissions(class_: str, permission: str) -> None:
    # Of the originals: "tool execute · model use · shared read write · session read write resume · mount read
    # write · agent create start stop read write · network connect (only `network:default`)"
    name = {"model": "openai/gpt", "network": "default"}.get(class_, "one")
    line = f"allow coder_t {class_}:{name} {permission}"
    assert [rule.text for rule in parse(line + "\n")] == [line]


def test_a_model_may_be_named_by_its_alias() -> None:
    # abi.md 1.5
    assert parse("allow base_t model:main use\n")[0].name == "main"


def test_what_runs_has_a_permission_for_it() -> None:
    assert all(permission in PERMISSIONS[class_] for class_, permission in TO_RUN.items())


@each_of(
    ("line", "mend"),
    [
        ("deny coder_t tool:a execute", "policy has no deny; remove the line"),
        ("deny", "policy has no deny"),
        ("allow coder_t tool:* execute", "has a glob, which is not supported; write a line for each object"),
        ("allow * tool:a execute", "has a glob"),
        ("allow coder_t tool:fs.[rw]ead execute", "has a glob"),
        ("allow coder_t tool:$TOOL execute", "has a variable, which is not supported; write the name"),
        ("allow ${LABEL} tool:a execute", "has a variable"),
        ("allow coder_t gadget:a execute", "'gadget' is not one of tool, model, shared"),
        ("allow coder_t tool:a use", "tool has execute sample roots, not 'use'"),
        ("allow coder_t agent:a resume", "agent has create start stop read write, not 'resume'"),
        ("allow coder_t model:a/b/c use", "is not of the form provider/model"),
        ("allow coder_t model:.main use", "begins with a letter or digit"),
        ("allow coder_t tool:a/b execute", "must be one component"),
        ("allow coder_t network:lan connect", "the only network is network:default"),
        ("allow user_u:agent_r:coder_t:s0 tool:a execute", "is not a label; write its type, such as coder_t"),
        ("allow coder_t tool:a execute 5", "is not of the form: allow LABEL CLASS:NAME PERMISSION"),
        ("Allow coder_t tool:a execute", "is not of the form"),
        ("permit coder_t tool:a execute", "is not of the form"),
    ],
)
def test_a_refusal_names_line_and_mend(line: str, mend: str) -> None:
    # Of the originals: "Default deny, no deny rule, glob, priority, inheritance, variables. Unknown
    # class/permission EINVAL."
    message = refused(f"# first\nallow coder_t tool:fine execute\n{line}\n")
    assert message.startswith("line 3: ")
    assert mend in message


def test_order_and_repetition_decide_nothing() -> None:
    one, two = "allow a_t tool:x execute\n", "allow a_t tool:y execute\n"
    for text in (one + two, two + one, one + two + one):
        assert find(parse(text), "a_t", "tool", "x", "execute")


@each_of(
    "asked",
    [
        ("b_t", "tool", "x", "execute"),
        ("a_t", "agent", "x", "execute"),
        ("a_t", "tool", "x.y", "execute"),
        ("a_t", "tool", "x", "start"),
    ],
)
def test_a_rule_allows_exactly_what_it_says(asked: tuple[str, str, str, str]) -> None:
    assert find(parse("allow a_t tool:x execute\n"), *asked) is None


def test_policy_lines_name_the_type_of_a_label() -> None:
    # Of the originals: "`user_u:agent_r:coder_t:s0`; policy subject = `coder_t`"
    assert type_of("user_u:agent_r:coder_t:s0\n") == "coder_t"
    for wrong in ("", "\n", "coder_t\n", "a:b:c\n", "a:b:c d:e\n", "a:b:*:d\n"):
        assert type_of(wrong) == ""


@settings(max_examples=30)
@given(st.text(alphabet="allow deny_t:tool*$./#\n\t \x0c\u2028", max_size=80))
def test_any_text_is_rules_or_one_refusal(text: str) -> None:
    try:
        found = parse(text)
    except Fault as fault:
        refusal = (fault.code, fault.message[:5])
        found = ()
    else:
        refusal = ("EINVAL", "line ")
    assert refusal == ("EINVAL", "line ")
    again = parse("".join(f"{rule.text}\n" for rule in found))
    assert [rule[:4] for rule in again] == [rule[:4] for rule in found]


def test_rules_of_a_class_are_found_by_the_objects_name() -> None:
    lines = (
        "allow a tool:x execute",
        "allow a model:x use",
        "allow b tool:x execute",
        "allow a tool:y execute",
    )
    every = parse("\n".join(lines))
    assert by_name(every, "tool") == {"x": (every[0], every[2]), "y": (every[3],)}
    assert by_name(every, "agent") == {}
