"""How a node comes up: find the model, load the shard, prove it, make the runtime."""

from __future__ import annotations

import logging
import platform
import secrets
from collections.abc import Callable
from pathlib import Path

from nodes import framing, proof, proof_record
from nodes.batching import Budget
from nodes.client import NodeClient
from nodes.engine import Engine
from nodes.kv_sessions import SessionCacheStore, StoreLimits
from nodes.layers import LayerRange
from nodes.process import versions
from nodes.runtime import Identity, NodeRuntime
from nodes.shard import ModelShard, wanted_files

logger = logging.getLogger(__name__)


def start_node(
    folder: Path,
    layers: LayerRange | None,
    *,
    model: str,
    fingerprint: str,
    limits: StoreLimits,
    dtype: str = "float32",
    device: str = "cpu",
    threads: int = 0,
    context_length: int = 0,
    kv_enabled: bool = True,
    sweep_seconds: float = 1.0,
    allow_untested: bool = False,
    proofs: Path | None = None,
    budget: Budget | None = None,
    connect: Callable[[str], NodeClient] | None = None,
) -> NodeRuntime:
    """Loads and proves a shard on a new engine's thread. Raises ShardRefused when it must not serve.

    proofs is the folder where verdicts are kept; None proves every time.
    """
    engine = Engine(threads)
    engine.start()
    try:
        shard = (
            engine.submit(
                lambda: ModelShard.load(
                    folder,
                    layers,
                    dtype=framing.DTYPES[dtype],
                    device=device,
                    context_length=context_length,
                    allow_untested=allow_untested,
                )
            )
            .result()
            .value
        )
        blocked = engine.submit(shard.block_weights).result().value
        key = proof_record.ProofKey(
            fingerprint,
            str(shard.layers),
            dtype,
            device,
            shard.shape.context_length,
            {**versions(), "platform": f"{platform.platform()}, {'blocked' if blocked else 'plain'} weights"},
        )
        verdict = engine.submit(lambda: proof_record.proved(key, proofs, lambda: proof.prove(shard))).result().value
        decode_text = _token_text(folder) if shard.is_tail else None
    except BaseException:
        engine.stop()
        raise
    return NodeRuntime(
        shard,
        SessionCacheStore(limits),
        engine,
        Identity(model, fingerprint, secrets.token_urlsafe(12)),
        verdict,
        kv_enabled=kv_enabled,
        sweep_seconds=sweep_seconds,
        decode_text=decode_text,
        budget=budget,
        connect=connect,
    )


def _token_text(folder: Path) -> Callable[[int], str] | None:
    """How the tail turns an id into advisory text; None where the folder holds no tokenizer that can be read."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # the text is advisory: no tokenizer is worth a tail that does not serve
        logger.info("No tokenizer for advisory texts: %s", error)
        return None
    return lambda token_id: str(tokenizer.decode([token_id], skip_special_tokens=True))


def boot_node() -> NodeRuntime:
    """The node that the settings describe. Raises ShardRefused, ModelUnavailable or ValueError: it must not serve."""
    from django.conf import settings

    from nodes import model_files
    from nodes.registry import connect

    allow_untested = settings.MESHNET_ALLOW_UNTESTED_MODELS
    layers = LayerRange.parse(settings.MESHNET_LAYERS) if settings.MESHNET_LAYERS else None
    found = model_files.find_model(
        settings.MESHNET_MODEL,
        settings.MESHNET_VAR_DIR,
        wanted=None
        if layers is None
        else wanted_files(layers, settings.MESHNET_CONTEXT_LENGTH, allow_untested=allow_untested),
    )
    return start_node(
        found.folder,
        layers,
        model=found.name,
        fingerprint=found.fingerprint,
        limits=StoreLimits(
            ttl_seconds=settings.MESHNET_KV_TTL_SECONDS,
            max_sessions=settings.MESHNET_KV_MAX_SESSIONS,
            max_bytes=settings.MESHNET_KV_MAX_BYTES,
            active_seconds=settings.MESHNET_KV_ACTIVE_SECONDS,
        ),
        dtype=settings.MESHNET_DTYPE,
        device=settings.MESHNET_DEVICE,
        threads=settings.MESHNET_THREADS,
        context_length=settings.MESHNET_CONTEXT_LENGTH,
        kv_enabled=settings.MESHNET_KV_ENABLED,
        sweep_seconds=settings.MESHNET_KV_SWEEP_SECONDS,
        allow_untested=allow_untested,
        proofs=settings.MESHNET_VAR_DIR / proof_record.FOLDER,
        connect=connect,
    )
