"""`plan`, `check` and `split`."""

import json

import numpy as np
import pytest

import evenkeel


def loads(layers=3, experts=32, seed=0):
    return np.random.default_rng(seed).lognormal(5, 1.0, (layers, experts)).round() + 1


def arrivals(before, after):
    """Experts on a rank that were not there, counted from two [layers][ranks][slots] arrays."""
    return sum(
        len(set(new.tolist()) - set(old.tolist()) - {-1})
        for old, new in zip(before.reshape(-1, before.shape[-1]), after.reshape(-1, after.shape[-1]))
    )


def test_from_scratch():
    plan = evenkeel.plan(loads(), ranks=8, slots=40)
    assert plan.slots.shape == (3, 8, 5) and plan.slots.dtype == np.int64
    assert plan.phy2log.shape == (3, 40)
    assert (plan.balancedness_after >= plan.balancedness_before).all()
    assert (plan.balancedness_after <= plan.bound + 1e-9).all()
    assert plan.gap >= -1e-9
    assert plan.moves == () and plan.reason is None
    assert evenkeel.check(plan.to_json()) == []
    same = evenkeel.plan(loads(), ranks=8, slots=40)
    assert same.to_json() == plan.to_json()


def test_from_a_live_map_the_moves_are_what_changed():
    first = evenkeel.plan(loads(), ranks=8, slots=40)
    drifted = loads() * np.exp(0.15 * np.random.default_rng(9).standard_normal((3, 32)))
    second = evenkeel.plan(drifted, ranks=8, slots=40, live=first)
    assert second.balancedness_after.mean() >= second.balancedness_before.mean()
    assert len(second.moves) == arrivals(first.slots, second.slots)
    for move in second.moves:
        assert second.slots[move.layer, move.target, move.slot] == move.expert
        held = np.append(first.slots[move.layer, move.source], second.slots[move.layer, move.source])
        assert move.expert in held
        assert move.gain > 0
    if second.moves:
        assert evenkeel.check(second.to_json(), first.to_json()) == []
    few = evenkeel.plan(drifted, ranks=8, slots=40, live=first.phy2log, moves_max=2)
    assert len(few.moves) <= 2
    enough = evenkeel.plan(drifted, ranks=8, slots=40, live=first, target_balancedness=0.01)
    assert enough.moves == () and enough.reason["reason"] == "already_balanced"


def test_a_target_is_met_with_fewer_moves():
    first = evenkeel.plan(loads(), ranks=8, slots=40)
    drifted = loads() * np.exp(0.3 * np.random.default_rng(4).standard_normal((3, 32)))
    full = evenkeel.plan(drifted, ranks=8, slots=40, live=first)
    target = float((full.balancedness_before.min() + full.balancedness_after.min()) / 2)
    some = evenkeel.plan(drifted, ranks=8, slots=40, live=first, target_balancedness=target)
    assert some.balancedness_after.min() >= target
    assert len(some.moves) < len(full.moves)


def test_dead_ranks_hold_nothing():
    plan = evenkeel.plan(loads(), ranks=8, slots=48, dead_ranks=[0, 5])
    assert (plan.slots[:, [0, 5]] == -1).all()
    assert all(set(layer[layer >= 0].tolist()) == set(range(32)) for layer in plan.phy2log)


def test_whole_groups():
    plan = evenkeel.plan(loads(2, 64), ranks=16, slots=80, nodes=4, groups=8)
    nodes = (plan.phy2log // 8).reshape(2, 4, -1)
    assert all(len(set(node[node >= 0].tolist())) == 2 for layer in nodes for node in layer)
    flat = evenkeel.plan(loads(2, 64), ranks=16, slots=80, nodes=4)
    assert flat.balancedness_after.mean() > plan.balancedness_after.mean()


def test_split_is_exact_and_beats_even_shares():
    weight = loads()
    plan = evenkeel.plan(weight, ranks=8, slots=40)
    drifted = weight * np.exp(0.3 * np.random.default_rng(1).standard_normal(weight.shape))
    found = evenkeel.split(plan, drifted)
    assert found.shares.shape == plan.slots.shape
    for layer in range(3):
        for expert in range(32):
            share = found.shares[layer][plan.slots[layer] == expert]
            assert share.sum() == pytest.approx(1.0)
    even = evenkeel.plan(drifted, ranks=8, slots=40, live=plan).balancedness_before
    assert (found.balancedness >= even - 1e-6).all()


def test_broken_maps_are_told():
    text = evenkeel.plan(loads(1, 8), ranks=2, slots=8).to_json()
    broken = json.loads(text)
    broken["slots"][0][0] = [0, 0, 0, 0]
    found = evenkeel.check(json.dumps(broken))
    assert any("twice" in sentence for sentence in found)
    assert any("no copy" in sentence for sentence in found)
    with pytest.raises(ValueError, match="schema"):
        evenkeel.check(text.replace("evenkeel.map/1", "evenkeel.map/9"))
    with pytest.raises(ValueError, match="map"):
        evenkeel.check("{}")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"ranks": 3}, "slots: 40, expected a multiple of the 3 ranks"),
        ({"nodes": 3}, "nodes: 3, expected a divisor"),
        ({"dead_ranks": [8]}, "dead_ranks: rank 8"),
        ({"dead_ranks": [0, 1, 2]}, "25 on living ranks for 32 experts: 7 missing"),
        ({"moves_max": 3}, "expected a live map"),
        ({"live": np.zeros((3, 39), int)}, "live: int64 of shape"),
        ({"live": np.full((3, 40), 99)}, "live: experts 99"),
        ({"live": np.zeros((3, 40), int)}, "law"),
        ({"live": np.arange(32)[None, :].repeat(2, 0)}, "layers"),
        ({"groups": 5}, "groups: 5"),
    ],
)
def test_faults_are_named(options, message):
    options = {"ranks": 8, "slots": 40, **options}
    with pytest.raises(ValueError, match=message):
        evenkeel.plan(loads(), **options)
