"""Training examples: payments whose labels are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Examples:
    """Payments whose labels were known at some time, in order of time.

    Attributes:
        x: Features, shape (n, features).
        fraud: True for frauds.
        cards: Card of each.
        at: Event time of each, ms.
        alerted: Which somebody was alerted to.
        weight: For how many payments each stands (see :func:`millrace_apps.fraud.model.known.known`);
            ``None``: each for itself.
    """

    x: npt.NDArray[np.float32]
    fraud: npt.NDArray[np.bool_]
    cards: npt.NDArray[Any]
    at: npt.NDArray[np.int64]
    alerted: npt.NDArray[np.bool_]
    weight: npt.NDArray[np.float64] | None = None

    @property
    def learned(self) -> npt.NDArray[np.float64] | None:
        """With which weight each is learned from: also what stands for nothing in an estimate teaches."""
        return None if self.weight is None else np.where(self.weight > 0, self.weight, 1.0)

    def __len__(self) -> int:
        return len(self.fraud)

    def part(self, since: int, until: int) -> Examples:
        """Return those from ``since`` up to before ``until``, ms."""
        rows = (self.at >= since) & (self.at < until)
        return self.chosen(rows)

    def chosen(self, rows: Any) -> Examples:
        """Return some of them, by a mask or by their places."""
        weight = None if self.weight is None else self.weight[rows]
        return Examples(
            self.x[rows], self.fraud[rows], self.cards[rows], self.at[rows], self.alerted[rows], weight
        )
