"""What the running nodes say of themselves, asked side by side: page, commands and keeper are faces of this."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nodes.client import NodeClient
from nodes.errors import BadRequest, NodeProtocolError, NotFound
from nodes.side_by_side import Reply, ask

#: A page waits for its nodes this long and no longer, in seconds.
FETCH_DEADLINE_SECONDS = 2.0
#: An eviction changes something: it may wait longer for its confirmation than a page for its numbers.
EVICT_DEADLINE_SECONDS = 5.0

State = Literal["ready", "draining", "unreachable"]


@dataclass(frozen=True)
class NodeSnapshot:
    """One node at one moment: its JSON of `/status` and `/sessions`, None where nothing was heard.

    `unreachable` is a node whose status could not be read, for whatever reason `error` says. A node that says
    its status but not its sessions keeps its state and has an error.
    """

    url: str
    status: dict[str, Any] | None
    sessions: dict[str, Any] | None
    error: str | None
    state: State

    @property
    def cause(self) -> str:
        """The error without the node's URL, for where that stands beside it; empty when there is none."""
        return cause(self.url, self.error)

    @property
    def layers(self) -> str:
        return str((self.sessions or {}).get("layers") or (self.status or {}).get("layers") or "")

    @property
    def limits(self) -> dict[str, Any]:
        return (self.sessions or {}).get("limits", {})

    @property
    def stats(self) -> dict[str, Any]:
        return (self.sessions or {}).get("stats", {})

    @property
    def slots(self) -> tuple[Any, Any]:
        """Sessions held, and how many the node may hold."""
        return self.stats.get("sessions", len(self.entries)), self.limits.get("max_sessions", "?")

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The sessions that the node holds, as it lists them; each has an `id`."""
        return (self.sessions or {}).get("sessions", [])


@dataclass(frozen=True)
class NodeEviction:
    """What an eviction did on one node: ids taken out, and ids that were asked for and not held.

    With an `error` the node did not confirm; after a timeout it may have evicted nevertheless.
    """

    url: str
    evicted: list[str]
    unknown: list[str]
    error: str | None = None


def fetch(
    clients: Sequence[NodeClient], *, deadline: float = FETCH_DEADLINE_SECONDS, sessions: bool = True
) -> list[NodeSnapshot]:
    """Snapshots in the order of the clients, within `deadline` seconds. No node makes it raise.

    Without `sessions` only the status is asked for, which is all that a plan needs.
    """
    requests: dict[str, Callable[[NodeClient], dict[str, Any]]] = {
        "status": lambda client: client.status(timeout=deadline)
    }
    if sessions:
        requests["sessions"] = lambda client: _checked(client.url, client.sessions(timeout=deadline))
    replies = ask(clients, requests, deadline)
    return [_snapshot(client, reply) for client, reply in zip(clients, replies, strict=True)]


def evict(
    clients: Sequence[NodeClient],
    *,
    ids: Collection[str] | None = None,
    idle_longer_than: float | None = None,
    everything: bool = False,
    node: str | None = None,
    deadline: float = EVICT_DEADLINE_SECONDS,
) -> list[NodeEviction]:
    """Takes sessions out of the running nodes (of `node` alone, if given); a result per node, in their order.

    Exactly one of `ids`, `idle_longer_than` (seconds) and `everything` says which. Raises BadRequest
    otherwise and NotFound for an unknown `node`; what goes wrong on a node stands in its result.
    """
    _need_one(ids, idle_longer_than, everything)
    if node is not None:
        clients = choose(clients, [node])
    wanted = None if ids is None else list(dict.fromkeys(ids))
    replies = ask(
        clients,
        {
            "evict": lambda client: client.evict(
                ids=wanted, idle_longer_than=idle_longer_than, everything=everything, timeout=deadline
            )
        },
        deadline,
    )
    results = []
    for client, reply in zip(clients, replies, strict=True):
        answer = reply.answers.get("evict", {})
        results.append(
            NodeEviction(client.url, _ids(answer.get("evicted")), _ids(answer.get("unknown")), error=reply.error)
        )
    return results


def change(
    client: NodeClient, order: Callable[[NodeClient], Any], *, deadline: float = EVICT_DEADLINE_SECONDS
) -> str | None:
    """Tells one node something; why it was not confirmed, or None when it was. Back by the deadline, never raises.

    After a timeout the node may have obeyed nevertheless.
    """
    return ask([client], {"change": order}, deadline)[0].error


def would_evict(
    snapshots: Iterable[NodeSnapshot],
    *,
    ids: Collection[str] | None = None,
    idle_longer_than: float | None = None,
    everything: bool = False,
) -> list[NodeEviction]:
    """What `evict` would do to the nodes as they were seen, in the same shape. Changes nothing."""
    _need_one(ids, idle_longer_than, everything)
    results = []
    for snapshot in snapshots:
        held = [entry["id"] for entry in snapshot.entries]
        unknown: list[str] = []
        if ids is not None:
            chosen = [session for session in dict.fromkeys(ids) if session in held]
            if snapshot.sessions is not None:
                unknown = [session for session in dict.fromkeys(ids) if session not in held]
        elif idle_longer_than is not None:
            chosen = [
                entry["id"]
                for entry in snapshot.entries
                if not entry.get("busy") and entry.get("idle_seconds", 0.0) > idle_longer_than
            ]
        else:
            chosen = held
        results.append(NodeEviction(snapshot.url, chosen, unknown, error=snapshot.error))
    return results


def by_session(snapshots: Iterable[NodeSnapshot]) -> dict[str, list[tuple[NodeSnapshot, dict[str, Any]]]]:
    """Per session id the nodes that hold it with their entries, nodes in their order.

    The oldest session stands first, so that rows keep their places while new ones come.
    """
    held: dict[str, list[tuple[NodeSnapshot, dict[str, Any]]]] = {}
    for snapshot in snapshots:
        for entry in snapshot.entries:
            held.setdefault(entry["id"], []).append((snapshot, entry))
    return dict(sorted(held.items(), key=lambda item: (-max(_age(entry) for _, entry in item[1]), item[0])))


def choose(clients: Sequence[NodeClient], urls: Collection[str]) -> list[NodeClient]:
    """The clients of these URLs, in the order of `clients`; all when no URL is named. Raises NotFound."""
    wanted = {url.rstrip("/") for url in urls}
    strangers = wanted - {client.url for client in clients}
    if strangers:
        known = ", ".join(client.url for client in clients) or "none"
        raise NotFound(f"{', '.join(sorted(strangers))} is not a node of this mesh; its nodes: {known}.")
    return [client for client in clients if not wanted or client.url in wanted]


def cause(url: str, error: str | None) -> str:
    """An error of a node without the node's URL at its beginning."""
    return (error or "").removeprefix(url).lstrip(": ")


