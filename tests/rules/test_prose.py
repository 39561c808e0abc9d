"""How comments, docstrings and pages are written (docs/contributing.md, "Words")."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.places import PROJECT
from tests.source import definitions

MOST_WORDS = 30
COLUMNS = 100
# A docstring begins with a name for the thing, or with "Returns True if", instead.
NO_BEGINNING = ("What", "Whether", "Who", "Which", "Whose")
CODE = re.compile("`[^`]*`")
SENTENCE = re.compile(r"(?<=[.:;?!])\s+")


def docstrings() -> Iterator[tuple[str, str]]:
    """Yields each docstring of the package with its place."""
    for path in (PROJECT / "cortexfs").rglob("*.py"):
        for node in definitions(ast.parse(path.read_text())):
            if text := ast.get_docstring(node):
                yield f"{path.relative_to(PROJECT)}:{getattr(node, 'name', '')}", text


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of a docstring, without its examples."""
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    for paragraph in prose.split("\n\n"):
        yield from SENTENCE.split(" ".join(paragraph.split()))


def test_docstrings_name_the_thing_in_short_sentences() -> None:
    places = 0
    for place, text in docstrings():
        places += 1
        assert text.split()[0].strip(",.") not in NO_BEGINNING, f"{place}: {text}"
        for sentence in sentences(text):
            assert len(sentence.split()) <= MOST_WORDS, f"{place}: {sentence}"
    assert places > 2000


def test_pages_are_wrapped() -> None:
    pages = [PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")]
    assert len(pages) > 10
    for page in pages:
        is_code = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                is_code = not is_code
            words = CODE.sub("", line).split()  # code is not broken
            is_prose = not is_code and len(words) > 2 and not line.startswith(("|", "    "))
            assert not is_prose or len(line) <= COLUMNS, f"{page.relative_to(PROJECT)}:{number}: {line}"


def test_blocks_keep_the_variables_of_zsh() -> None:
    # There `path` is PATH, and `status` cannot be set.
    for page in [PROJECT / "README.md", *(PROJECT / "docs").glob("t*.md")]:
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            assert not re.search(r"\bfor (path|status)\b|(^|[;& ])(path|status)=", block), page.name


def test_each_page_is_named_and_there() -> None:
    named = re.findall(
        r"^\| \[docs/([a-z-]+\.md)\]\(docs/(.*?)\) \|", (PROJECT / "README.md").read_text(), re.MULTILINE
    )
    assert all(shown == page for shown, page in named)
    assert sorted(page for page, _ in named) == sorted(path.name for path in (PROJECT / "docs").glob("*.md"))


def test_each_link_leads_to_a_file_and_a_heading() -> None:
    links = 0
    for page in (PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")):
        for target, place in re.findall(r"\]\(([^)#:\s]*)#?([^):\s]*)\)", CODE.sub("", page.read_text())):
            links += 1
            file = page.parent / target if target else page
            assert file.is_file(), f"{page.name}: {target}"
            if place:
                lines = [line for line in file.read_text().splitlines() if line.startswith("#")]
                heads = {
                    re.sub(r"[^\w\- ]", "", line.lstrip("# ")).lower().replace(" ", "-") for line in lines
                }
                assert place in heads, f"{page.name}: {target}#{place}"
    assert links > 100
