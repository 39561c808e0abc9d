"""What is done at the end of a thread's work, and whose an error is."""

from __future__ import annotations

import threading

import pytest
import trio

from cortexfs.threads import at_once


async def test_what_follows_is_done_on_the_loop_s_thread_before_the_caller_goes_on() -> None:
    threads: list[threading.Thread] = []
    await at_once(
        lambda: threads.append(threading.current_thread()), lambda: threads.append(threading.current_thread())
    )
    assert threads[0] is not threads[1]
    assert threads[1] is threading.current_thread()


@pytest.mark.parametrize("fails", ["the work", "what follows"])
async def test_an_error_is_the_caller_s_and_the_loop_goes_on(fails: str) -> None:
    done: list[str] = []

    def do(what: str) -> None:
        done.append(what)
        if what == fails:
            raise OSError(what)

    with pytest.raises(OSError, match=fails):
        await at_once(lambda: do("the work"), lambda: do("what follows"))
    assert done[-1] == fails  # nothing follows on work that failed
    await trio.lowlevel.checkpoint()
