"""How the head and the commands speak to nodes: over HTTP, or to a node in the same process.

Both clients have the same methods and raise the same errors. Nothing is retried here: a request that timed out may
have been carried out, and running a step twice would shift the text (case D04). The head repairs by re-prefilling.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Protocol

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError
from urllib3.util import SKIP_HEADER

from nodes import wire
from nodes.connections import PROBE_SECONDS, NodePool, NodeTLSPool
from nodes.errors import BY_CODE, BadRequest, MeshnetError, NodeProtocolError, NodeTimeout, NodeUnreachable
from nodes.exchange import Reply, TooLong, exchange
from nodes.handover import Letter
from nodes.sampling_parameters import TokenLogprobs
from nodes.wire import StepHeaders, Timings

if TYPE_CHECKING:
    import torch

    from nodes.networks import NodeNetworks
    from nodes.payload import Payload
    from nodes.runtime import NodeRuntime

#: What is read of a JSON answer at most; the list of some thousand sessions is the longest.
MAX_JSON_BYTES = 16 * 1024 * 1024
#: What the answer to a step may hold beside hidden states of the size that was sent.
ANSWER_SLACK_BYTES = 64 * 1024


@dataclass(frozen=True)
class StepAnswer:
    """A node's answer to one step. An inner node sends `hidden`, the tail `token_id` and advisory `text`.

    past_len is the acknowledgement: tokens now held, or None from a node that does not cache.
    """

    hidden: torch.Tensor | None = None
    token_id: int | None = None
    has_token_id: bool = False
    text: str | None = None
    logprobs: TokenLogprobs | None = None
    past_len: int | None = None
    timings: Timings = field(default_factory=Timings)


class NodeClient(Protocol):
    """The node's interface. Every method raises MeshnetError subclasses and nothing else."""

    url: str

    def forward(
        self, headers: StepHeaders, payload: Payload, *, timeout: float, patience: float | None = None
    ) -> StepAnswer:
        """One step within `timeout` seconds. A node that has not begun to answer after each `patience` seconds is
        asked whether it lives, and left when it is silent.
        """

    def status(self, *, timeout: float) -> dict[str, Any]: ...
    def sessions(self, *, timeout: float) -> dict[str, Any]: ...
    def release(self, session_id: str, *, timeout: float) -> None: ...
    def give_back(self, session_id: str, *, timeout: float) -> None: ...
    def evict(
        self,
        *,
        ids: Sequence[str] | None = None,
        idle_longer_than: float | None = None,
        everything: bool = False,
        timeout: float,
    ) -> dict[str, Any]: ...
    def set_limits(self, changes: dict[str, Any], *, timeout: float) -> dict[str, Any]: ...
    def set_draining(self, draining: bool, *, timeout: float) -> None: ...
    def tidy(self) -> None: ...


_PLAIN = {"Accept-Encoding": SKIP_HEADER, "User-Agent": SKIP_HEADER}


