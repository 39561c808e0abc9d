"""A provider's own words about a failure, which are passed on."""

from __future__ import annotations

import json
from typing import Any

from cortexfs.models.exchange import failures
from tests.tables import each_of

DETAIL = [{"loc": ["body", "messages", 0], "msg": "field required", "type": "value_error"}, {"loc": 1}]
JSON = "application/json"
NO_STREAM = "p answered with application/json, not with a stream of events; is its base_url right?"


@each_of(
    ("body", "words"),
    [
        ({"detail": DETAIL}, "body.messages.0: field required"),
        (
            {"detail": [DETAIL[0], DETAIL[0]]},
            "body.messages.0: field required; body.messages.0: field required",
        ),
        ({"detail": "not now"}, "not now"),
        ({"detail": [1, {"msg": "x"}]}, ""),
        ({"error": {"message": "overloaded"}, "detail": DETAIL}, "overloaded"),
    ],
)
def test_the_words_of_a_refusal(body: Any, words: str) -> None:
    # abi.md 8.53
    told = failures.of_status("p", 422, {}, json.dumps(body).encode(), "", 0).message
    assert told == "p refuses the request (422)" + (f": {words}" if words else "")


@each_of(
    ("body", "code", "message", "again"),
    [
        ({"error": {"message": "overloaded", "code": 529}}, "EREMOTEIO", "p failed (529): overloaded", True),
        ({"error": "overloaded"}, "EREMOTEIO", "p failed: overloaded", True),
        ({"error": {"message": "no", "code": 400}}, "EINVAL", "p refuses the request (400): no", False),
        ({"error": None, "choices": []}, "EREMOTEIO", NO_STREAM, False),
        ([], "EREMOTEIO", NO_STREAM, False),
    ],
)
def test_an_error_that_comes_as_a_success(body: Any, code: str, message: str, again: bool) -> None:
    # abi.md 8.53
    said = failures.no_stream("p", JSON, json.dumps(body).encode(), "")
    assert (said.code, said.message, said.again) == (code, message, again)


def test_the_command_about_a_model_that_is_not_there_can_be_copied() -> None:
    why = "p does not know this model or address (404); see which models it has: ctx provider models p"
    assert failures.of_status("p", 404, {}, b"", "", 0).message == why
    told = failures.of_status("p", 404, {}, b'{"detail":"no such model"}', "", 0).message
    assert told == f"{why}; it says: no such model"
