"""Trains a policy while samplers are killed and added. Prints how old the weights are that each sampler uses.

Runs the same training with Hoplite and, if Ray is installed, with plain Ray. README.md explains the columns.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from statistics import median
from typing import Any

import torch

from policy import Policy, improve

# Which samplers are added and killed, phase by phase, and the number of steps of a phase.
PHASES = ["+a +b", "-a", "+c +d", "-b -c", "+e"]
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60

# Of each sampler, for each rollout: versions and milliseconds by which its weights are behind those of the trainer.
Ages = dict[str, list[tuple[int, float]]]


def train(fleet: Any) -> Ages:
    """Trains until all phases are over. A phase lasts until each of its samplers has sent a rollout."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    ages: Ages = {}
    rewards: list[float] = []
    fleet.publish(policy, 1)
    published = [0.0, time.monotonic()]
    for phase in PHASES:
        for event in phase.split():
            (fleet.add if event[0] == "+" else fleet.kill)(event[1:])
        end = len(rewards) + STEPS
        while len(rewards) < end or not ages.keys() >= fleet.samplers.keys():
            for name, version, batch in fleet.rollouts():
                late = len(published) - 1 - version, 1000 * (time.monotonic() - published[version])
                ages.setdefault(name, []).append(late)
                rewards.append(improve(policy, optimizer, batch))
                fleet.publish(policy, len(published))
                published.append(time.monotonic())
    fleet.close()
    first, last = (sum(rewards[part]) / STEPS for part in (slice(STEPS), slice(-STEPS, None)))
    print(f"  {len(rewards)} steps; mean reward of the first {STEPS} is {first:.2f}, of the last {STEPS} {last:.2f}")
    return ages


def main() -> None:
    """Runs both ways and prints a row for each sampler."""
    columns = {}
    for title, module in (("Hoplite", "with_hoplite"), ("plain Ray", "plain_ray")):
        if module == "plain_ray" and importlib.util.find_spec("ray") is None:
            print("plain Ray\n  this column is missing: Ray is not installed")
            continue
        print(title, flush=True)
        columns[title] = train(importlib.import_module(module).Fleet())
    print("\nage of the weights of each rollout: median (and maximum) of versions, median of ms")
    print("sampler" + "".join(f"{title:>28}" for title in columns))
    for name in sorted(next(iter(columns.values()))):
        cells = [list(zip(*ages[name], strict=True)) for ages in columns.values()]
        print(f"{name:7}" + "".join(f"{median(v):>12.0f} ({max(v):3}) {median(ms):>7.1f} ms" for v, ms in cells))


if __name__ == "__main__":
    main()
