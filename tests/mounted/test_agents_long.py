"""Long runs of agents, and the memory that they take. Quotes without a source are from docs/agents.md."""

from __future__ import annotations

from pathlib import Path

from tests.mounted.agents import agent, call, results, run, say, script
from tests.mounted.ctx_mount import mounted
from tests.mounted.test_agents_hostile import peak

STEPS = 50


def test_fifty_huge_steps_take_little_memory(python: Path) -> None:
    # issue 4: "50 steps"; "of a run's older steps the daemon itself keeps no more"
    huge = {"burst": 15, "size": 64 << 10}  # the model sends this MiB with each call
    steps = [[huge, call("fs.read", path=f"f{number}")] for number in range(STEPS)]
    with mounted(python, []) as ctx, agent(ctx, "wordy", "fs.*") as path:
        for number in range(STEPS):
            (ctx.work / f"f{number}").write_text("".join(f"line {n}\n" for n in range(100_000)))
        first = run(ctx, path, script(*steps[:3], say("on")))
        assert first.status == 0, first.message
        before = peak(ctx.pid)
        answer = run(ctx, path, script(*steps, say("done")))
        assert (answer.status, answer.output[-4:]) == (0, "done")
        assert len(results(answer.frames)) == STEPS
        assert peak(ctx.pid) - before < 24  # the model alone sends 50 MiB
