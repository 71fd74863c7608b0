"""What can go wrong on the head, in the tree of `nodes.errors`."""

from __future__ import annotations

from nodes.errors import MeshnetError


class RequestRefused(MeshnetError):
    """The request cannot be served as it is. `param` names the field, as the OpenAI error shape wants it."""

    code = "invalid_value"
    http_status = 400

    def __init__(self, detail: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(detail)
        self.param = param
        if code is not None:
            self.code = code


class ContextLengthExceeded(RequestRefused):
    """Prompt and answer do not fit into the model's context."""

    code = "context_length_exceeded"


class ModelNotFound(RequestRefused):
    """The mesh does not serve this model."""

    code = "model_not_found"
    http_status = 404


class NoRoute(MeshnetError):
    """No set of ready nodes covers every layer of the model."""

    code = "no_route"
    http_status = 503
    retry_after = 5


class Cancelled(MeshnetError):
    """The generation was cancelled before it had ended."""

    code = "cancelled"
    http_status = 503


class TookTooLong(MeshnetError):
    """The generation took longer than this server allows."""

    code = "generation_timeout"
    http_status = 504


class GaveUp(MeshnetError):
    """The generation could not be repaired any more."""

    code = "gave_up"
    http_status = 503
