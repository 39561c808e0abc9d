"""The one place that knows the version; packaging and the runner's build read it from here."""

VERSION = "0.1.0"
SCRIPT_VERSION = "1.0.0+script"  # of the plugin that a copy of a script is
