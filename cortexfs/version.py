"""The one place that knows the version; packaging and the runner's build read it from here."""

VERSION = "0.1.0"
