"""Every format of a writable control: its valid texts, and refusals that name the line and the remedy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core.errors import Fault
from cortexfs.core.tree.controls import CONTROLS, Control, find, judge
from tests.tables import each_of

GOOD = [
    ("tool", "policy", ""),
    ("tool", "policy", "# who may\n\nallow coder_t tool:fs.read execute\n"),
    ("tool", "policy", "  allow  coder_t\tmodel:openai/gpt-4o   use\n"),
    ("agent", "policy", "allow coder_t shared:main write\nallow coder_t network:default connect\n"),
    ("agent", "policy", "allow coder_t session:s1 resume\nallow coder_t agent:helper create\n"),
    ("tool", "script", "/home/u/greet\n# tool: Greet.\n# arg who string: whom\n"),
    ("model", "driver", "debug\n"),
    ("model", "driver", "default=openai-chat\nagent=openai-responses,openai-chat\n"),
    ("model", "effort", "xhigh\n"),
    ("model", "default", "temperature=0.2\nmax_tokens=100\nstop=a=b\n"),
    ("model", "fallback", "# first\nopenai/gpt-4o\n\nmeta/llama\n"),
    ("agent", "groups", "0\n1000\n4294967295\n"),
    ("agent", "label", "user_u:agent_r:coder_t:s0\n"),
    ("agent", "cwd", "/work\n"),
    ("agent", "env", "A=1\nB_2=\n"),
    ("agent", "path", "/ctx/tool\n/ctx/home/1000/tool\n"),
    ("agent", "mount", "/srv\t/srv\trw\tbind,nosuid\n/a\t/a\tro\tnoexec\n/a/b\t/a/b\tro\t-\n"),
    ("agent", "model", "main\n"),
    ("agent", "model", "openai/gpt-4o\n"),
    ("agent", "window", "auto\n"),
    ("agent", "window", "128000\n"),
    ("agent", "system.md", "# You are\n\nhelpful — yes.\n"),
    ("agent", "tools", "fs.read\nshell\n"),
    ("agent", "skills", "notes/review\nnotes/tidy\n"),
    ("agent", "approval", "ask\n"),
]

BAD = [
    ("tool", "policy", "deny x tool:a execute\n", "line 1"),
    ("tool", "policy", "allow x tool:a execute\nallow x tool:a\n", "line 2"),
    ("tool", "policy", "allow x tool:a use\n", "execute"),
    ("tool", "policy", "allow x gadget:a use\n", "gadget"),
    ("tool", "policy", "allow x tool:* execute\n", "line 1"),
    ("tool", "policy", "allow x model:a/b/c use\n", "provider/model"),
    ("tool", "policy", "allow x:y tool:a execute\n", "label"),
    ("tool", "policy", "allow x network:lan connect\n", "network:default"),
    ("tool", "policy", "allow x tool: execute\n", "line 1"),
    ("tool", "script", "greet\n# tool: Greet.\n", "first line"),
    ("model", "driver", "\n", "line 1"),
    ("model", "driver", "default=a\ndefault=b\n", "line 2"),
    ("model", "driver", "chat=a\n", "default, exec, socket, agent"),
    ("model", "driver", "default=a,,b\n", "line 1"),
    ("model", "driver", "a\nb\n", "line 1"),
    ("model", "effort", "bad\n", "auto, low, medium, high, xhigh"),
    ("model", "effort", "low\nhigh\n", "one line"),
    ("model", "default", "temperature\n", "KEY=VALUE"),
    ("model", "default", "a=1\na=2\n", "line 2"),
    ("model", "default", "api_key=sk-1\n", "secret"),
    ("model", "fallback", "gpt\n", "provider/model"),
    ("model", "fallback", "a/b\n# again\na/b\n", "line 3"),
    ("model", "fallback", "".join(f"p/m{at}\n" for at in range(17)), "16"),
    ("agent", "groups", "wheel\n", "line 1"),
    ("agent", "groups", "01\n", "line 1"),
    ("agent", "groups", "4294967296\n", "line 1"),
    ("agent", "label", "coder_t\n", "user:role:type:level"),
    ("agent", "cwd", "work\n", "absolute"),
    ("agent", "env", "1A=x\n", "KEY=VALUE"),
    ("agent", "path", "/a\nb\n", "line 2"),
    ("agent", "mount", "/a /b rw -\n", "TAB"),
    ("agent", "mount", "/a\tb\trw\t-\n", "absolute"),
    ("agent", "mount", "/a\t/b\trx\t-\n", "ro nor rw"),
    ("agent", "mount", "/a\t/b\trw\texec\n", "nosuid"),
    ("agent", "mount", "/a\t/b\trw\tbind,rbind\n", "both bind"),
    ("agent", "mount", "/a\t/b\trw\tbind,bind\n", "twice"),
    ("agent", "mount", "/a\t/a\tro\t-\n/b\t/c\trw\t-\n", "line 2: source and target must be the same"),
    ("agent", "mount", "/a\t/a\trw\tnosuid,nodev\n", "nodev"),
    ("agent", "mount", "/a//b/\t/a//b/\trw\t-\n", "written as /a/b"),
    ("agent", "mount", "/a/../b\t/a/../b\trw\t-\n", "contains .."),
    ("agent", "mount", "/a\t/a\trw\t-\n/a/b\t/a/b\tro\t-\n", "line 2: /a/b cannot have fewer rights than /a"),
    (
        "agent",
        "mount",
        "/a/b\t/a/b\trw\tnoexec\n/\t/\tro\t-\n",
        "line 1: /a/b cannot have fewer rights than /,",
    ),
    ("agent", "model", "a/b/c\n", "line 1"),
    ("agent", "window", "0\n", "auto"),
    ("agent", "window", "-1\n", "auto"),
    ("agent", "window", "\u0661\n", "auto"),
    ("agent", "tools", "a\na\n", "line 2"),
    ("agent", "tools", "a/b\n", "line 1"),
    ("agent", "skills", "notes/a\nnotes\n", "line 2: 'notes' is not a skill; write PLUGIN/SKILL"),
    ("agent", "skills", "notes/a\nnotes/a\n", "line 2"),
    ("agent", "approval", "never\n", "auto, ask"),
    ("agent", "tools", "a\r\n", "line 1"),
    ("agent", "tools", "a\u2028b\n", "line 1"),
]


def judged(class_: str, name: str, data: bytes) -> bytes:
    control = find(class_, name)
    assert control is not None
    return judge(control, data)


@each_of(("class_", "name", "text"), GOOD)
def test_a_good_value_is_taken_as_it_is(class_: str, name: str, text: str) -> None:
    assert judged(class_, name, text.encode()) == text.encode()


@each_of(("class_", "name", "text", "said"), BAD)
def test_a_bad_value_is_refused_with_line_and_mend(class_: str, name: str, text: str, said: str) -> None:
    with pytest.raises(Fault) as raised:
        judged(class_, name, text.encode())
    assert raised.value.code == "EINVAL"
    assert said in raised.value.message


def test_every_writable_control_has_an_example_of_both() -> None:
    writable = {(class_, row.name) for class_, rows in CONTROLS.items() for row in rows if row.check}
    assert writable <= {(class_, name) for class_, name, _ in GOOD} | {("model", "policy")}
    anything = {("agent", "system.md"), ("model", "policy"), ("agent", "policy")}
    assert writable <= {(class_, name) for class_, name, _, _ in BAD} | anything


@given(data=st.binary(max_size=200), row=st.sampled_from([row for rows in CONTROLS.values() for row in rows]))
def test_any_bytes_are_a_value_or_a_fault_and_a_value_stays_one(data: bytes, row: Control) -> None:
    try:
        value = judge(row, data)
    except Fault:
        return
    assert judge(row, value) == value
