"""What is recorded: requests of every kind, as scenarios of one node each. tests/record.py sends them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import torch

from nodes import framing
from nodes.framing import Payload
from nodes.wire import CACHE, END_LAYER, MODEL, PAST_LEN, SESSION, START_LAYER
from tests import processes
from tests.recordings import FINGERPRINT, described

INNER, TAIL = "0:2", "2:4"


@dataclass
class Scenario:
    """Requests to one node, in order. `settings` are those of its process beside model, layers and secret."""

    name: str
    about: str
    layers: str
    settings: dict[str, str] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        about: str,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        secret: str | None = processes.SECRET,
    ) -> None:
        sent = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        sent.update(headers or {})
        request = {"method": method, "path": path, "headers": sent, **described(sent, body)}
        self.requests.append({"about": about, "request": request})

    def step(
        self,
        about: str,
        tokens: int,
        *,
        sampling: dict[str, Any] | None = None,
        secret: str | None = processes.SECRET,
        **headers: Any,
    ) -> None:
        """One /forward of so many tokens; headers by the names below."""
        names = {
            "session": SESSION,
            "cache": CACHE,
            "past": PAST_LEN,
            "start": START_LAYER,
            "end": END_LAYER,
            "model": MODEL,
            "type": "Content-Type",
        }
        sent = {"Content-Type": "application/octet-stream"}
        sent.update({names[name]: str(value) for name, value in headers.items()})
        # Another text in each step, the same in each recording.
        generator = torch.Generator().manual_seed(len(self.requests))
        hidden = torch.randn(1, tokens, 64, generator=generator)
        self.add(about, "POST", "/forward", framing.encode(Payload(hidden, sampling=sampling)), sent, secret=secret)

    def json(self, about: str, method: str, path: str, value: Any) -> None:
        body = json.dumps(value).encode()
        self.add(about, method, path, body, {"Content-Type": "application/json"})


def session(letter: str) -> str:
    return f"recorded-session-{letter * 6}"


def scenarios() -> list[Scenario]:
    return [
        stateless_inner(),
        stateless_tail(),
        sampling(),
        cached_inner(),
        cached_tail(),
        misses(),
        layers_and_model(),
        caching_off(),
        busy(),
        evictions(),
        status(),
        limits_and_drain(),
        refusals(),
    ]


def stateless_inner() -> Scenario:
    case = Scenario("stateless-inner", "A step without any header, on a node that does not end the model.", INNER)
    case.step("Three tokens as a whole text: hidden states come back, nothing is remembered.", 3)
    case.step("A session alone changes nothing: without a cache mode it is still stateless.", 2, session=session("a"))
    case.add("Nothing is held.", "GET", "/sessions")
    return case


def stateless_tail() -> Scenario:
    case = Scenario("stateless-tail", "A step without any header, on the tail.", TAIL)
    case.step("Three tokens as a whole text: the most probable token after the last.", 3)
    case.step("No token is wanted: token_id is null.", 3, sampling={"want_token": False})
    return case


def sampling() -> Scenario:
    case = Scenario("sampling", "Sampled tokens, which a seed repeats.", TAIL)
    chosen: dict[str, Any] = {"temperature": 0.9, "top_k": 0, "top_p": 0.95, "seed": 7, "choice": 0}
    case.step("Position 4: u comes from the text `7,0,4`.", 4, sampling=chosen)
    case.step("Only the first token is kept.", 4, sampling={"temperature": 1.0, "top_k": 1, "seed": 7})
    case.step("An unknown field is refused.", 4, sampling={"temperatur": 1.0})
    case.step("A value out of its range is refused.", 4, sampling={"temperature": -1})
    return case


def cached_inner() -> Scenario:
    case = Scenario("session-inner", "A whole session on a node that does not end the model.", INNER)
    one: dict[str, Any] = {"session": session("i")}
    case.step("Prefill: X-Meshnet-Past-Len acknowledges three tokens.", 3, cache="prefill", **one)
    case.step("Decode of one token.", 1, cache="decode", past=3, **one)
    case.step("Decode of four tokens at once, as a long prompt's further piece.", 4, cache="decode", past=4, **one)
    case.add("The session as it is listed.", "GET", "/sessions")
    case.step("A second prefill replaces what is held, in one step.", 2, cache="prefill", **one)
    case.step("The old length is a miss now.", 1, cache="decode", past=8, **one)
    case.step("The new one continues.", 1, cache="decode", past=2, **one)
    case.add("The end of the session.", "DELETE", f"/sessions/{one['session']}")
    case.add("It is not held any more.", "DELETE", f"/sessions/{one['session']}")
    case.step("A late decode is told that the session was released.", 1, cache="decode", past=3, **one)
    case.step("So is a late prefill.", 3, cache="prefill", **one)
    return case


def cached_tail() -> Scenario:
    case = Scenario("session-tail", "A whole session on the tail: a prompt in two pieces, then two tokens.", TAIL)
    one: dict[str, Any] = {"session": session("t")}
    unwanted: dict[str, Any] = {"want_token": False}
    case.step("The first piece of the prompt.", 4, cache="prefill", sampling=unwanted, **one)
    case.step("The last piece: its answer is the first new token.", 3, cache="decode", past=4, **one)
    case.step("Greedy: no sampling at all.", 1, cache="decode", past=7, **one)
    case.step("Sampled.", 1, cache="decode", past=8, sampling={"temperature": 0.7, "seed": 11}, **one)
    case.add("The end of the session.", "DELETE", f"/sessions/{one['session']}")
    return case


def misses() -> Scenario:
    case = Scenario("misses", "Every reason for 409 but `caching_disabled`.", INNER)
    one: dict[str, Any] = {"session": session("m")}
    case.step("Nothing is held under this id.", 1, cache="decode", past=3, session=session("u"))
    case.step("A session over both layers of the node.", 3, cache="prefill", **one)
    case.step("Too short.", 1, cache="decode", past=2, **one)
    case.step("Too long.", 1, cache="decode", past=4, **one)
    case.step("Layers with another start.", 1, cache="decode", past=3, start=1, **one)
    case.step("Layers with another end.", 1, cache="decode", past=3, end=1, **one)
    case.step("None of them changed anything.", 1, cache="decode", past=3, **one)
    return case


def layers_and_model() -> Scenario:
    case = Scenario("layers-and-model", "A part of the node's layers; 421 for what it does not have.", INNER)
    case.step("Layer 1 alone.", 2, start=1, end=2)
    case.step("Its own model by its fingerprint.", 2, start=0, end=2, model=FINGERPRINT)
    case.step("Layers of another node.", 2, start=2, end=4)
    case.step("Another model.", 2, model="another/model@1")
    case.step("No layer.", 2, start=1, end=1)
    return case


def caching_off() -> Scenario:
    case = Scenario("caching-off", "A node that does not cache.", INNER, {"MESHNET_KV_ENABLED": "false"})
    one: dict[str, Any] = {"session": session("o")}
    case.step("A prefill is answered without the acknowledgement.", 3, cache="prefill", **one)
    case.step("A decode is refused.", 1, cache="decode", past=3, **one)
    return case


def busy() -> Scenario:
    case = Scenario("busy", "A node with a single slot.", INNER, {"MESHNET_KV_MAX_SESSIONS": "1"})
    first, second = session("f"), session("s")
    case.step("The slot is taken.", 3, cache="prefill", session=first)
    case.step("There is none left; Retry-After says when to come again.", 3, cache="prefill", session=second)
    case.step("The session that has the slot goes on.", 1, cache="decode", past=3, session=first)
    case.json("Its head gives the slot back.", "POST", "/sessions/evict", {"ids": [first], "by": "head"})
    case.step("Now there is room.", 3, cache="prefill", session=second)
    case.json("Room for the first again.", "POST", "/sessions/evict", {"ids": [second], "by": "head"})
    case.step("An id that was given back may come again.", 3, cache="prefill", session=first)
    return case


def evictions() -> Scenario:
    case = Scenario("evictions", "An operator takes sessions away.", INNER)
    one, two = session("e"), session("v")
    case.step("A session.", 3, cache="prefill", session=one)
    case.step("Another one.", 2, cache="prefill", session=two)
    case.json("By id, one of them unknown.", "POST", "/sessions/evict", {"ids": [one, session("x")]})
    case.step("The next decode is a miss.", 1, cache="decode", past=3, session=one)
    case.json("None is idle for so long.", "POST", "/sessions/evict", {"idle_longer_than": 600})
    case.json("All.", "POST", "/sessions/evict", {"all": True})
    case.json("Nothing is chosen.", "POST", "/sessions/evict", {})
    return case


def status() -> Scenario:
    case = Scenario("status", "What a tail says of itself.", TAIL)
    case.add("Everything a head plans with, and more.", "GET", "/status")
    case.add("The process lives; open to all.", "GET", "/livez", secret=None)
    case.add("The node takes sessions; open to all.", "GET", "/readyz", secret=None)
    return case


def limits_and_drain() -> Scenario:
    case = Scenario("limits-and-drain", "Other limits, and a node that leaves.", INNER)
    one: dict[str, Any] = {"session": session("d")}
    case.json("Other limits until the next start.", "PATCH", "/limits", {"ttl_seconds": 120, "max_sessions": 4})
    case.json("An unknown limit.", "PATCH", "/limits", {"sessions": 4})
    case.step("A session.", 3, cache="prefill", **one)
    case.json("The node leaves.", "POST", "/drain", {})
    case.step("It takes no new session.", 3, cache="prefill", session=session("n"))
    case.step("A session that it has goes on.", 1, cache="decode", past=3, **one)
    case.add("It does not want to be planned with.", "GET", "/readyz", secret=None)
    case.json("It stays after all.", "DELETE", "/drain", {})
    case.step("It takes sessions again.", 3, cache="prefill", session=session("n"))
    return case


def refusals() -> Scenario:
    case = Scenario("refusals", "What is refused, and how.", INNER)
    one: dict[str, Any] = {"session": session("r")}
    case.step("No secret; refused before the body is read, so the connection is closed.", 1, secret=None)
    case.step("A wrong secret.", 1, secret="wrong")
    case.step("Another content type.", 1, type="application/json")
    case.step("A cache mode without a session.", 1, cache="prefill")
    case.step("A decode without a length.", 1, cache="decode", **one)
    case.step("A length that is none.", 1, cache="decode", past="1e3", **one)
    case.step("Sampling on a node that does not sample.", 1, sampling={"temperature": 1.0})
    case.step("A text longer than the model takes.", 1, cache="decode", past=512, **one)
    tensors = {"Content-Type": "application/octet-stream"}
    case.add("A body that is none.", "POST", "/forward", b"garbage", tensors)
    nan = framing.encode(Payload(torch.full((1, 1, 64), float("nan"))))
    case.add("NaN.", "POST", "/forward", nan, tensors)
    case.add("Another method.", "GET", "/forward")
    case.add("Another path.", "GET", "/nowhere")
    case.add("No id of a session.", "DELETE", "/sessions/short")
    return case
