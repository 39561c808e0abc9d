"""The config of a widget, which the manifest's reference leaves open (docs/manifest-json.md, Widgets).

    of(widget)      its config as one of the structs below; ValueError with the path of a wrong value

Rules: every key is optional, so a widget with an empty config shows nothing. An unknown key is ignored, as
everywhere in a manifest.
This file must never know how a widget is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from cortexfs.core.jsontext import shown
from cortexfs.core.manifestjson import entry
from cortexfs.core.manifestjson.fields import JsonManifest, ManifestPart, Widget
from cortexfs.core.manifestjson.problems import Problem

SOONEST = 5  # seconds between two calls of a source
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=SOONEST)]


class WidgetSource(ManifestPart, frozen=True):
    """A tool of the same plugin, whose output is JSON."""

    tool: str
    args: dict[str, Any] = msgspec.field(default_factory=dict)


class HtmlWidget(ManifestPart, frozen=True):
    html: str | None = None
    path: str | None = None  # relative to the manifest, as htmlPath of a panel is


class TableColumn(ManifestPart, frozen=True):
    key: str
    label: str | None = None


class TableWidget(ManifestPart, frozen=True):
    columns: tuple[TableColumn, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    source: WidgetSource | None = None  # the keys in its output replace those of the config
    refresh_seconds: Seconds | None = None


class ChartSeries(ManifestPart, frozen=True):
    data: tuple[float, ...]
    label: str = ""


class ChartWidget(ManifestPart, frozen=True):
    kind: Literal["line", "bar", "pie"] = "bar"
    labels: tuple[str, ...] = ()
    series: tuple[ChartSeries, ...] = ()
    source: WidgetSource | None = None
    refresh_seconds: Seconds | None = None


WidgetConfig: TypeAlias = HtmlWidget | TableWidget | ChartWidget
TYPES: dict[str, type[WidgetConfig]] = {"html": HtmlWidget, "table": TableWidget, "chart": ChartWidget}


def of(widget: Widget) -> WidgetConfig:
    return msgspec.convert(widget.config, TYPES[widget.type])


def page_of(widget: Widget) -> str | None:
    """Returns the path of the page that the widget shows, if that is a file of the plugin."""
    config = of(widget)
    return config.path if isinstance(config, HtmlWidget) else None


def problems(manifest: JsonManifest) -> Iterator[Problem]:
    for index, widget in enumerate(manifest.ui.widgets):
        path = f"ui.widgets[{index}].config"
        try:
            file = page_of(widget)
        except msgspec.ValidationError as error:
            yield Problem("invalid_value", path, str(error), f"see docs/manifest-json.md for a {widget.type}")
            continue
        if file is not None and not entry.inside(file):
            fault = f"{shown(file)} is no file of the package"
            yield Problem("invalid_path", f"{path}.path", fault, "write a path relative to the manifest")
