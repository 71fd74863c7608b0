"""Nodes as a split by capacity has planned them: what they ask of a machine, and what they are told because of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshsite.engine import NodeSpec
from meshsite.planned_split import PlannedStage


def as_planned(specs: Sequence[NodeSpec], stages: Sequence[PlannedStage], environ: Mapping[str, str]) -> list[NodeSpec]:
    """The nodes with their stage's memory, processors and GPUs. What the user has set in `environ` stays as it is."""
    return [_as_planned(spec, stages[spec.stage - 1], environ) for spec in specs]


def _as_planned(spec: NodeSpec, stage: PlannedStage, environ: Mapping[str, str]) -> NodeSpec:
    told = {
        "MESHNET_KV_MAX_BYTES": str(stage.cache_bytes),
        "MESHNET_THREADS": str(max(1, int(stage.cpus))),
        **({"MESHNET_DEVICE": "cuda"} if stage.gpus else {}),
    }
    told = {name: value for name, value in told.items() if not environ.get(name)}
    return replace(
        spec,
        settings={**spec.settings, **told},
        memory_bytes=stage.memory_bytes,
        cpus=stage.cpus,
        gpus=stage.gpus,
    )
