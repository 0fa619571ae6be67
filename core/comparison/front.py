"""The Pareto front: the members that no other beats in two figures at once."""

from collections.abc import Sequence


def find_front(points: Sequence[tuple[float, float] | None]) -> list[bool | None]:
    """Find the points on the Pareto front.

    A point is on it unless another is at least as good in both figures and better in one. So equal points are both on
    it, or neither is.

    Args:
        points: Two figures of each member, of which less is better; None: not both are measured.

    Returns:
        True for a point on the front and False for another. None for a missing point, and for all if there are fewer
        than two: one alone is compared with nothing.
    """
    present = [point for point in points if point is not None]
    if len(present) == 1:
        return [None] * len(points)
    return [None if point is None else not any(_beats(other, point) for other in present) for point in points]


def _beats(other: tuple[float, float], point: tuple[float, float]) -> bool:
    return other != point and other[0] <= point[0] and other[1] <= point[1]