class HttpNodeClient:
    """A node over HTTP, through a pool of kept connections. Threads may share one client."""

    def __init__(
        self,
        url: str,
        secret: str,
        *,
        connect_timeout: float = 3.0,
        networks: NodeNetworks | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """`networks` says where the secret may go (None: anywhere), `ssl_context` whom to trust over TLS.

        Raises NodeUnreachable for what is no URL, BadRequest for one that is outside the networks.
        """
        self.url = url.rstrip("/")
        if networks is not None:
            networks.check(self.url)
        parts = urllib3.util.parse_url(self.url)
        if parts.host is None:
            raise NodeUnreachable(f"{url!r} is not the URL of a node.")
        common: Any = {"networks": networks, "probe_seconds": min(PROBE_SECONDS, connect_timeout)}
        self._pool: NodePool
        if parts.scheme == "https":
            self._pool = NodeTLSPool(parts.host, parts.port, ssl_context=ssl_context, **common)
        else:
            self._pool = NodePool(parts.host, parts.port, **common)
        self._connect_timeout = connect_timeout
        self._authorization = {"Authorization": f"Bearer {secret}"}

    def close(self) -> None:
        """Closes the connections that are not in use; the client stays usable."""
        self._pool.close_idle(0.0)

    def tidy(self) -> None:
        """Closes the connections that were not in use for long."""
        self._pool.close_idle()

    def forward(
        self, headers: StepHeaders, payload: Payload, *, timeout: float, patience: float | None = None
    ) -> StepAnswer:
        from nodes import framing  # here, so that commands that never compute do not load torch

        body = framing.encode(payload)
        self._pool.patience.seconds = patience
        try:
            answer = self._request(
                "POST",
                "/forward",
                body,
                wire.TENSOR_TYPE,
                timeout,
                headers.to_http(),
                longest=len(body) + ANSWER_SLACK_BYTES,
            )
        finally:
            self._pool.patience.seconds = None
        past_len = answer.headers.get(wire.PAST_LEN)
        common: dict[str, Any] = {
            "past_len": int(past_len) if past_len and past_len.isdecimal() else None,
            "timings": Timings.from_http(answer.headers.get("Server-Timing")),
        }
        if answer.headers.get("Content-Type", "").startswith(wire.JSON_TYPE):
            said = self._json(answer.data)
            token_id = said.get("token_id")
            if token_id is not None and (not isinstance(token_id, int) or isinstance(token_id, bool)):
                raise NodeProtocolError(f"{self.url} answered a token_id that is not a whole number.")
            text = said.get("text")
            logprobs = None
            if said.get("logprobs") is not None:
                try:
                    logprobs = TokenLogprobs.from_json(said["logprobs"])
                except ValueError as error:
                    raise NodeProtocolError(f"{self.url} answered log probabilities that are none: {error}") from None
            return StepAnswer(
                token_id=token_id,
                has_token_id="token_id" in said,
                text=text if isinstance(text, str) else None,
                logprobs=logprobs,
                **common,
            )
        try:
            hidden = framing.decode(answer.data).hidden
        except MeshnetError as error:
            raise NodeProtocolError(f"{self.url} answered something else than hidden states: {error.detail}") from None
        return StepAnswer(hidden=hidden, **common)

    def hand_over(
        self,
        headers: StepHeaders,
        payload: Payload,
        *,
        timeout: float,
        patience: float | None = None,
        sent: Callable[[], object],
    ) -> StepAnswer:
        """`forward` for a step whose result comes another way; `sent` is called when the request has gone out."""
        self._pool.patience.sent = sent
        try:
            return self.forward(headers, payload, timeout=timeout, patience=patience)
        finally:
            self._pool.patience.sent = None

    def result(
        self, session_id: str, nonce: str, *, wait: float, timeout: float, patience: float | None = None
    ) -> Letter | None:
        """What a handed-over step gave, from its tail, which may wait for it `wait` seconds; None: it is not there.

        Raises as `forward`.
        """
        path = f"/sessions/{session_id}/steps/{nonce}?wait={wait:g}"
        self._pool.patience.seconds = patience
        try:
            answer = self._request("GET", path, None, wire.JSON_TYPE, timeout)
        finally:
            self._pool.patience.seconds = None
        said = self._json(answer.data)
        if not said:
            return None
        try:
            return Letter.from_json(said)
        except BadRequest as error:
            raise NodeProtocolError(f"{self.url} answered no result of a step: {error.detail}") from None

    def status(self, *, timeout: float) -> dict[str, Any]:
        return self._json(self._request("GET", "/status", None, wire.JSON_TYPE, timeout).data)

    def sessions(self, *, timeout: float) -> dict[str, Any]:
        return self._json(self._request("GET", "/sessions", None, wire.JSON_TYPE, timeout).data)

    def release(self, session_id: str, *, timeout: float) -> None:
        """Told once more when the node broke off: a kept connection may have died unseen, or with the node's former
        process, and a session that is released twice is released once.
        """
        path = f"/sessions/{session_id}"
        try:
            self._request("DELETE", path, None, wire.JSON_TYPE, timeout)
        except NodeTimeout:
            raise
        except NodeUnreachable:
            self._request("DELETE", path, None, wire.JSON_TYPE, timeout)

    def give_back(self, session_id: str, *, timeout: float) -> None:
        """Frees the session's slot while its head waits its turn; unlike after `release`, the id may come again."""
        body = json.dumps({"ids": [session_id], "by": "head"}).encode()
        self._request("POST", "/sessions/evict", body, wire.JSON_TYPE, timeout)

    def evict(
        self,
        *,
        ids: Sequence[str] | None = None,
        idle_longer_than: float | None = None,
        everything: bool = False,
        timeout: float,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {}
        if ids is not None:
            body["ids"] = list(ids)
        if idle_longer_than is not None:
            body["idle_longer_than"] = idle_longer_than
        if everything:
            body["all"] = True
        answer = self._request("POST", "/sessions/evict", json.dumps(body).encode(), wire.JSON_TYPE, timeout)
        return self._json(answer.data)

    def set_limits(self, changes: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        body = json.dumps(changes).encode()
        return self._json(self._request("PATCH", "/limits", body, wire.JSON_TYPE, timeout).data)

    def set_draining(self, draining: bool, *, timeout: float) -> None:
        self._request("POST" if draining else "DELETE", "/drain", None, wire.JSON_TYPE, timeout)

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        content_type: str,
        timeout: float,
        extra: dict[str, str] | None = None,
        *,
        longest: int = MAX_JSON_BYTES,
    ) -> Reply:
        # No coding is asked for and none is undone: a small answer must not unfold into a large one. Who sends is not
        # said; each header more is read on the way of each step.
        headers = {**_PLAIN, **self._authorization, "Content-Type": content_type, **(extra or {})}
        self._pool.patience.is_over = False
        try:
            reply = exchange(
                self._pool,
                method,
                path,
                body,
                headers,
                connect_timeout=self._connect_timeout,
                timeout=timeout,
                longest=longest,
            )
        except TooLong:
            raise NodeProtocolError(f"{self.url} answered with more than {longest} bytes.") from None
        except NewConnectionError as error:
            raise NodeUnreachable(f"{self.url} cannot be reached: {error.__cause__ or error}") from None
        except ConnectTimeoutError:
            # A process that hangs still gets connections, from the kernel: this is the network, or a machine is gone.
            raise NodeUnreachable(f"{self.url} cannot be reached within {self._connect_timeout:g} s.") from None
        except TimeoutError:
            if self._pool.patience.is_over:
                raise NodeTimeout(f"{self.url} hangs: it answers neither a step nor whether it lives.") from None
            raise NodeTimeout(f"{self.url} did not answer within {timeout:g} s.") from None
        except (HTTPError, HTTPException, OSError) as error:
            raise NodeUnreachable(f"{self.url} broke off: {error}") from None
        if reply.status == 200:
            return reply
        raise self._error(reply)

    def _error(self, answer: Reply) -> MeshnetError:
        try:
            body = json.loads(answer.data)
            code, detail = body.pop("error"), body.pop("detail")
            error = BY_CODE[code](f"{self.url}: {detail}", **body)
        except (ValueError, KeyError, TypeError, AttributeError):
            return NodeProtocolError(f"{self.url} answered {answer.status} without the protocol's JSON.")
        retry_after = answer.headers.get("Retry-After", "")
        if retry_after.isdecimal():
            error.retry_after = int(retry_after)
        return error

    def _json(self, data: bytes) -> dict[str, Any]:
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise NodeProtocolError(f"{self.url} answered something else than a JSON object.")
        return value


class LocalNodeClient:
    """A node in this process, without HTTP. Answers are plain copies: no tensor of the engine's leaves its thread."""

    def __init__(self, runtime: NodeRuntime, url: str = "local:") -> None:
        self.url = url
        self._runtime = runtime

    def forward(
        self, headers: StepHeaders, payload: Payload, *, timeout: float, patience: float | None = None
    ) -> StepAnswer:
        return self._runtime.forward(headers, payload)

    def status(self, *, timeout: float) -> dict[str, Any]:
        return self._runtime.status()

    def sessions(self, *, timeout: float) -> dict[str, Any]:
        return self._runtime.sessions()

    def release(self, session_id: str, *, timeout: float) -> None:
        self._runtime.release(session_id)

    def give_back(self, session_id: str, *, timeout: float) -> None:
        self._runtime.give_back([session_id])

    def evict(
        self,
        *,
        ids: Sequence[str] | None = None,
        idle_longer_than: float | None = None,
        everything: bool = False,
        timeout: float,
    ) -> dict[str, Any]:
        return self._runtime.evict(ids=ids, idle_longer_than=idle_longer_than, everything=everything)

    def set_limits(self, changes: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        return self._runtime.set_limits(changes)

    def set_draining(self, draining: bool, *, timeout: float) -> None:
        if draining:
            self._runtime.drain()
        else:
            self._runtime.undrain()

    def tidy(self) -> None:
        """There are no connections."""
