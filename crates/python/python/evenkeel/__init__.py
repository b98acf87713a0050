"""Placement of Mixture-of-Experts experts under expert parallelism.

`rebalance_experts` stands in for DeepSeek's EPLB function of the same name: same arguments, same
three tables. `plan` says more and asks for less: it can start from the map in force, names each
move with its source, and prints the bound that no map can beat. `check` and `split` judge and use
a map. Loads are tokens (or any number in proportion to them) per layer and logical expert; a
*slot* is a physical place for one expert's weights, slots are numbered rank by rank.

NumPy arrays go in and come out. A torch tensor may go in; `rebalance_experts` then returns CPU
tensors, as DeepSeek's function does. torch is never imported unless a tensor came in. While a plan
is made, other Python threads run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Optional, Sequence

import numpy as np

from . import _native

__all__ = ["Move", "Plan", "Split", "check", "plan", "rebalance_experts", "split"]


@dataclass(frozen=True)
class Move:
    """One copy of an expert that arrives on a rank."""

    #: MoE layer, from 0.
    layer: int
    #: Logical expert.
    expert: int
    #: Rank that holds the expert in the map in force, of the target's node where one does; -1 where
    #: only dead ranks held it.
    source: int
    #: Rank that gets it.
    target: int
    #: Slot of that rank, from 0.
    slot: int
    #: Load that the fullest rank of the layer loses by it, in units of `weight`; the moves of a
    #: layer share it equally.
    gain: float


@dataclass(frozen=True, eq=False)
class Plan:
    """A map with what it gains, what it costs and what no map can beat."""

    #: int64 `[layers][ranks][slots per rank]`: logical expert, -1 for an empty slot.
    slots: np.ndarray
    #: float64 `[layers]`: mean ÷ largest load of a rank, even split, map in force (the engines'
    #: start map where none was given).
    balancedness_before: np.ndarray
    #: float64 `[layers]`: the same, planned map.
    balancedness_after: np.ndarray
    #: float64 `[layers]`: balancedness that no map with these slots can beat.
    bound: np.ndarray
    #: Copies that arrive, best gain first; empty where no map in force was given.
    moves: tuple[Move, ...]
    #: Why nothing is to be done, e.g. ``{"reason": "already_balanced", …}``; `None` otherwise.
    reason: Optional[dict[str, Any]]
    _map: str

    @property
    def phy2log(self) -> np.ndarray:
        """int64 `[layers][slots]`: the map in DeepSeek's form, -1 for an empty slot."""
        return self.slots.reshape(self.slots.shape[0], -1)

    @property
    def gap(self) -> float:
        """Mean over layers of bound ÷ balancedness - 1: what is left to gain, at most."""
        return float(np.mean(self.bound / self.balancedness_after) - 1.0)

    def to_json(self) -> str:
        """The map as an `evenkeel.map/1` file, for the command line and for `check`."""
        return self._map


@dataclass(frozen=True, eq=False)
class Split:
    """Which share of an expert's tokens each slot takes."""

    #: float64 `[layers][ranks][slots per rank]`: share of its expert's tokens, 0 for empty slots.
    shares: np.ndarray
    #: float64 `[layers]`: mean ÷ largest load of a rank under these shares.
    balancedness: np.ndarray


