"""Untrusted text in places that people and programs read line by line."""

from __future__ import annotations

import functools
import logging
import re
import sys
import unicodedata

from cortexfs.cli.mount.serve import LONGEST, MOST, MOST_OF_ORIGIN, MOST_OF_ORIGINS, SECONDS, Sparing
from cortexfs.core import frames, safe_text, wire
from cortexfs.core.safe_text import escaped, one_line, prose
from cortexfs.core.talk import refusals
from cortexfs.run.output import TextVoice
from tests.waiting import SOAK

ESCAPES = "a\x1b]0;owned\x07b\x9bc\x7fd\u202ee\r"


def said(data: bytes) -> str:
    return b"".join(payload for _, payload in wire.Splitter().feed(data)).decode()


def test_a_terminal_is_told_nothing_by_messages() -> None:
    # abi.md 4.21
    text = said(TextVoice("t", True, True).end("error", "EIO", ESCAPES))
    assert text == "t: EIO: a\\x1b]0;owned\\x07b\\x9bc\\x7fd\\u202ee\n"
    text = said(TextVoice("t", True, True).say(frames.Progress(message=ESCAPES)))
    assert text.startswith("t: a\\x1b]0;")
    media = frames.Media(attachment={"media_type": "image", "url": "x\x1b[2J\ny"})
    assert said(TextVoice("t", True, True).say(media)) == "[image] x\\x1b[2J y\n"


def test_a_note_begins_a_line_at_a_terminal_and_what_is_not_whole_is_told_in_a_pipe() -> None:
    # models.md: "One that was cut at `max_tokens` is no failure"
    for is_terminal, told in ((True, "let me\nt: half\n"), (False, "let me")):
        voice = TextVoice("t", is_terminal, is_terminal)
        words = [voice.say(frames.Delta(text="let me")), voice.say(frames.Progress(message="half"))]
        early = said(voice.say(frames.Progress(message=refusals.CUT)))
        assert (said(b"".join(words)), early) == (told, f"t: {refusals.CUT}\n")


def test_a_picture_has_a_line_of_its_own() -> None:
    voice = TextVoice("t", False, False)
    picture = frames.Media(attachment={"media_type": "image", "url": "/p.png"})
    told = [voice.say(frames.Delta(text="look:")), voice.say(picture), voice.say(picture)]
    assert said(b"".join(told)) == "look:\n[image] /p.png\n[image] /p.png\n"


def test_tabs_lines_and_letters_stay() -> None:
    assert escaped("ä\tb\nc 日本") == "ä\tb\nc 日本"


# Characters of category Cf that are no Default_Ignorable_Code_Point, by the definition of that property.
VISIBLE_FORMAT = re.compile(
    "[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f]"
)
IGNORABLE_NAMES = re.compile("VARIATION SELECTOR|SEONG FILLER|HANGUL FILLER|VOWEL INHERENT|GRAPHEME JOINER")


@functools.cache
def of_kind() -> dict[str, list[str]]:
    """Returns characters by their category. In each of these ranges all are alike: letters of one script,
    surrogates, private ones, unassigned ones. Only `make soak` goes through all of them."""
    alike = [range(0x3400, 0x4DC0), range(0x4E00, 0xA000), range(0xAC00, 0xD7A4), range(0xD800, 0xF900)]
    alike += [range(0x14700, 0x16800), range(0x17000, 0x1B000), range(0x20000, sys.maxunicode + 1)]
    some = [number for signs in alike for number in signs[:: 1 if SOAK else 256]]
    special = {*range(0x20000)}.difference(*alike).union(range(0xE0000, 0xE1000))  # tags
    kinds: dict[str, list[str]] = {}
    for number in {*some, *special, sys.maxunicode}:
        kinds.setdefault(unicodedata.category(chr(number)), []).append(chr(number))
    return kinds


def test_the_table_of_ignorable_characters_is_what_unicode_knows() -> None:
    # issue: "format characters (category Cf) and all of Default_Ignorable_Code_Point"
    never: set[str] = set()
    others: set[str] = set()
    for kind, chars in of_kind().items():
        if kind == "Cf":
            never |= {char for char in chars if not VISIBLE_FORMAT.match(char)}
        elif kind != "Cn":
            named = {char for char in chars if IGNORABLE_NAMES.search(unicodedata.name(char, ""))}
            never |= named
            others |= {*chars} - named
    assert {*re.findall(safe_text._NEVER, "".join(never))} == never
    assert re.findall(safe_text._NEVER, "".join(others)) == []


