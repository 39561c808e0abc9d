"""Provider files, listings and names, and the meaning of failures, without a network."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortexfs.core import frames, names
from cortexfs.core.errors import Fault
from cortexfs.core.frames import Message
from cortexfs.core.registry import Registry
from cortexfs.core.tree import controls
from cortexfs.models.ask.model import model_of, parameters, written
from cortexfs.models.ask.structured import Schema
from cortexfs.models.ask.window import BYTES, PromptWindow
from cortexfs.models.exchange import failures
from cortexfs.models.providers import listing, provider
from cortexfs.models.providers import listing as offered
from cortexfs.models.providers.listing import BASIC, NATIVE, ListedModel, tree_name
from cortexfs.models.providers.provider import PRESETS, DeclaredModel, KeySource, Provider
from tests.tables import each_of

HERE = "/etc/cortexfs/providers/p.toml"
FULL = Provider(
    base_url="https://x.example/v1",
    format="openai.chat",
    models=("a", "vendor/b"),
    order=3,
    key=KeySource(command=("pass", "show", 'a "b"')),
    headers={"X-Org": "o\\1"},
    model=(DeclaredModel("a", name="p/c", default={"temperature": 0.5, "stop": ["\n", "ä\x7f"]}, limit=9),),
)


# -- files


def test_what_is_written_is_read() -> None:
    assert provider.decode(provider.encode(FULL), HERE) == FULL


@given(
    st.text(max_size=20),
    st.dictionaries(st.text("_abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8), st.text(max_size=9)),
)
def test_any_text_survives_being_written(text: str, default: dict[str, str]) -> None:
    default = {key: value for key, value in default.items() if key not in ("token", "secret", "password")}
    made = Provider("http://x", "google", model=(DeclaredModel("i", description=text, default=default),))
    read = provider.decode(provider.encode(made), HERE)
    assert read.model[0].default == default
    assert read.model[0].description == text


WRONG = [
    ("x", "is not TOML"),
    ('base_ur = "x"', "unknown key base_ur; did you mean base_url"),
    ('key = "sk-1234567890"', "a key does not belong here"),
    ('api_key = "sk-1234567890"', "a key does not belong here"),
    ('format = "google"', "missing key"),
    ('base_url = "ftp://x"\nformat = "google"', "not of the form https://host/path"),
    ('base_url = "https://u:sk-1234567890@x"\nformat = "google"', "holds a name or password"),
    ('base_url = "https://x/?k=sk-1234567890"\nformat = "google"', "more than an address"),
    ('base_url = "https://x:y"\nformat = "google"', "is not a URL"),
    ('base_url = "https://x"\nformat = "googel"', "format"),
    ('base_url = "https://x"\nformat = "google"\nfirst_secs = 0', "first_secs"),
    ('base_url = "https://x"\nformat = "google"\nkey = {}', "key: expected"),
    (
        'base_url = "https://x"\nformat = "google"\nkey = {env = "LD_PRELOAD"}',
        "cannot hold a key",
    ),
    ('base_url = "https://x"\nformat = "google"\nheaders = {Authorization = "x"}', "holds a key"),
    ('base_url = "https://x"\nformat = "google"\nheaders = {"a" = "b\\nc"}', "one line of ASCII"),
    ('base_url = "https://x"\nformat = "google"\nmodels = [""]', "is not a valid id of a model"),
    ('base_url = "https://x"\nformat = "google"\n[[model]]\nid = "a\\nb"', "is not a valid id of a model"),
    ('base_url = "https://x"\nformat = "google"\n[[model]]\nid = "a"\nlimit = 5000000000', "limit"),
    ('base_url = "https://x"\nformat = "google"\n[[model]]\nid = "a"\nname = "b"', "provider/model"),
    ('base_url = "https://x"\nformat = "google"\n[[model]]\nid = "a"\nefort = "b"', "did you mean effort"),
    ('base_url = "https://x"\nformat = "google"\n[[model]]\nid = "a"\neffort = "b"', "not one of auto"),
    ('base_url = "https://x"\nformat = "google"\n[[model]]\nid = "a"\ndefault = {token = "b"}', "secret"),
]


@each_of(("text", "words"), WRONG)
def test_a_wrong_file_is_told_with_its_key_and_without_secrets(text: str, words: str) -> None:
    with pytest.raises(Fault, match=words) as caught:
        provider.decode(text.encode(), HERE)
    assert caught.value.code == "EINVAL"
    assert HERE in caught.value.message
    assert "sk-1234567890" not in caught.value.message or "base_url" in caught.value.message


@each_of("name", list(PRESETS))
def test_presets_are_sound(name: str) -> None:
    preset = PRESETS[name]
    names.check(name)
    made = Provider(provider.check_base_url(preset.base_url), provider.check_format(preset.format))
    assert made.needs_key is preset.base_url.startswith("https")
    assert provider.decode(provider.encode(made), HERE) == made


# -- names and listings


@each_of(
    ("id_", "name"),
    [
        ("gpt-4o", "p/gpt-4o"),
        # abi.md 2.5, 2.8
        ("anthropic/claude-3", "anthropic/claude-3"),
        ("meta/llama 3:free", "meta/llama-3-free"),
        ("accounts/fireworks/models/x", "p/accounts-fireworks-models-x"),
        ("llama3:8b", "p/llama3-8b"),
        ("/models/x.gguf", "p/models-x.gguf"),
        ("x.sock", "p/x"),
        ("模型", "p/unnamed"),
        ("a/", "p/a-"),
        ("x" * 200, "p/" + "x" * 64),
    ],
)
def test_the_name_of_an_id(id_: str, name: str) -> None:
    assert tree_name("p", id_) == name


@given(st.text(min_size=1, max_size=80))
def test_every_id_has_a_name_of_the_grammar(id_: str) -> None:
    names.check_object("model", tree_name("p", id_))


LISTINGS: list[tuple[Any, list[ListedModel]]] = [
    ({"data": [{"id": "a"}, {"id": ""}, {"no": 1}, {"id": 7}]}, [ListedModel("a")]),
    ([{"id": "a", "context_length": 8192}], [ListedModel("a", 8192)]),  # Together: a bare list
    ({"data": [{"id": "g", "context_window": 131072}]}, [ListedModel("g", 131072)]),  # Groq
    ({"data": [{"id": "v", "max_model_len": 4096}]}, [ListedModel("v", 4096)]),  # vLLM
    ({"data": [{"id": "l", "meta": {"n_ctx_train": 8192}}]}, [ListedModel("l", 8192)]),  # llama.cpp
    ({"models": [{"name": "models/gemini", "inputTokenLimit": 9}]}, [ListedModel("gemini", 9)]),
    ({"data": [{"id": "a", "context_length": True}]}, [ListedModel("a")]),
    ({"data": [{"id": "a", "context_length": -1}]}, [ListedModel("a")]),
    (
        {
            "data": [
                {
                    "id": "o/m",
                    "context_length": 100,
                    "top_provider": {"context_length": 50},
                    "architecture": {"input_modalities": ["text", "image"]},
                    "supported_parameters": ["tools", "response_format", "reasoning"],
                    "description": "Good.\nVery.",
                }
            ]
        },
        [
            ListedModel(
                "o/m",
                50,
                ("chat", "stream", "session", "vision", "tool_call_syntax", "json_schema", "reasoning"),
                "Good. Very.",
            )
        ],
    ),
    (
        {
            "data": [
                {
                    "id": "c",
                    "max_input_tokens": 200000,
                    "capabilities": {"image_input": {"supported": True}, "thinking": {"supported": False}},
                }
            ]
        },
        [ListedModel("c", 200000, ("chat", "stream", "session", "vision"))],
    ),
    (
        {"data": [{"id": "e-embed", "capabilities": {"completion_chat": False}}]},
        [ListedModel("e-embed", None, ("embedding",))],
    ),
]


@each_of(("value", "models"), LISTINGS)
def test_listings(value: Any, models: list[ListedModel]) -> None:
    found, after = listing.decode(json.dumps(value).encode())
    assert (found, after) == (models, "")


@each_of("body", [b"", b"<html>", b"7", b'{"data":7}', b"\xff", b"[" * 100_000, b"[1]", b"[null]"])
def test_a_listing_that_is_none(body: bytes) -> None:
    with pytest.raises(Fault, match="EREMOTEIO"):
        listing.decode(body)


def test_pages() -> None:
    assert listing.decode(b'{"data":[{"id":"a"}],"has_more":true,"last_id":"a"}')[1] == "a"


# -- objects


def shown(object_: Any, name: str) -> str:
    found = controls.find("model", name)
    assert found
    return found.render(object_)


def test_offers_as_objects() -> None:
    offers = offered.offers(
        "p", FULL, [ListedModel("a", 8192, description="A."), ListedModel("A:b"), ListedModel("A-b", 5)]
    )
    assert [offer.name for offer in offers] == ["p/c", "p/a", "vendor/b", "p/A-b"]
    objects = [offered.object_of(each, FULL, 1.0, True) for each in offers]
    registry = Registry({each.key: each for each in objects})
    own = registry.get("model", "p/c")
    assert own
    assert (own.origin, own.status, shown(own, "limit"), shown(own, "id")) == (
        "provider:p",
        "ready",
        "9",
        "a",
    )
    taken = registry.get("model", "p/A-b")
    assert taken
    assert shown(taken, "id") == "A:b"  # the first one in the list of the provider
    for each in objects:
        for control in controls.CONTROLS["model"]:
            if control.check and (text := controls.line_ended(control.render(each))):
                assert controls.judge(control, text) == text
    model = model_of(own, shown)
    assert (model.default, model.limit) == ({"temperature": 0.5, "stop": ["\n", "ä\x7f"]}, 9)


def test_a_provider_whose_models_take_tools_though_its_listing_does_not_say_so() -> None:
    # models.md: "`cap` says `chat stream session`, with `tool_call_syntax` where the provider has `tools`"
    listed = [ListedModel("a"), ListedModel("e", cap=("embedding",)), ListedModel("n", cap=(*BASIC, NATIVE))]
    given = Provider("https://x.org", "openai.chat", tools=True, model=(DeclaredModel("d", cap=("chat",)),))
    for provider_, caps in (
        (given, ("chat", " ".join((*BASIC, NATIVE)), "embedding", " ".join((*BASIC, NATIVE)))),
        (
            msgspec.structs.replace(given, tools=False),
            ("chat", " ".join(BASIC), "embedding", " ".join((*BASIC, NATIVE))),
        ),
    ):
        offers = offered.offers("p", provider_, listed)
        objects = [offered.object_of(each, provider_, 1.0, True) for each in offers]
        assert tuple(" ".join(shown(each, "cap").split()) for each in objects) == caps


def test_a_model_without_a_key_says_so() -> None:
    offers = offered.offers("p", msgspec.structs.replace(FULL, key=None), [])
    missing = offered.object_of(offers[0], FULL, 1.0, False)
    assert missing.status == "no key: ctx provider secret set p"


@given(
    st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=20) | st.integers(-9, 9) | st.booleans())
)
def test_defaults_are_read_as_they_are_written(default: dict[str, Any]) -> None:
    assert parameters(written(default)) == default


# -- failures

OVERFLOWS = [
    ("maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.", 9001, 8192),
    ("prompt is too long: 210000 tokens > 200000 maximum", 210000, 200000),
    (
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        1200000,
        1048576,
    ),
    ("maximum context length is 131,072 tokens. However, you requested about 200,010 tokens", 200010, 131072),
    (
        "Input tokens exceed the configured limit of 272000 tokens. Your messages are 400018 tokens",
        400018,
        272000,
    ),
]


@each_of(("text", "size", "most"), OVERFLOWS)
def test_an_overflow_tells_both_numbers(text: str, size: int, most: int) -> None:
    # issue: "context overflow EMSGSIZE with both numbers"
    body = json.dumps({"error": {"message": text}}).encode()
    failure = failures.of_status("p", 400, {}, body, "", 0)
    assert failure.code == "EMSGSIZE"
    assert f"{size} tokens" in failure.message
    assert f"takes {most}" in failure.message
    assert failure.most == most


@each_of(
    ("headers", "delay"),
    [
        ({"Retry-After": "3"}, 3),
        ({"retry-after": "2.5"}, 2.5),
        ({"Retry-After-Ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 10),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_the_server_s_own_delay(headers: dict[str, str], delay: float | None) -> None:
    assert failures.of_status("p", 429, headers, b"", "", 1445412470).delay == delay


KEY = "sk-proj-0123456789abcdefghijklmnopqrstuv"


@given(st.integers(0, 40), st.integers(0, 40), st.integers(100, 599), st.text(max_size=10))
def test_no_message_holds_more_than_a_quarter_of_a_key(start: int, end: int, status: int, text: str) -> None:
    body = json.dumps(
        {"error": {"message": f"{text}{KEY} {KEY[:start]}**{KEY[-end:] if end else ''}"}}
    ).encode()
    failure = failures.of_status("p", status, {"retry-after": KEY}, body, KEY, 0)
    told = failure.message
    quarter = len(KEY) // 4 + 1
    assert KEY[:quarter] not in told
    assert KEY[-quarter:] not in told
    assert KEY[:quarter] not in failures.in_stream("p", body, KEY).message


@given(st.binary(max_size=300), st.integers(300, 599))
def test_any_body_is_a_failure(body: bytes, status: int) -> None:
    failure = failures.of_status("p", status, {}, body, KEY, 0)
    assert "\n" not in failure.message
    assert "\x1b" not in failure.message


# -- structured output


@each_of("schema", [{"type": "nothing"}, {"$ref": "http://127.0.0.1:1/x"}, {"pattern": "("}])
def test_a_wrong_schema_is_refused_before_anything_is_sent(schema: dict[str, Any]) -> None:
    with pytest.raises(Fault, match="EINVAL: schema: "):
        Schema(schema)


@each_of(
    ("text", "words"),
    [("no", "is not JSON"), ('{"a":"x"}', "a: "), ("{}", "the answer: "), ("", "is not JSON")],
)
def test_an_answer_that_does_not_fit(text: str, words: str) -> None:
    schema = Schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    schema.check('{"a":1}')
    with pytest.raises(Fault, match=words) as caught:
        schema.check(text)
    assert caught.value.code == "EBADMSG"


# -- the window


def history(count: int, first: int = 2) -> list[Message]:
    return [
        Message(
            id=str(first + 3 * n), role="assistant" if n % 2 else "user", content=[frames.Text("x" * 100)]
        )
        for n in range(count)
    ]


def test_what_fits_is_sent_whole() -> None:
    whole = history(10)
    assert PromptWindow(None, None).stable(whole) == whole
    assert PromptWindow(8192, 1000).room(600) == (8192 - 1000) * BYTES - 600
    assert PromptWindow(100, 1 << 30).room(1 << 20) == 0


def test_a_history_that_is_cut_begins_where_it_began_the_turns_before() -> None:
    # issue: "stable prefix so that providers' prompt caches hit"
    whole = history(400)
    beginnings = []
    for end in range(100, 400, 2):
        sent = PromptWindow(None, None).stable(whole[end - 60 : end])
        assert sent[0].role == "user"
        assert len(sent) >= 29
        beginnings.append(sent[0].id)
    changes = sum(a != b for a, b in itertools.pairwise(beginnings))
    assert changes < len(beginnings) / 5


def test_a_history_that_is_too_long_all_the_same_is_halved() -> None:
    window = PromptWindow(10_000, 1000)
    before = window.room(0)
    window.shrink(None)
    assert window.room(0) == before // 2
    window.shrink(2000)
    assert window.room(0) == (2000 - 1000) * BYTES // 2