def rebalance_experts(
    weight: Any, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int
) -> tuple[Any, Any, Any]:
    """Place experts from scratch; arguments and results of DeepSeek's `rebalance_experts`.

    Where `num_groups` is a multiple of `num_nodes` (and there is more than one group), groups of
    consecutive experts stay whole on a node, as theirs do; otherwise any expert may go anywhere.
    Unlike theirs, no rank gets two copies of an expert unless it has more slots than experts.

    Args:
        weight: `[layers][experts]` loads, finite and not negative; NumPy array, nested list or
            torch tensor of any number type.
        num_replicas: slots over all ranks, a multiple of `num_gpus`.
        num_groups: expert groups, a divisor of the experts.
        num_nodes: nodes, a divisor of `num_gpus`.
        num_gpus: ranks.

    Returns:
        `phy2log` `[layers][num_replicas]`, the logical expert of each slot; `log2phy`
        `[layers][experts][X]`, the slots of each expert, padded with -1 up to the most copies of
        any expert; `logcnt` `[layers][experts]`, copies of each expert. All int64; CPU torch
        tensors where `weight` is a tensor.

    Raises:
        ValueError: names the argument, layer or expert, and what was expected.
    """
    array, torch = _loads(weight)
    layers, experts = array.shape
    _positive(
        num_replicas=num_replicas, num_groups=num_groups, num_nodes=num_nodes, num_gpus=num_gpus
    )
    _divides("num_gpus", num_gpus, "num_replicas", num_replicas)
    _divides("num_nodes", num_nodes, "num_gpus", num_gpus)
    _divides("num_groups", num_groups, "experts of weight", experts)
    if num_replicas < experts:
        raise ValueError(
            f"num_replicas: {num_replicas} slots for {experts} experts, expected at least {experts}"
        )
    phy2log, log2phy, logcnt, most = _native.rebalance(
        array.tobytes(), layers, experts, num_replicas, num_groups, num_nodes, num_gpus
    )
    tables = (
        _int64(phy2log, layers, num_replicas),
        _int64(log2phy, layers, experts, most),
        _int64(logcnt, layers, experts),
    )
    return tuple(torch.from_numpy(table) for table in tables) if torch else tables


def plan(
    weight: Any,
    *,
    ranks: int,
    slots: int,
    nodes: int = 1,
    groups: Optional[int] = None,
    live: Any = None,
    dead_ranks: Sequence[int] = (),
    moves_max: Optional[int] = None,
    target_balancedness: Optional[float] = None,
) -> Plan:
    """Plan a map, from the map in force where one is given.

    Args:
        weight: `[layers][experts]` loads, as for `rebalance_experts`.
        ranks: ranks, contiguous over the nodes.
        slots: slots over all ranks, a multiple of `ranks`.
        nodes: nodes, a divisor of `ranks`.
        groups: keep so many groups of consecutive experts whole on a node.
        live: the map in force: a `Plan`, the text of a map file, or `[layers][slots]` logical
            experts (-1: empty). `None`: plan from scratch.
        dead_ranks: ranks that hold nothing and give nothing.
        moves_max: most copies that may move; needs `live`.
        target_balancedness: leave layers alone that are balanced so well already, and move no more
            in the others than it takes to get there; needs `live`. `None`: nearly the mean.

    Raises:
        ValueError: names the argument, layer, rank or expert, and what was expected.
    """
    array, _ = _loads(weight)
    layers, experts = array.shape
    _positive(ranks=ranks, slots=slots, nodes=nodes)
    if live is None and (moves_max is not None or target_balancedness is not None):
        raise ValueError("moves_max, target_balancedness: expected a live map to move from")
    answer = json.loads(
        _native.plan(
            array.tobytes(),
            layers,
            experts,
            ranks,
            slots,
            nodes,
            groups,
            None if live is None else _map_text(live, experts, ranks),
            [int(rank) for rank in dead_ranks],
            moves_max,
            target_balancedness,
        )
    )
    held = [
        [[-1 if slot is None else slot for slot in rank] for rank in layer]
        for layer in answer["slots"]
    ]
    return Plan(
        slots=_ragged(held, layers, ranks),
        balancedness_before=np.asarray(answer["balancedness_before"], dtype=np.float64),
        balancedness_after=np.asarray(answer["balancedness_after"], dtype=np.float64),
        bound=np.asarray(answer["bound"], dtype=np.float64),
        moves=tuple(Move(**move) for move in answer["moves"]),
        reason=answer["reason"],
        _map=answer["map"],
    )


