"""Levels of calls: floors, scores and settings, as the reference about effects describes them."""

from __future__ import annotations

from typing import Any

import pytest

from cortexfs.core.errors import Fault
from cortexfs.core.hostcalls import Effect
from cortexfs.core.policy.risk import (
    ALLOW,
    BLOCK,
    DEFAULT,
    FLOORS,
    LEVELS,
    MAX_LINE,
    MODES,
    REQUIRE_CONFIRMATION,
    REVIEW,
    UNKNOWN,
    Axes,
    Circumstances,
    Level,
    Profile,
    RatedTool,
    RiskSettings,
    assess,
    decode,
    effects_of,
    floor,
    level_of,
    matches,
    score,
    words_of,
)
from cortexfs.sdk.effects import ToolEffect, ToolEffectKind
from tests.tables import each_of


def effect(
    kind: str,
    reversibility: str = "reversible",
    confirmation: str = "on_risk",
    dry_run: str = "not_supported",
    target: str = "",
) -> Effect:
    return Effect(kind, reversibility, confirmation, dry_run, target)


def builtin(*effects: Effect, name: str = "one", **more: Any) -> RatedTool:
    return RatedTool(name, effects, builtin=True, **more)


def as_declared(kind: ToolEffectKind) -> Effect:
    """An effect with the defaults of the SDK."""
    one = ToolEffect(kind)
    return Effect(kind.value, one.reversibility, one.confirmation, one.dry_run, one.target)


# Levels and floors.


def test_levels_are_in_order() -> None:
    # section 6: "Levels Allow<Review<RequireConfirmation<Block"
    assert ALLOW < REVIEW < REQUIRE_CONFIRMATION < BLOCK
    assert LEVELS["require_confirmation"] is REQUIRE_CONFIRMATION


@each_of(
    ("level", "kinds"),
    [
        (ALLOW, "read_file introspect_runtime"),
        (REVIEW, "network_request persist_memory generate_media"),
        (
            REQUIRE_CONFIRMATION,
            "write_file run_process send_message publish_content schedule_task delegate_work",
        ),
        (BLOCK, "read_secret delete_file spend_money deploy modify_credential"),
    ],
)
def test_kinds_have_floors(level: Level, kinds: str) -> None:
    # section 6: "Kind floors: Allow read_file, introspect_runtime; Review network_request, ..."
    for kind in kinds.split():
        assert floor(effect(kind)).level is level
        assert assess(builtin(effect(kind))).level is level


def test_every_kind_of_the_sdk_has_a_floor() -> None:
    assert set(FLOORS) == {kind.value for kind in ToolEffectKind}


@each_of("kind", sorted(FLOORS))
def test_always_and_irreversible_lift(kind: str) -> None:
    # section 6: "confirmation=always or reversibility=irreversible lifts Allow/Review to RequireConfirmation"
    lifted = max(FLOORS[kind], REQUIRE_CONFIRMATION)
    assert floor(effect(kind, confirmation="always")).level is lifted
    assert floor(effect(kind, reversibility="irreversible")).level is lifted


@each_of(
    ("kind", "why"),
    [
        ("write_file", "it changes files (write_file is require_confirmation)"),
        ("network_request", "network_request is declared with confirmation always"),
    ],
)
def test_a_word_is_the_reason_where_it_lifts_the_level(kind: str, why: str) -> None:
    assert floor(effect(kind, confirmation="always")).why == why


@each_of("kind", sorted(FLOORS))
def test_never_lowers_nothing_and_partially_changes_nothing(kind: str) -> None:
    # section 6: "`never` lowers nothing; partially_reversible changes nothing"
    assert floor(effect(kind, confirmation="never")).level is FLOORS[kind]
    assert floor(effect(kind, reversibility="partially_reversible")).level is FLOORS[kind]


def test_a_word_that_nobody_knows_counts_as_the_strictest() -> None:
    # better than taking it for harmless: the tree takes any word (catalog: "policy relies on lines of words")
    assert floor(effect("launch_rocket")).level is REQUIRE_CONFIRMATION
    assert "the effect launch_rocket is unknown" in floor(effect("launch_rocket")).why
    assert floor(effect("read_file", reversibility="hardly")).level is REQUIRE_CONFIRMATION
    assert floor(effect("read_file", confirmation="sometimes")).level is REQUIRE_CONFIRMATION


def test_the_sdks_defaults_ask_before_everything_but_looking() -> None:
    # section 6: "Confirmation default on_risk for those first three, else always"
    calm = {ToolEffectKind.READ_FILE, ToolEffectKind.NETWORK_REQUEST, ToolEffectKind.INTROSPECT_RUNTIME}
    for kind in ToolEffectKind:
        assert (floor(as_declared(kind)).level < REQUIRE_CONFIRMATION) == (kind in calm)


