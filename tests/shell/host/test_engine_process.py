"""The engine's process: its error message on systems where it cannot run."""

from __future__ import annotations

import importlib

import pytest

from cortexfs.core.models.engine_protocol import LoadRequest
from cortexfs.host import engine_process

LOAD = LoadRequest(weights="/none.gguf", name="my/model", context=1, streams=1, threads=1, key="k")


@pytest.mark.parametrize(
    ("problem", "mend"),
    [
        ("libgomp.so.1: cannot open shared object file", "let root run: apt-get install libgomp1"),
        ("No module named 'xllamacpp'", "see: ctx provider add-local"),
    ],
)
def test_what_cannot_be_imported_names_its_remedy(
    problem: str, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise ImportError(problem)

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(engine_process.Unusable) as failed:
        engine_process._serve(LOAD)
    assert str(failed.value) == f"xllamacpp cannot be imported: {problem}; {mend}"