def check(map_json: str, live_json: Optional[str] = None) -> list[str]:
    """Laws that a map breaks, one sentence each; empty where it keeps them all.

    Every expert needs a copy, no rank two of one expert, no slot an expert that does not exist;
    with `live_json`, the map has to be the live one's child.

    Args:
        map_json: text of a map file (`evenkeel.map/1`), e.g. `Plan.to_json()`.
        live_json: text of the map in force.

    Raises:
        ValueError: where a text is no map.
    """
    return _native.check(map_json, live_json)


def split(map_json: Any, weight: Any) -> Split:
    """Split each expert's tokens over its copies so that the fullest rank has least: exact.

    A new split moves no weights. Under equal optima the next fullest rank decides, and so on.

    Args:
        map_json: a `Plan` or the text of a map file.
        weight: `[layers][experts]` loads, as for `rebalance_experts`.

    Raises:
        ValueError: where the map does not fit the loads, or an expert has no copy.
    """
    array, _ = _loads(weight)
    layers, experts = array.shape
    text = map_json.to_json() if isinstance(map_json, Plan) else map_json
    shares, loads, ranks, per_rank = _native.split(text, array.tobytes(), layers, experts)
    shares = np.frombuffer(shares, dtype="<f8").reshape(layers, ranks, per_rank).copy()
    loads = np.frombuffer(loads, dtype="<f8").reshape(layers, ranks)
    most = loads.max(axis=1)
    mean = loads.mean(axis=1)
    balancedness = np.divide(mean, most, out=np.ones(layers), where=most > 0)
    return Split(shares=shares, balancedness=balancedness)


def _loads(weight: Any) -> tuple[np.ndarray, Any]:
    """`weight` as contiguous float64 `[layers][experts]`, and torch where it is a tensor."""
    torch = None
    if type(weight).__module__.partition(".")[0] == "torch" and hasattr(weight, "detach"):
        import torch

        weight = weight.detach().to(device="cpu", dtype=torch.float64).numpy()
    try:
        array = np.ascontiguousarray(weight, dtype="<f8")
    except (TypeError, ValueError) as error:
        raise ValueError(f"weight: {error}, expected numbers [layers][experts]") from None
    if np.ndim(weight) != 2 or 0 in array.shape:
        raise ValueError(
            f"weight: shape {tuple(np.shape(weight))}, expected [layers][experts], at least 1 each"
        )
    return array, torch


def _positive(**arguments: int) -> None:
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"{name}: {value!r}, expected a whole number of at least 1")


def _divides(part: str, divisor: int, whole: str, value: int) -> None:
    if value % divisor:
        raise ValueError(f"{part}: {divisor}, expected a divisor of {whole} ({value})")


def _int64(raw: bytes, *shape: int) -> np.ndarray:
    return np.frombuffer(raw, dtype="<i8").reshape(shape).copy()


def _ragged(held: list, layers: int, ranks: int) -> np.ndarray:
    width = max((len(rank) for layer in held for rank in layer), default=0)
    slots = np.full((layers, ranks, width), -1, dtype=np.int64)
    for i, layer in enumerate(held):
        for j, rank in enumerate(layer):
            slots[i, j, : len(rank)] = rank
    return slots


def _map_text(live: Any, experts: int, ranks: int) -> str:
    if isinstance(live, str):
        return live
    if isinstance(live, Plan):
        return live.to_json()
    table = np.asarray(live)
    if table.ndim != 2 or table.shape[1] % ranks or table.dtype.kind not in "iu":
        raise ValueError(
            f"live: {table.dtype} of shape {table.shape}, "
            f"expected a map file's text or whole numbers [layers][a multiple of {ranks} slots]"
        )
    if table.size and (table.min() < -1 or table.max() >= experts):
        raise ValueError(f"live: experts {table.min()} to {table.max()}, expected -1 to {experts - 1}")
    slots = [
        [[None if slot < 0 else int(slot) for slot in rank] for rank in layer]
        for layer in table.reshape(table.shape[0], ranks, -1).tolist()
    ]
    return json.dumps(
        {
            "schema": "evenkeel.map/1",
            "model": "loads",
            "model_revision": "",
            "experts": experts,
            "version": 1,
            "parent": None,
            "slots": slots,
        }
    )
