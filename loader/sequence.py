"""What a batch says of each sample's place among others: whether its slot begins anew, how the ego moved since, which set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .plan import Plan, Planned

if TYPE_CHECKING:
    from .view import View

__all__ = ["sequence_entries"]


def sequence_entries(plan: Plan, view: View, planned: Planned) -> dict[str, Any]:  # Any: arrays and dicts of them, see Batch
    """Return the batch's "is_first" and "motion" (slot-sticky order) and "set" (mixed datasets)."""
    entries: dict[str, Any] = {}  # Any: as above
    if planned.is_first is not None:
        entries["is_first"] = planned.is_first.copy()
        if view.has_ego_motion:
            # Unless it begins anew, a slot's previous item is the frame directly before.
            matrix, known = view.ego_motion(planned.items)
            known &= ~planned.is_first
            matrix[~known] = np.eye(4)
            entries["motion"] = {"pose": matrix, "mask": known}
    if plan.view.sets:
        entries["set"] = plan.view.sets_of(planned.items)
    return entries
