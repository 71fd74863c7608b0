"""The tree of everything that can go wrong in the mesh. Each class has a `code` and an `http_status`.

An error becomes HTTP in one place on each side: `nodes.views` on a node, `generation.openai.errors` on the head.
"""

from __future__ import annotations

from typing import Any


class MeshnetError(Exception):
    """Something went wrong inside the mesh."""

    code = "internal"
    http_status = 500
    retry_after: int | None = None
    #: URL of the node that raised it, where the head knows it.
    node: str | None = None

    def __init__(self, detail: str | None = None, **extra: Any) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip().splitlines()[0]
        self.extra = extra
        super().__init__(self.detail)

    def as_json(self) -> dict[str, Any]:
        """The body of the HTTP answer: `error`, `detail`, and what the class adds."""
        return {"error": self.code, "detail": self.detail, **self.extra}


class BadRequest(MeshnetError):
    """The request is malformed."""

    code = "bad_request"
    http_status = 400


class OutsideNetworks(BadRequest):
    """A node's URL lies where the mesh secret must not be sent."""

    code = "outside_networks"
    http_status = 403


class Unauthorized(MeshnetError):
    """The mesh secret is missing or wrong."""

    code = "unauthorized"
    http_status = 401


class NotFound(MeshnetError):
    """There is nothing under this name."""

    code = "not_found"
    http_status = 404


class MethodNotAllowed(MeshnetError):
    """This method is not supported here."""

    code = "method_not_allowed"
    http_status = 405


class KVCacheMiss(MeshnetError):
    """The node does not hold the cache that this decode step continues. Only sent in answer to a decode.

    Extra: `reason` (unknown_session, past_len_mismatch, start_layer_mismatch, layer_range_mismatch,
    caching_disabled), `expected` and `held` (what the step expected and what the node holds).
    """

    code = "cache_miss"
    http_status = 409


class NotVerified(MeshnetError):
    """What is announced is not what answers at its URL."""

    code = "not_verified"
    http_status = 409


class NoRoom(MeshnetError):
    """No stretch of layers fits the machine that wants to join. Extra: `missing_bytes`."""

    code = "no_room"
    http_status = 409


class TooManyNodes(MeshnetError):
    """As many nodes have announced themselves as a mesh may have."""

    code = "too_many_nodes"
    http_status = 503
    retry_after = 60


class Released(MeshnetError):
    """The session was released; a late step must not bring it back."""

    code = "released"
    http_status = 410


class LengthRequired(MeshnetError):
    """The request must carry Content-Length."""

    code = "length_required"
    http_status = 411


class PayloadTooLarge(MeshnetError):
    """The body is larger than this model can need."""

    code = "too_large"
    http_status = 413


class UnsupportedMediaType(MeshnetError):
    """The content type is not one that this endpoint reads."""

    code = "unsupported_media_type"
    http_status = 415


class WrongModel(MeshnetError):
    """The node serves another model."""

    code = "wrong_model"
    http_status = 421


class WrongLayers(MeshnetError):
    """The layers asked for are not on this node."""

    code = "wrong_layers"
    http_status = 421


class ComputeFailed(MeshnetError):
    """The step failed inside the model; its session was dropped."""

    code = "compute_failed"
    http_status = 500


class Busy(MeshnetError):
    """Every session slot is taken by a running generation."""

    code = "busy"
    http_status = 503
    retry_after = 1


class Draining(MeshnetError):
    """The node is leaving and takes no new sessions."""

    code = "draining"
    http_status = 503
    retry_after = 5


class NotReady(MeshnetError):
    """The node has not finished loading."""

    code = "not_ready"
    http_status = 503
    retry_after = 5


class NodeUnreachable(MeshnetError):
    """A node could not be reached, or broke off its answer."""

    code = "node_unreachable"
    http_status = 502


class NodeTimeout(NodeUnreachable):
    """A node did not answer in time."""

    code = "node_timeout"
    http_status = 504


class HandoverFailed(MeshnetError):
    """A step could not be handed over from one node to the next. Extra: `to`, the URL of the next one."""

    code = "handover_failed"
    http_status = 502


class NodeProtocolError(MeshnetError):
    """A node's answer does not follow the protocol."""

    code = "node_protocol_error"
    http_status = 502


class ShardRefused(MeshnetError):
    """This shard must not serve: what it would compute is not proved to be the model's own text."""

    code = "shard_refused"


class ModelUnavailable(MeshnetError):
    """The model's files are not here and cannot be fetched."""

    code = "model_unavailable"


class SplitRefused(MeshnetError):
    """The model cannot be cut into so many stages on these machines."""

    code = "split_refused"


#: What a node or head may answer, by code: the client turns an answer's JSON back into the class that made it.
BY_CODE: dict[str, type[MeshnetError]] = {
    cls.code: cls
    for cls in (
        BadRequest,
        OutsideNetworks,
        Unauthorized,
        NotVerified,
        NoRoom,
        TooManyNodes,
        NotFound,
        MethodNotAllowed,
        KVCacheMiss,
        Released,
        LengthRequired,
        PayloadTooLarge,
        UnsupportedMediaType,
        WrongModel,
        WrongLayers,
        ComputeFailed,
        Busy,
        Draining,
        NotReady,
        ShardRefused,
        ModelUnavailable,
        NodeTimeout,
        HandoverFailed,
    )
}