def test_the_highest_effect_counts() -> None:
    assert assess(builtin(effect("read_file"), effect("write_file"))).level is REQUIRE_CONFIRMATION


def test_effects_are_read_as_the_tree_writes_them() -> None:
    # abi.md 3.6
    text = "read_file - reversible on_risk not_supported\n"
    text += "write_file a%20b%25%E2%80%A8 reversible never supported\n"
    first, second = effects_of(text)
    assert first == effect("read_file")
    assert second == effect("write_file", confirmation="never", dry_run="supported", target="a b%\u2028")
    with pytest.raises(Fault, match="line 2: an effect needs kind, target"):
        effects_of("read_file - reversible on_risk not_supported\nread_file\n")


# Scores.


def test_unknown_tools_need_confirmation() -> None:
    # section 6: "unknown/plugin tool .9/.1/.6/.5 = .513 RequireConfirmation"
    assert score(UNKNOWN) == pytest.approx(0.513)
    assert assess(RatedTool("theirs", (effect("read_file"),))).level is REQUIRE_CONFIRMATION
    assert assess(RatedTool("theirs")).level is REQUIRE_CONFIRMATION


@each_of(
    ("number", "level"),
    [
        (0.0, ALLOW),
        (0.199, ALLOW),
        (0.2, REVIEW),
        (0.499, REVIEW),
        (0.5, REQUIRE_CONFIRMATION),
        (0.799, REQUIRE_CONFIRMATION),
        (0.8, BLOCK),
        (1.0, BLOCK),
    ],
)
def test_scores_become_levels(number: float, level: Level) -> None:
    # section 6: "<.2 Allow, <.5 Review, <.8 RequireConfirmation, else Block"
    assert level_of(number) is level


def test_a_score_is_the_weighted_average_times_the_highest() -> None:
    # section 6: "weights .3/.2/.3/.2; composite = max*weighted avg"
    assert score(Axes(1, 0, 0, 0)) == pytest.approx(0.3)
    assert score(Axes(0, 1, 0, 0)) == pytest.approx(0.2)
    assert score(Axes(0, 0, 1, 0)) == pytest.approx(0.3)
    assert score(Axes(0, 0, 0, 1)) == pytest.approx(0.2)
    assert score(Axes(1, 1, 1, 1)) == pytest.approx(1)


def test_depth_raises_three_axes_and_no_axis_passes_one() -> None:
    # section 6: "Sub-agent depth multiplies three axes by 1.3^depth"
    assert score(Axes(0.5, 0, 0, 0), 1) == pytest.approx(0.65 * 0.3 * 0.65)
    assert score(Axes(0, 0.5, 0, 0), 5) == score(Axes(0, 0.5, 0, 0))
    assert score(UNKNOWN, 100) == pytest.approx(0.3 + 0.2 * 0.1 + 0.3 + 0.2)
    assert assess(RatedTool("theirs"), call=Circumstances(depth=3)).level is BLOCK


@each_of(
    "word",
    [
        ".env",
        "a/.env.local",
        "prod.env",
        ".envrc",
        "~/.aws/credentials",
        "id_rsa",
        "my-secret",
        "api_token",
        "PASSWORD",
    ],
)
def test_sensitive_paths_raise_the_level(word: str) -> None:
    # section 6: "path containing .env, credentials, secret, password, token, private_key, id_rsa ->
    # sensitivity .9"
    reading = builtin(effect("read_file"))
    source = assess(reading, call=Circumstances(words=(word,)))
    assert source.level is REVIEW
    assert word in source.why


@each_of("word", ["tokenizer.py", "secretary.md", "environment", "passwordless.md"])
def test_words_that_only_contain_one_are_not_sensitive(word: str) -> None:
    # better than a substring match
    assert assess(builtin(effect("read_file")), call=Circumstances(words=(word,))).level is ALLOW


def test_words_of_an_input_are_those_of_its_lines() -> None:
    found = words_of({"path": "/etc/passwd", "cmd": "cat '/a b'; x=/c", "n": 3, "deep": [{"x": "y"}]})
    assert set(found) == {"/etc/passwd", "cat", "/a", "b", "x", "/c", "y"}
    assert words_of({"content": "a\n.env\n"}) == ()  # plain text, which is no path
    assert words_of("x" * MAX_LINE) == ("x" * MAX_LINE,)
    assert words_of("x" * (MAX_LINE + 1)) == ()
    assert len(words_of(["x"] * 5000)) == 1000


# Settings of the administrator.


