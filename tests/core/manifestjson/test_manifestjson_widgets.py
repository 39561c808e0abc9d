"""The config of widgets, which the reference of the manifest leaves open."""

from __future__ import annotations

from typing import Any

from tests.core.manifest_json import found


def test_the_config_of_a_widget_is_that_of_its_type() -> None:
    # abi.md 9.52
    def said(type_: str, **config: Any) -> list[tuple[str, str]]:
        widget = {"id": "w", "title": "W", "type": type_, "config": config}
        return found(capabilities=["ui:widget"], ui={"widgets": [widget]})

    source = {"source": {"tool": "count", "args": {"text": "x"}}, "refreshSeconds": 5}
    assert said("chart", kind="pie", labels=["a"], series=[{"label": "x", "data": [1, 2.5]}], **source) == []
    assert said("table", columns=[{"key": "a"}], rows=[{"a": None}], unknown=1, **source) == []
    assert said("html", html="<p>") == said("html", path="./ui/a.html") == []
    for type_, wrong in (
        ("chart", {"kind": "map"}),
        ("chart", {"series": [{"data": ["x"]}]}),
        ("chart", {"labels": "a"}),
        ("table", {"rows": [1]}),
        ("table", {"columns": [{"label": "a"}]}),
        ("table", {"source": {}}),
        ("table", {"refreshSeconds": 1}),
        ("html", {"html": 1}),
    ):
        assert said(type_, **wrong) == [("invalid_value", "ui.widgets[0].config")], wrong
    for path in ("../a.html", "/etc/passwd", "https://x/a.html", ""):
        assert said("html", path=path) == [("invalid_path", "ui.widgets[0].config.path")]