def test_what_shows_nothing_or_another_text_is_escaped() -> None:
    # the module: "It passes no character that can be taken for another"
    for kind in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        chars = [char for char in of_kind()[kind] if char not in "\t\n"]
        # each character after a letter, and all in one text: a call for each would take a second
        assert escaped("a".join(["", *chars])) == "".join(f"a{ascii(char)[1:-1]}" for char in chars)


def test_a_mark_stays_on_its_letter_alone() -> None:
    assert escaped("e\u0301 \u0939\u093f") == "e\u0301 \u0939\u093f"
    assert escaped("=\u0338 \u0301\n\u0301\u200b\u0301") == "=\\u0338 \\u0301\n\\u0301\\u200b\\u0301"


def test_no_mark_strikes_a_letter_out_or_hides_the_lines_around_it() -> None:
    # security.md: "with no text hidden, reversed or struck out"
    assert escaped("r\u0336m\u0338 \u044f\u20dd x\u0489") == "r\\u0336m\\u0338 \u044f\\u20dd x\\u0489"
    kept = "\u05e9" + "\u05c1\u05bc\u05b8\u0591"  # the most that a language has
    assert escaped(kept) == kept
    assert escaped(f"a{kept[1:]}\u0301\u0301b\u0301") == f"a{kept[1:]}\\u0301\\u0301b\u0301"


def test_what_only_looks_like_a_space_is_escaped() -> None:
    assert escaped("rm\u2800-r\U0001d159/") == "rm\\u2800-r\\U0001d159/"
    assert prose("\u2813\u2800\u2813") == "\u2813\u2800\u2813"  # Braille is made of these


def test_prose_keeps_what_words_and_emoji_need() -> None:
    kept = "\u2764\ufe0f \U0001f469\u200d\U0001f4bb \u0645\u06cc\u200c\u062e a\u00a0! \u0301"
    assert prose(kept) == kept
    assert prose("a\u202eb\u200bc\U000e0041\x1b") == "a\\u202eb\\u200bc\\U000e0041\\x1b"


def test_output_is_the_tools_own() -> None:
    # ctx.md: "`CTX_OUTPUT=text /ctx/tool/fs.read a > b` makes an exact copy"
    assert said(TextVoice("t", True, True).say(frames.Delta(text=ESCAPES))) == ESCAPES


def test_one_line_is_one_line() -> None:
    # ctx.md: status is "`key: value` lines"
    assert one_line("broken\npid: 1\x1b\u2028") == "broken pid: 1\\x1b"
    assert len(one_line("x" * 10_000)) == 1000


def record(line: int, at: float, origin: int | None = None) -> logging.LogRecord:
    made = logging.LogRecord("n", logging.INFO, "file.py", line, "said %s", ("it",), None)
    made.created = at
    if origin is not None:
        made.origin = origin
    return made


def test_nobody_fills_the_log() -> None:
    spare = Sparing()
    kept = [one for one in (record(1, 10.0 + n) for n in range(MOST * 3)) if spare.filter(one)]
    assert len(kept) == MOST
    assert kept[0].getMessage() == "said it"
    assert "further messages like this are dropped" in kept[-1].getMessage()
    assert spare.filter(record(2, 50.0))  # a message from another line of code
    assert spare.filter(record(1, 11.0 + SECONDS))  # after SECONDS have passed


def test_nobody_writes_a_long_line_to_the_log() -> None:
    # A control has up to 64 KiB, and the log quotes a line that is refused.
    long = record(1, 10.0)
    long.args = ("x%s" * (64 << 10),)
    assert Sparing().filter(long)
    assert len(long.getMessage()) < LONGEST + 50
    assert long.getMessage().startswith("said x%sx%s")


def test_a_noisy_plugin_does_not_silence_others() -> None:
    spare = Sparing()
    kept = [one for one in (record(1, 10.0, 7) for _ in range(MOST_OF_ORIGIN * 2)) if spare.filter(one)]
    assert len(kept) == MOST_OF_ORIGIN
    assert kept[0].getMessage() == "said it"
    assert "further messages like this are dropped, for 10 minutes" in kept[-1].getMessage()
    assert spare.filter(record(1, 10.0, 8))
    others = [spare.filter(record(1, 10.0, 9 + n)) for n in range(MOST_OF_ORIGINS)]
    assert others.count(True) == MOST_OF_ORIGINS - MOST_OF_ORIGIN - 1  # all of them together have a limit
