from dataclasses import dataclass
from typing import Any, Optional, Sequence, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Move", "Plan", "Split", "check", "plan", "rebalance_experts", "split"]

@dataclass(frozen=True)
class Move:
    layer: int
    expert: int
    source: int
    target: int
    slot: int
    gain: float

@dataclass(frozen=True, eq=False)
class Plan:
    slots: NDArray[np.int64]
    balancedness_before: NDArray[np.float64]
    balancedness_after: NDArray[np.float64]
    bound: NDArray[np.float64]
    moves: tuple[Move, ...]
    reason: Optional[dict[str, Any]]
    @property
    def phy2log(self) -> NDArray[np.int64]: ...
    @property
    def gap(self) -> float: ...
    def to_json(self) -> str: ...

@dataclass(frozen=True, eq=False)
class Split:
    shares: NDArray[np.float64]
    balancedness: NDArray[np.float64]

def rebalance_experts(
    weight: Any, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int
) -> tuple[Any, Any, Any]: ...
def plan(
    weight: ArrayLike,
    *,
    ranks: int,
    slots: int,
    nodes: int = 1,
    groups: Optional[int] = None,
    live: Union[Plan, str, ArrayLike, None] = None,
    dead_ranks: Sequence[int] = (),
    moves_max: Optional[int] = None,
    target_balancedness: Optional[float] = None,
) -> Plan: ...
def check(map_json: str, live_json: Optional[str] = None) -> list[str]: ...
def split(map_json: Union[Plan, str], weight: ArrayLike) -> Split: ...
