"""The native half; use the functions of `evenkeel`."""

from typing import Optional

def rebalance(
    weight: bytes,
    layers: int,
    experts: int,
    slots: int,
    groups: int,
    nodes: int,
    ranks: int,
) -> tuple[bytes, bytes, bytes, int]: ...
def plan(
    weight: bytes,
    layers: int,
    experts: int,
    ranks: int,
    slots: int,
    nodes: int,
    groups: Optional[int],
    live: Optional[str],
    dead: list[int],
    moves_max: Optional[int],
    target_balancedness: Optional[float],
) -> str: ...
def check(map: str, live: Optional[str]) -> list[str]: ...
def split(
    map: str, weight: bytes, layers: int, experts: int
) -> tuple[bytes, bytes, int, int]: ...
