"""What `headway explain --json` prints, as a JSON Schema (draft 2020-12); `headway explain --schema` prints this.

`headway_explain` counts versions: a new one may add entries, and says so here; none changes meaning within one.
"""

from __future__ import annotations

from typing import Any, Final

from ..loader.stall import STAGES
from ._remedies import EFFORTS, RESOURCES

__all__ = ["EXPLAIN_VERSION", "SCHEMA"]

EXPLAIN_VERSION: Final = 1

_Schema = dict[str, Any]  # Any: JSON

_SECONDS: Final[_Schema] = {"type": "number", "minimum": 0}
_SHARE: Final[_Schema] = {"type": "number", "minimum": 0, "maximum": 1}
_COUNT: Final[_Schema] = {"type": "integer", "minimum": 0}
_STAGE: Final[_Schema] = {"enum": [*STAGES, "other"]}


def _object(**properties: _Schema) -> _Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _described(schema: _Schema, text: str) -> _Schema:
    return {**schema, "description": text}


SCHEMA: Final[_Schema] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "headway explain",
    **_object(
        headway_explain={"const": EXPLAIN_VERSION},
        loader=_described({"type": "string"}, "Telemetry.name."),
        ranks=_described(_COUNT, "Ranks that wrote a ledger."),
        missing_ranks=_described({"type": "array", "items": _COUNT}, "Ranks of the job that did not."),
        nodes=_COUNT,
        steps=_described(_COUNT, "Steps looked at: the last ones that all ranks have."),
        first_step=_described({"type": "array", "items": _COUNT}, "Epoch and number."),
        last_step=_described({"type": "array", "items": _COUNT}, "Epoch and number."),
        wall_s=_described(_SECONDS, "What those steps took."),
        synchronous=_described({"type": "boolean"}, "Ranks keep step, so the slowest makes all others wait."),
        lost_gpu_s=_described(_SECONDS, "GPU-seconds (rank-seconds) that all ranks together lost to waits for input."),
        stall_share=_described(_SHARE, "lost_gpu_s as a share of wall_s × ranks."),
        nothing_to_do=_described({"type": "boolean"}, "The consumer is the limit: waits are under 1 % of the time."),
        verdict=_described({"type": "string"}, "One sentence for people."),
        slow_rank={
            "anyOf": [
                {"type": "null"},
                _object(
                    rank=_COUNT,
                    node=_COUNT,
                    factor=_described({"type": ["number", "null"]}, "Its waits over the others' median; null: they have none."),
                ),
            ]
        },
        slow_node={
            "anyOf": [
                {"type": "null"},
                _object(node=_COUNT, host={"type": "string"}, ranks={"type": "array", "items": _COUNT}),
            ]
        },
        culprits=_described(
            {
                "type": "array",
                "items": _object(
                    rank=_COUNT,
                    node=_COUNT,
                    stage=_STAGE,
                    resource={"enum": list(RESOURCES)},
                    lost_gpu_s=_SECONDS,
                    share=_described(_SHARE, "Of the whole loss."),
                    steps=_described(_COUNT, "In which it made the job wait."),
                ),
            },
            "Who made the job wait, and in what; the largest first.",
        ),
        per_rank={
            "type": "array",
            "items": _object(
                rank=_COUNT,
                node=_COUNT,
                host={"type": "string"},
                waited_s=_SECONDS,
                waited_share=_SHARE,
                made_others_wait_gpu_s=_SECONDS,
                headway_s=_SECONDS,
                waits_s={"type": "object", "additionalProperties": _SECONDS},
            ),
        },
        remedies=_described(
            {
                "type": "array",
                "items": _object(
                    action={"type": "string"},
                    effort={"enum": list(EFFORTS)},
                    stage=_STAGE,
                    gain_gpu_s=_described(_SECONDS, "Predicted, of lost_gpu_s."),
                    stall_share_after=_SHARE,
                ),
            },
            "The cheapest that is worth it first.",
        ),
    ),
}
