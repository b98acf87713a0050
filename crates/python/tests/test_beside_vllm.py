"""The drop-in beside vLLM's policy class from its wheel, on the bundled problems.

Needs torch and the wheel's policy files: `python tools/plan_peers.py --install FOLDER` makes an
environment with both. Skipped elsewhere.
"""

import json
import pathlib

import numpy as np
import pytest

import evenkeel

torch = pytest.importorskip("torch", reason="torch is not installed")
policy = pytest.importorskip(
    "vllm.distributed.eplb.policy.default", reason="vLLM's policy is not installed"
).DefaultEplbPolicy

FOLDER = pathlib.Path(__file__).parents[3] / "assets" / "plan-problems"
PROBLEMS = json.loads((FOLDER / "problems.json").read_text())


def balance(phy2log, weight, ranks):
    found = []
    for slots, row in zip(phy2log, weight):
        counts = np.bincount(slots, minlength=len(row))
        per_rank = (row[slots] / counts[slots]).reshape(ranks, -1).sum(axis=1)
        found.append(per_rank.mean() / per_rank.max())
    return float(np.mean(found))


@pytest.mark.parametrize("name", sorted(PROBLEMS))
@pytest.mark.parametrize("hierarchical", [False, True])
def test_balanced_at_least_as_well(name, hierarchical):
    problem = PROBLEMS[name]
    weight = np.load(FOLDER / "problems.npz")[name].astype(np.float64)
    groups, nodes = (problem["groups"], problem["nodes"]) if hierarchical else (1, 1)
    arguments = (problem["slots"], groups, nodes, problem["ranks"])
    theirs = policy.rebalance_experts(torch.from_numpy(weight), *arguments)
    ours, log2phy, logcnt = evenkeel.rebalance_experts(torch.from_numpy(weight), *arguments)
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert int(logcnt.sum()) == ours.numel() and log2phy.shape[-1] == int(logcnt.max())
    ranks = problem["ranks"]
    assert balance(ours.numpy(), weight, ranks) >= balance(theirs.numpy(), weight, ranks)