def test_lists_block() -> None:
    # section 6: "then deny pattern or outside non-empty allow -> Block (one * glob)"
    settings = decode('allow = ["fs.*"]\ndeny = ["*.write"]\n')
    levels = {
        name: assess(builtin(name=name), settings).level for name in ("fs.read", "fs.write", "shell.exec")
    }
    assert levels == {"fs.read": ALLOW, "fs.write": BLOCK, "shell.exec": BLOCK}


@each_of(
    ("pattern", "name", "matched"),
    [
        ("fs.read", "fs.read", True),
        ("fs.read", "fs.read2", False),
        ("*", "x", True),
        ("fs.*", "fs.", True),
        ("a*a", "a", False),
        ("a*b", "axxb", True),
        ("?s", "fs", False),
    ],
)
def test_a_pattern_has_one_star(pattern: str, name: str, matched: bool) -> None:
    assert matches(pattern, name) is matched


def test_profiles_block_and_raise() -> None:
    # section 6: "block -> Block, require_confirmation raises"
    reading = builtin(effect("read_file"))
    assert assess(reading, RiskSettings(tools={"one": Profile(block=True)})).level is BLOCK
    raised = RiskSettings(tools={"one": Profile(require_confirmation=True)})
    assert assess(reading, raised).level is REQUIRE_CONFIRMATION
    assert assess(builtin(effect("delete_file")), raised).level is BLOCK
    assert assess(builtin(name="other"), raised).level is ALLOW


def test_axes_lower_a_guess_and_no_floor() -> None:
    # section 6: "Floors cannot be lowered"
    settings = RiskSettings(
        tools={"one": Profile(tool_risk=0, file_sensitivity=0, blast_radius=0, irreversibility=0)}
    )
    assert assess(RatedTool("one"), settings).level is ALLOW
    assert assess(RatedTool("one", (effect("write_file"),)), settings).level is REQUIRE_CONFIRMATION


def test_background_is_blocked_unless_it_is_safe_or_allowed() -> None:
    # section 6: "Background scope: Block unless tool background_safe or allow_background"
    behind = Circumstances(background=True)
    allowed = RiskSettings(tools={"one": Profile(allow_background=True)})
    assert assess(builtin(), call=behind).level is BLOCK
    assert assess(builtin(background_safe=True), call=behind).level is ALLOW
    assert assess(builtin(), allowed, behind).level is ALLOW
    assert assess(builtin()).level is ALLOW


@each_of(
    ("word", "level"),
    [
        ("/var/lib/cortexfs", BLOCK),
        ("/var/lib/cortexfs/secrets/openai", BLOCK),
        ("/var/lib/../lib/./cortexfs//x", BLOCK),
        ("/var/lib/cortexfs2", ALLOW),
        ("/var/lib", ALLOW),
        ("var/lib/cortexfs", ALLOW),
        ("session-set", ALLOW),
    ],
)
def test_the_daemons_own_paths_are_blocked_by_whole_names(word: str, level: Level) -> None:
    # section 6: "Protected runtime root in any path-like input -> Block"; better than "substring match:
    # "session"+"set" gives false hits"
    call = Circumstances(words=(word,), protected=("/var/lib/cortexfs",))
    assert assess(builtin(), call=call).level is level


@each_of(
    ("text", "sentence"),
    [
        ("mode = 'loose'", "policy.toml: mode: expected one of strict, balanced, open"),
        ("mode = 3", "policy.toml: mode: expected one of strict, balanced, open"),
        ("auto_approve_up_to = 'all'", "expected one of allow, review, require_confirmation, block"),
        ("modus = 'open'", "unknown key modus; did you mean mode?"),
        ("[tools.a]\nblocked = true", "unknown key tools.a.blocked; did you mean block?"),
        ("[tools.a]\ntool_risk = 2", "policy.toml: tools.a.tool_risk: expected number <= 1.0"),
        ("[tools.a]\nblock = 1", "policy.toml: tools.a.block: expected boolean"),
        ("tools = 3", "policy.toml: tools must hold tables, such as [tools.NAME]"),
        ("tools.a = 3", "policy.toml: tools.a: expected table"),
        ("deny = ['*a*']", "'*a*' is not a pattern; write a name with at most one *"),
        ("allow = ['']", "'' is not a pattern"),
        ("[", "policy.toml: it is not TOML: "),
    ],
)
def test_wrong_settings_name_key_and_mend(text: str, sentence: str) -> None:
    with pytest.raises(Fault) as caught:
        decode(text)
    assert caught.value.code == "EINVAL"
    assert sentence in caught.value.message


def test_settings_without_a_file_are_balanced() -> None:
    # section 6: "balanced=Review (default)"
    assert decode("") == DEFAULT
    assert MODES[DEFAULT.mode] is REVIEW
