"""The node's voice: tells its heads of it every few seconds, at once when its state changes, and when it leaves.

Each head has a thread of its own, so that a silent one delays no other, and steps never wait for any. Algorithm of a
head's thread:

1. It sends the announcement. The head may ask for a quicker beat than the node's own.
2. Accepted: the next one follows after the beat. Refused or unheard: after 0.5, 1, 2 … s, up to LONGEST_PAUSE_SECONDS
   or the beat, whichever is longer, so that a node is known soon after its head is back.
3. A pause is up to a tenth shorter than that, after a failure up to half: a thousand nodes that started together, or
   whose head came back, would else ask it in the same moment again and again, and it verifies eight at once.
4. What changed (accepted, refused with another reason, unheard) is one line in the log; the same again is none.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from nodes.amounts import is_number
from nodes.announcement import Announcement
from nodes.errors import MeshnetError, NodeUnreachable
from nodes.layers import LayerRange

if TYPE_CHECKING:
    from nodes.runtime import NodeRuntime

logger = logging.getLogger(__name__)

#: A head verifies a new node before it answers, which may take it 2.5 s.
SEND_SECONDS = 5.0
#: A process that leaves does not wait long for its heads.
GOODBYE_SECONDS = 1.0
#: How much of that a good-bye waits for the beat before it.
LAST_BEAT_SECONDS = 0.5
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 10.0
#: A pause is cut by as much as this share, at random: of a beat, and of the pause after a failure.
BEAT_JITTER = 0.1
FAILURE_JITTER = 0.5
SHORTEST_BEAT_SECONDS = 0.5


class Head(Protocol):
    """A head as a node knows it. Raises MeshnetError subclasses and nothing else."""

    url: str

    def announce(self, body: dict[str, Any], *, timeout: float) -> dict[str, Any]: ...


class HeadVoice:
    """What one head is told. `describe` makes the announcement anew each time; `seconds` is the node's own beat."""

    def __init__(
        self,
        head: Head,
        describe: Callable[[], Announcement],
        seconds: float,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self._head = head
        self._rng = rng or random.Random()  # noqa: S311  # spreads load; nothing secret
        self._describe = describe
        self._seconds = seconds
        self._failures = 0
        self._said = ""
        self._wake = threading.Event()
        self._stopping = False
        self._speaking = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"meshnet-announcer {head.url}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """The next announcement is due now."""
        self._wake.set()

    def stop(self) -> None:
        """No further announcement; one that is under way goes on."""
        self._stopping = True
        self._wake.set()

    def turn(self) -> float:
        """Announces once; how long this node pauses then, which is not what others do."""
        pause = self.speak()
        return pause * (1 - (FAILURE_JITTER if self._failures else BEAT_JITTER) * self._rng.random())

    def speak(self) -> float:
        """Announces once; seconds until the next time."""
        try:
            answer = self._head.announce(self._describe().as_json(), timeout=SEND_SECONDS)
        except MeshnetError as error:
            self._failures += 1
            heard = not isinstance(error, NodeUnreachable)
            self._say(f"{self._head.url} {'refuses this node' if heard else 'does not hear this node'}: {error.detail}")
            pause: float = FIRST_PAUSE_SECONDS * 2 ** min(self._failures - 1, 10)
            return min(pause, max(self._seconds, LONGEST_PAUSE_SECONDS))
        self._failures = 0
        self._say(f"{self._head.url} knows this node as {answer.get('url')!s:.200}.", logging.INFO)
        wanted: Any = answer.get("beat_seconds")
        return max(min(self._seconds, float(wanted)), SHORTEST_BEAT_SECONDS) if is_number(wanted) else self._seconds

    def say_goodbye(self) -> None:
        # A beat that is under way comes first, if it does not take long: the head could take it for news otherwise.
        waited = self._speaking.acquire(timeout=LAST_BEAT_SECONDS)
        try:
            self._head.announce({**self._describe().as_json(), "state": "leaving"}, timeout=GOODBYE_SECONDS)
        except MeshnetError as error:
            logger.info("%s could not be told good-bye: %s", self._head.url, error.detail)
        finally:
            if waited:
                self._speaking.release()

    def _say(self, line: str, level: int = logging.WARNING) -> None:
        # What is said to a process on its way out is no news: a late beat may come in after its good-bye.
        if line != self._said and not self._stopping:
            self._said = line
            logger.log(level, "%s", line)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                with self._speaking:
                    if self._stopping:
                        return
                    pause = self.turn()
            except Exception:  # whatever it was, the next beat must come
                logger.exception("An announcement to %s failed.", self._head.url)
                pause = LONGEST_PAUSE_SECONDS
            if not self._stopping:
                self._wake.wait(pause)


class Announcer:
    """One per node. All methods may be called from any thread."""

    def __init__(self, heads: Sequence[Head], describe: Callable[[], Announcement], seconds: float) -> None:
        self._voices = [HeadVoice(head, describe, seconds) for head in heads]
        self._gone = threading.Event()

    def start(self) -> None:
        for voice in self._voices:
            voice.start()

    def announce_now(self) -> None:
        """The node's state has changed: its heads are told at once."""
        for voice in self._voices:
            voice.hurry()

    def say_goodbye(self) -> None:
        """Tells all heads side by side, once, and ends the beats. Returns after GOODBYE_SECONDS at the latest."""
        if self._gone.is_set():
            return
        self._gone.set()
        threads = [threading.Thread(target=voice.say_goodbye, daemon=True) for voice in self._voices]
        for voice in self._voices:
            voice.stop()
        for thread in threads:
            thread.start()
        give_up_at = time.monotonic() + GOODBYE_SECONDS
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))


def describe(runtime: NodeRuntime, *, url: str, scheme: str, port: int) -> Announcement:
    """The node as it is now."""
    status, held = runtime.status(), runtime.sessions()
    return Announcement(
        boot_id=status["boot_id"],
        model=status["model"],
        fingerprint=status["fingerprint"],
        layers=LayerRange(status["start_layer"], status["end_layer"]),
        n_layers=status["n_layers"],
        dtype=status["dtype"],
        context_length=status["context_length"],
        state=status["state"],
        max_sessions=held["limits"]["max_sessions"],
        max_bytes=held["limits"]["max_bytes"],
        sessions=held["stats"]["sessions"],
        bytes=held["stats"]["bytes"],
        version=status["versions"]["meshnet"],
        url=url,
        scheme=scheme,
        port=port,
    )


def start_announcing(runtime: NodeRuntime, port: int) -> Announcer | None:
    """Begins to announce the node, which serves on `port`, to the heads of the settings; None when there are none."""
    from django.conf import settings

    from nodes.head_client import connect_head
    from nodes.networks import normal_url

    if not settings.MESHNET_HEADS:
        return None
    url = normal_url(settings.MESHNET_URL) if settings.MESHNET_URL else ""
    if not url and not port:
        logger.error("This node has no port of its own to announce: set MESHNET_URL.")
        return None
    scheme = "https" if settings.MESHNET_TLS_CERT else "http"
    announcer = Announcer(
        [connect_head(head) for head in settings.MESHNET_HEADS],
        lambda: describe(runtime, url=url, scheme=scheme, port=port),
        settings.MESHNET_ANNOUNCE_SECONDS,
    )
    runtime.state_changed = announcer.announce_now
    announcer.start()
    return announcer
