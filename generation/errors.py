"""What can go wrong on the head, in the tree of `nodes.errors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.errors import MeshnetError

if TYPE_CHECKING:
    from generation.limits import Standing


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


class RateLimitExceeded(RequestRefused):
    """The API key sends too much; `standing` is how it stands with its limits."""

    code = "rate_limit_exceeded"
    http_status = 429

    def __init__(self, detail: str, *, retry_after: int, standing: Standing) -> None:
        super().__init__(detail)
        self.retry_after = retry_after
        self.standing = standing


class QuotaExceeded(RateLimitExceeded):
    """The API key has used up its day. A client that tries again at once tries in vain."""

    code = "insufficient_quota"


class LimitsUnavailable(MeshnetError):
    """The limits of this API key cannot be looked at now."""

    code = "limits_unavailable"
    http_status = 503
    retry_after = 1


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
