"""The only place of the version; packaging and the runner's build read it here."""

VERSION = "0.1.0"
SCRIPT_VERSION = "1.0.0+script"  # of a plugin that is the copy of a script
