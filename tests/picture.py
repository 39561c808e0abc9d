"""Makes docs/pictures/terminal.svg of a real session: `python -m tests.picture`, with a mount."""

from __future__ import annotations

import io
import os
import subprocess
import sysconfig

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.places import PROJECT
from tests.waiting import until

PROGRAMS = sysconfig.get_path("scripts")
SIZE = (84, 24)
SAID = (
    "cd $CTX_ROOT; ls -d tool/fs.*[eh]",
    "tool/text.word_count 'every tool is a file'",
    "ls / | ctx ask -m debug/echo 'Which of these hold programs?' | head -3",
    "ctx agent new coder --preset code --model main",
    "ctx policy explain agent/coder fs.write | head -1",
    "cat tool/fs.write.d/effects",
)
END = "\u200b"  # the end of each prompt
# The frame of rich, without the fonts that it fetches from other hosts.
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px;
line-height: {line_height}px; }}
{styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}"
height="{terminal_height}"/></clipPath>{lines}</defs>{chrome}
<g transform="translate({terminal_x}, {terminal_y})"
clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def tmux(*words: str) -> str:
    command = ["tmux", "-L", "ctx-picture", "-f", "/dev/null", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def prompts(wanted: int) -> None:
    """Waits for so many prompts, which show that all commands before the last prompt have ended."""
    until(lambda: tmux("capture-pane", "-p").count(END), lambda seen: seen == wanted)


def session() -> str:
    """Returns the text of a terminal, with its colours, after the commands have run."""
    start = f"PS1='$ {END}' PATH={PROGRAMS}:$PATH exec sh"
    tmux("new-session", "-d", "-x", str(SIZE[0]), "-y", str(SIZE[1]), start)
    try:
        for number, line in enumerate(SAID, 1):
            prompts(number)
            tmux("send-keys", "-l", line)
            tmux("send-keys", "Enter")
        prompts(len(SAID) + 1)
        return (
            tmux("capture-pane", "-e", "-p")
            .replace(END, "")
            .replace(os.environ["CTX_ROOT"], "/ctx")
            .rstrip()
            .rstrip("$")
            .rstrip()
        )
    finally:
        tmux("kill-server")
        subprocess.run([f"{PROGRAMS}/ctx", "agent", "rm", "coder", "--yes"], capture_output=True)


def main() -> None:
    console = Console(record=True, width=SIZE[0], file=io.StringIO(), legacy_windows=False)
    console.print(Text.from_ansi(session()))
    svg = console.export_svg(title="ctx", theme=MONOKAI, code_format=FRAME, unique_id="ctx")
    (PROJECT / "docs/pictures/terminal.svg").write_text(svg)


if __name__ == "__main__":
    main()
