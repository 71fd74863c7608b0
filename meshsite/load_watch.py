"""Asks the heads again and again how many generations wait and run: what autoscaling goes by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from http.client import HTTPConnection, HTTPException
from time import monotonic
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from meshsite.autoscaling import Load
from nodes.metrics import PREFIX

LOOK_SECONDS = 3.0
#: A head asks all its nodes before it answers, for 1.5 s at most.
ASK_SECONDS = 4.0
#: What was seen says nothing any more after so long.
STALE_SECONDS = 10.0


def scrape(head_url: str, token: str = "") -> str:
    """A head's metrics; the token is for a head that is not on loopback. Raises OSError or HTTPException."""
    parts = urlsplit(head_url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=ASK_SECONDS)
    try:
        authorization = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", "/metrics", headers={"Connection": "close", **authorization})
        response = connection.getresponse()
        if response.status != 200:
            raise HTTPException(f"{head_url}/metrics answers {response.status}")
        return response.read().decode()
    finally:
        connection.close()


class LoadWatch:
    """Has a thread of its own once started, which forks nothing. `latest` may be called from any thread."""

    def __init__(
        self,
        head_urls: Sequence[str],
        say: Callable[[str], None],
        *,
        scrape: Callable[[str], str] = scrape,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._head_urls = head_urls
        self._say = say
        self._said = ""
        self._scrape = scrape
        self._clock = clock
        self._stop = threading.Event()
        self._seen: tuple[float, Load] | None = None

    def __enter__(self) -> LoadWatch:
        return self

    def start(self) -> None:
        """Begins to look, until the context is left."""
        threading.Thread(target=self._run, name="meshnet-load", daemon=True).start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No further look begins, and what one that is under way does not see is not said. Returns at once."""
        self._stop.set()

    def latest(self) -> Load | None:
        """What was seen last; None when that is too long ago."""
        seen = self._seen
        return seen[1] if seen is not None and self._clock() - seen[0] < STALE_SECONDS else None

    def look(self) -> None:
        """Asks all heads once. What one of them alone says would be too little: then nothing was seen."""
        try:
            texts = [self._scrape(url) for url in self._head_urls]
            self._seen = (self._clock(), load_of(texts))
            self._said = ""
        except (OSError, HTTPException, ValueError, OverflowError) as error:
            self._seen = None
            if not self._said and not self._stop.is_set():
                self._said = f"Autoscaling does nothing while a head does not say what waits: {error}"
                self._say(self._said)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._stop.wait(LOOK_SECONDS)


def load_of(expositions: Sequence[str]) -> Load:
    """The heads' metrics added up. A replica holds what its narrowest node holds. Raises ValueError."""
    counts = {"num_requests_waiting": 0.0, "num_requests_running": 0.0}
    limits: dict[str, float] = {}
    cache = 0.0
    for text in expositions:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix(PREFIX)
                if name in counts:
                    counts[name] += sample.value
                elif name == "kv_sessions_limit" and "node" in sample.labels:
                    limits[sample.labels["node"]] = sample.value
                elif name == "kv_cache_usage_perc" and "node" in sample.labels:
                    cache = max(cache, sample.value)
    return Load(
        waiting=int(counts["num_requests_waiting"]),
        running=int(counts["num_requests_running"]),
        slots=int(min(limits.values(), default=0.0)),
        cache=cache,
    )