def snapshot_from(url: str, status: Any, sessions: Any) -> NodeSnapshot:
    """A snapshot of what a node said and somebody kept. Raises NodeProtocolError when it is nothing of the kind."""
    if not isinstance(status, dict) or not isinstance(sessions, dict):
        raise NodeProtocolError(f"That is nothing that {url} said.")
    return NodeSnapshot(url, status, _checked(url, sessions), None, _state(status))


def _snapshot(client: NodeClient, reply: Reply) -> NodeSnapshot:
    status = reply.answers.get("status")
    return NodeSnapshot(client.url, status, reply.answers.get("sessions"), reply.error, _state(status))


def _state(status: dict[str, Any] | None) -> State:
    if status is None:
        return "unreachable"
    return "draining" if status.get("state") == "draining" else "ready"


def _checked(url: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, if it has the shape that every reader relies on. Raises NodeProtocolError."""
    entries = answer.get("sessions")
    if (
        not isinstance(entries, list)
        or not all(isinstance(entry, dict) and isinstance(entry.get("id"), str) for entry in entries)
        or not all(isinstance(answer.get(part, {}), dict) for part in ("limits", "stats"))
    ):
        raise NodeProtocolError(f"{url} answered something else than a list of sessions.")
    return answer


def _age(entry: dict[str, Any]) -> float:
    age = entry.get("age_seconds")
    return float(age) if isinstance(age, (int, float)) else 0.0


def _ids(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _need_one(ids: Collection[str] | None, idle_longer_than: float | None, everything: bool) -> None:
    if (ids is not None) + (idle_longer_than is not None) + bool(everything) != 1:
        raise BadRequest("Name sessions, an idle time, or everything: exactly one of them.")
