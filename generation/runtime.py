"""A running head worker: the model's text side, the nodes it knows and its keeper."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from generation.directory import NodeDirectory
from generation.errors import NoRoute
from generation.job import LoopSettings
from generation.metrics import HeadMetrics
from generation.prompt import Prompter
from generation.route import plan
from generation.steps import Embeds
from generation.waiting_line import WaitingLine
from nodes.client import LocalNodeClient, NodeClient
from nodes.errors import Busy, Draining, MeshnetError
from nodes.fleet import NodeFleet
from nodes.live import NodeSnapshot
from nodes.registry import connect

if TYPE_CHECKING:
    from generation.answer import Answer
    from generation.cancel import CancelWatch
    from generation.keeper import Keeper
    from nodes.snapshots import SeenNode

logger = logging.getLogger(__name__)


#: A node that does not answer a release in time frees the session by its TTL.
RELEASE_SECONDS = 5.0
#: How long running answers may go on after a stop was asked for, before they are ended with an error. Below the
#: server's graceful timeout, so that every stream gets its last event.
DRAIN_SECONDS = 4.0


class HeadRuntime:
    """What one head worker needs to answer, and what it is answering right now. Shared by its threads."""

    def __init__(
        self,
        model: str,
        prompter: Prompter,
        embedder: Embeds,
        settings: LoopSettings,
        directory: NodeDirectory,
        *,
        boot_id: str | None = None,
        max_answers: int = 56,
    ) -> None:
        self.model = model
        self.prompter = prompter
        self.embedder = embedder
        self.settings = settings
        self.directory = directory
        self.boot_id = boot_id or secrets.token_urlsafe(12)
        self.keeper: Keeper | None = None
        self.cancel_watch: CancelWatch | None = None
        self.line = WaitingLine(changed=self.note_load)
        self.metrics = HeadMetrics(model)
        self._max_answers = max_answers
        self._answers: set[Answer] = set()
        self._releases: set[threading.Thread] = set()
        self._draining = False
        self._lock = threading.Lock()

    @property
    def clients(self) -> list[NodeClient]:
        return self.directory.clients

    def models(self) -> list[str]:
        """The models that clients may name."""
        return [self.model]

    def is_ready(self) -> bool:
        """Whether a route through all layers can be planned now."""
        try:
            plan(
                self.directory.ready(silent=False),
                fingerprint=self.settings.fingerprint,
                dtype=self.settings.dtype,
                n_layers=self.settings.n_layers,
                context_length=self.settings.context_length,
            )
        except (NoRoute, Busy) as error:
            logger.info("Not ready: %s", error.detail)
            return False
        return not self._draining

    # -- running answers

    def admit(self, answer: Answer) -> None:
        """Takes an answer in. Raises Draining, or Busy when as many run or wait as this worker has threads for.

        Without that bound, chats that wait for a slot would take the threads that the probes and the admin need.
        """
        with self._lock:
            if self._draining:
                raise Draining("This head is leaving.")
            if len(self._answers) >= self._max_answers:
                raise Busy(f"This head worker already has {self._max_answers} answers under way.")
            self._answers.add(answer)
            answer.arrive()
        self.note_load()

    def running(self) -> list[Answer]:
        """The answers under way now, those that wait included."""
        with self._lock:
            return list(self._answers)

    def forget(self, answer: Answer) -> None:
        with self._lock:
            self._answers.discard(answer)
        answer.withdraw()
        self.note_load()

    def note_load(self) -> None:
        """Something began or ended to run or to wait: says so to the metrics. Call without the lock."""
        with self._lock:  # counted and told in one go: else an older count could come last
            under_way = [answer for answer in self._answers if not answer.is_over]
            waiting = sum(answer.is_waiting for answer in under_way)
            self.metrics.load(len(under_way) - waiting, waiting)

    def release(self, urls: Collection[str], session_id: str) -> None:
        """Ends a session on every node it touched: best effort, in the background, never delaying an answer."""
        for url in urls:
            thread = threading.Thread(
                target=self._release, args=(url, session_id), name=f"meshnet-release {url}", daemon=True
            )
            with self._lock:
                self._releases.add(thread)
            try:
                thread.start()
            except RuntimeError:
                logger.warning("No thread to release a session on %s; its TTL will.", url)
                with self._lock:
                    self._releases.discard(thread)

    def _release(self, url: str, session_id: str) -> None:
        try:
            self.directory.client(url).release(session_id, timeout=RELEASE_SECONDS)
        except MeshnetError as error:
            logger.info("%s could not be told to release a session; its TTL will: %s", url, error.detail)
        finally:
            with self._lock:
                self._releases.discard(threading.current_thread())

    # -- leaving

    @property
    def is_leaving(self) -> bool:
        return self._draining

    def drain(self) -> None:
        """No new answers from here on; what still runs after DRAIN_SECONDS is ended with an error. Returns at once."""
        with self._lock:
            self._draining = True
        timer = threading.Timer(DRAIN_SECONDS, self._cancel_all)
        timer.daemon = True
        timer.start()

    def stop(self, *, timeout: float = 2.0) -> None:
        """Ends what still runs, rows written and sessions released, as far as `timeout` seconds allow."""
        self._draining = True
        give_up_at = time.monotonic() + timeout
        for answer in self._cancel_all():
            answer.join(max(0.0, give_up_at - time.monotonic()))
        with self._lock:
            releases = list(self._releases)
        for thread in releases:
            thread.join(max(0.0, give_up_at - time.monotonic()))
        if self.cancel_watch is not None:
            self.cancel_watch.stop()
        if self.keeper is not None:
            self.keeper.stop()

    def _cancel_all(self) -> list[Answer]:
        answers = self.running()
        for answer in answers:
            answer.cancel()
        return answers


def boot_head() -> HeadRuntime:
    """The head that the settings describe, its keeper running. Raises ShardRefused, ModelUnavailable, ValueError."""
    import torch
    from django.apps import apps
    from django.conf import settings

    import generation.answer  # noqa: F401  # loaded with everything else, not by the first request
    from generation.cancel import CancelWatch
    from generation.keeper import Keeper
    from nodes.framing import DTYPES
    from nodes.model_files import find_model
    from nodes.shard import Embedder, wanted_files

    node_app: Any = apps.get_app_config("nodes")
    if node_app.runtime is None:
        # The head looks embeddings up and nothing more: a pool of threads for each request would only get in the
        # way. Beside layers in the same process the setting would reach the engine's matrix library too.
        torch.set_num_threads(1)
    found = find_model(
        settings.MESHNET_MODEL,
        settings.MESHNET_VAR_DIR,
        wanted=wanted_files(
            None, settings.MESHNET_CONTEXT_LENGTH, allow_untested=settings.MESHNET_ALLOW_UNTESTED_MODELS
        ),
    )
    embedder = Embedder.load(
        found.folder,
        dtype=DTYPES[settings.MESHNET_DTYPE],
        context_length=settings.MESHNET_CONTEXT_LENGTH,
        allow_untested=settings.MESHNET_ALLOW_UNTESTED_MODELS,
    )
    # Beside an engine in this process, embedding too belongs on the engine's thread (DESIGN fact 7).
    embeds: Embeds = embedder if node_app.runtime is None else node_app.runtime.on_engine(embedder)
    clients: list[NodeClient] = [] if node_app.runtime is None else [LocalNodeClient(node_app.runtime)]
    clients += [connect(url) for url in dict.fromkeys(url.rstrip("/") for url in settings.MESHNET_NODES)]
    head = HeadRuntime(
        found.name,
        Prompter.load(
            found.folder,
            context_length=embedder.shape.context_length,
            default_max_tokens=settings.MESHNET_MAX_NEW_TOKENS,
        ),
        embeds,
        LoopSettings(
            fingerprint=found.fingerprint,
            dtype=settings.MESHNET_DTYPE,
            n_layers=embedder.shape.n_layers,
            vocab_size=embedder.shape.vocab_size,
            context_length=embedder.shape.context_length,
            piece_tokens=settings.MESHNET_PREFILL_PIECE_TOKENS,
            step_patience=settings.MESHNET_STEP_PATIENCE_SECONDS,
            step_timeout=settings.MESHNET_STEP_TIMEOUT_SECONDS,
            busy_wait=settings.MESHNET_BUSY_WAIT_SECONDS,
            route_wait=settings.MESHNET_ROUTE_WAIT_SECONDS,
            longest=settings.MESHNET_GENERATION_SECONDS,
            handover=settings.MESHNET_HANDOVER,
        ),
        NodeDirectory(NodeFleet(clients, connect)),
        max_answers=settings.MESHNET_MAX_ANSWERS,
    )
    node_app.client_provider = lambda: head.clients
    node_app.announced = head.directory.came
    node_app.left = head.directory.gone

    def fetch(clients: Sequence[NodeClient]) -> list[NodeSnapshot]:
        """So that this worker's pages know what was said last, be it to another worker, and its plans what it heard."""
        seen: list[SeenNode] = node_app.snapshots.look(clients)
        head.directory.learn_seen(seen)
        head.directory.fleet.tidy()
        return [node.now for node in seen]

    head.keeper = Keeper(
        head.boot_id,
        head.directory.fleet,
        fetch=fetch,
        tell_removed=head.directory.set_removed,
        tell_announced=head.directory.fleet.follow,
        sample_seconds=settings.MESHNET_SAMPLE_SECONDS,
        sample_retention=settings.MESHNET_SAMPLE_RETENTION_SECONDS,
    )
    head.keeper.start()
    head.cancel_watch = CancelWatch(head.boot_id, head.running)
    head.cancel_watch.start()
    return head
