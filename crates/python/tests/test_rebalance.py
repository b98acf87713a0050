"""`rebalance_experts`: DeepSeek's form, and the laws that its tables keep."""

import numpy as np
import pytest

import evenkeel

SHAPES = [  # layers, experts, replicas, groups, nodes, ranks
    (2, 12, 16, 4, 2, 8),
    (3, 32, 40, 1, 1, 8),
    (2, 64, 80, 8, 4, 16),
    (2, 64, 64, 1, 1, 8),
    (1, 8, 16, 3 - 2, 1, 8),
    (2, 16, 24, 4, 3, 12),  # groups that do not divide: global
    (1, 2, 8, 1, 1, 2),  # more slots on a rank than experts
]


def loads(layers, experts, seed):
    return np.random.default_rng(seed).lognormal(5, 1.2, (layers, experts)).round() + 1


def balance(phy2log, logcnt, weight, ranks):
    """Mean / largest rank per layer, even split; written from the definition."""
    found = []
    for slots, counts, row in zip(phy2log, logcnt, weight):
        per_rank = (row[slots] / counts[slots]).reshape(ranks, -1).sum(axis=1)
        found.append(per_rank.mean() / per_rank.max())
    return np.array(found)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_tables_agree(shape, seed):
    layers, experts, replicas, groups, nodes, ranks = shape
    weight = loads(layers, experts, seed)
    phy2log, log2phy, logcnt = evenkeel.rebalance_experts(weight, replicas, groups, nodes, ranks)
    assert phy2log.shape == (layers, replicas)
    assert logcnt.shape == (layers, experts)
    assert log2phy.shape == (layers, experts, logcnt.max())
    assert {phy2log.dtype, log2phy.dtype, logcnt.dtype} == {np.dtype(np.int64)}
    assert phy2log.flags.writeable and phy2log.flags.c_contiguous
    for layer in range(layers):
        assert np.array_equal(np.bincount(phy2log[layer], minlength=experts), logcnt[layer])
        assert logcnt[layer].min() >= 1
        for expert in range(experts):
            row = log2phy[layer, expert]
            slots = row[: logcnt[layer, expert]]
            assert (row[logcnt[layer, expert] :] == -1).all()
            assert (phy2log[layer, slots] == expert).all()
            assert len(set(slots.tolist())) == len(slots)
    if replicas // ranks <= experts:
        for held in phy2log.reshape(layers * ranks, -1):
            assert len(set(held.tolist())) == len(held), "two copies on a rank"


def test_groups_stay_on_a_node():
    layers, experts, groups, nodes, ranks = 3, 64, 8, 4, 16
    weight = loads(layers, experts, 9)
    phy2log, _, _ = evenkeel.rebalance_experts(weight, 80, groups, nodes, ranks)
    group_of = phy2log // (experts // groups)
    per_node = group_of.reshape(layers, nodes, -1)
    for layer in per_node:
        held = [set(node.tolist()) for node in layer]
        assert all(len(node) == groups // nodes for node in held)
        assert set().union(*held) == set(range(groups))


def test_published_example_is_balanced_better_than_published():
    weight = [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ]
    phy2log, _, logcnt = evenkeel.rebalance_experts(weight, 16, 4, 2, 8)
    assert balance(phy2log, logcnt, np.array(weight), 8).mean() >= 0.8164 - 1e-4
    phy2log, _, logcnt = evenkeel.rebalance_experts(weight, 16, 1, 1, 8)
    assert balance(phy2log, logcnt, np.array(weight), 8).mean() >= 0.87


def test_equal_in_any_number_type_and_scale():
    weight = loads(2, 32, 3)
    expected = evenkeel.rebalance_experts(weight, 40, 1, 1, 8)[0]
    for same in (weight.astype(np.float32), weight.astype(np.int64), weight.astype(int).tolist()):
        assert np.array_equal(evenkeel.rebalance_experts(same, 40, 1, 1, 8)[0], expected)
    fortran = np.asfortranarray(weight)
    assert np.array_equal(evenkeel.rebalance_experts(fortran, 40, 1, 1, 8)[0], expected)
    shares = weight / weight.sum(axis=1, keepdims=True)
    phy2log, _, logcnt = evenkeel.rebalance_experts(shares, 40, 1, 1, 8)
    assert balance(phy2log, logcnt, weight, 8).min() > 0.95


def test_zero_loads_spread():
    _, _, logcnt = evenkeel.rebalance_experts(np.zeros((1, 256)), 288, 1, 1, 32)
    assert logcnt.max() <= 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((np.ones((1, 8)), 9, 1, 1, 8), "num_gpus: 8, expected a divisor of num_replicas"),
        ((np.ones((1, 8)), 16, 1, 3, 8), "num_nodes: 3, expected a divisor of num_gpus"),
        ((np.ones((1, 8)), 16, 3, 1, 8), "num_groups: 3, expected a divisor of experts"),
        ((np.ones((1, 8)), 4, 1, 1, 4), "4 slots for 8 experts"),
        ((np.ones(8), 16, 1, 1, 8), r"shape \(8,\), expected \[layers\]\[experts\]"),
        ((np.ones((0, 8)), 16, 1, 1, 8), "at least 1 each"),
        ((np.array([[1.0, np.nan]]), 2, 1, 1, 1), "layer 0, expert 1 is NaN"),
        ((np.array([[1.0, 2.0], [-1, 1]]), 2, 1, 1, 1), "layer 1, expert 0 is -1"),
        ((np.ones((1, 8)), 16, 1, 1, 0), "num_gpus: 0, expected a whole number"),
        ((np.ones((1, 8)), 16.0, 1, 1, 8), "num_replicas: 16.0, expected a whole number"),
        (([["a"]], 1, 1, 1, 1), "weight: .*expected numbers"),
    ],
)
def test_faults_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        evenkeel.rebalance_experts(*arguments)


def test_tensors_give_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weight = loads(2, 32, 1)
    expected = evenkeel.rebalance_experts(weight, 40, 1, 1, 8)
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.float64):
        found = evenkeel.rebalance_experts(torch.tensor(weight).to(dtype), 40, 1, 1, 8)
        assert all(isinstance(table, torch.Tensor) for table in found)
        assert all(table.dtype == torch.int64 for table in found)
        if dtype != torch.bfloat16:
            assert all(np.array_equal(t.numpy(), e) for t, e in zip(found, expected))


def test_other_threads_run_meanwhile():
    """The interpreter is released: a counter moves on while a plan is made."""
    import threading

    done = threading.Event()
    weight = loads(24, 256, 5)

    def work():
        evenkeel.rebalance_experts(weight, 288, 1, 1, 32)
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    ticks = 0
    while not done.wait(0.0005):
        ticks += 1
    worker.join()
    assert ticks > 0
