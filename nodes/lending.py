"""How a machine lends layers to a mesh: what `manage.py node` does before it becomes a node.

1. It asks a head which layers of which model it should hold (`POST /mesh/join`); the head reserves them for a minute.
2. It finds that model here, or fetches it, and compares fingerprints before anything is loaded.
3. If that took long, it asks again, since the reservation may be over.
4. The environment of the node follows from all that; whoever called becomes gunicorn with it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from nodes.errors import (
    MeshnetError,
    ModelUnavailable,
    NodeProtocolError,
    NodeUnreachable,
    OutsideNetworks,
    Unauthorized,
)
from nodes.joining import JoinRequest
from nodes.layers import LayerRange
from nodes.model_files import DEFAULT_MODEL, ModelFiles, is_hub_id, models_dir
from nodes.model_manifest import MANIFEST
from nodes.networks import as_address, split_url

MIN_SECRET_LENGTH = 16
#: The head may have to read its model's configuration first, which takes seconds.
JOIN_SECONDS = 30.0


class LendingRefused(Exception):  # reads as what happened
    """This machine cannot become a node; the message is one line that says what to do."""


class Head(Protocol):
    url: str

    def join(self, body: dict[str, Any], *, timeout: float) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Loan:
    """What a head asks of this machine."""

    head: str
    model: str
    fingerprint: str
    dtype: str
    context_length: int
    layers: LayerRange
    cache_bytes: int
    reserved_seconds: float

    @classmethod
    def from_json(cls, head: str, answer: Mapping[str, Any]) -> Loan:
        """Raises LendingRefused when a head of another version answered."""
        try:
            return cls(
                head=head,
                model=str(answer["model"]),
                fingerprint=str(answer["fingerprint"]),
                dtype=str(answer["dtype"]),
                context_length=int(answer["context_length"]),
                layers=LayerRange.parse(str(answer["layers"])),
                cache_bytes=int(answer["cache_bytes"]),
                reserved_seconds=float(answer["reserved_seconds"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LendingRefused(f"{head} offers something that cannot be understood ({error!r}).") from None


def read_secret(path: Path) -> str:
    """The mesh secret in a file. Raises LendingRefused."""
    try:
        secret = path.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise LendingRefused(f"The secret file {path} cannot be read: {reason}.") from None
    if len(secret) < MIN_SECRET_LENGTH:
        raise LendingRefused(f"The secret in {path} is shorter than {MIN_SECRET_LENGTH} characters.")
    return secret


def ask_heads(heads: Sequence[Head], wanted: JoinRequest) -> Loan:
    """What the first head that can be reached offers. Raises LendingRefused with the head's own reason."""
    unheard = []
    for head in heads:
        try:
            return Loan.from_json(head.url, head.join(wanted.as_json(), timeout=JOIN_SECONDS))
        except Unauthorized:
            raise LendingRefused(f"{head.url} does not know this secret: it must be the mesh's own.") from None
        except OutsideNetworks as error:
            raise LendingRefused(f"{error.detail} That is a setting of the head.") from None
        except NodeUnreachable as error:
            unheard.append(error.detail)
        except NodeProtocolError as error:
            raise LendingRefused(f"{error.detail} Is it the URL of a head of this version?") from None
        except MeshnetError as error:
            raise LendingRefused(error.detail) from None
    raise LendingRefused(f"No head can be reached: {' '.join(unheard)}")


@dataclass(frozen=True)
class Shelf:
    """Where models are found on this machine. `find` raises ModelUnavailable; `fetch_default` fetches the default one.

    find gets the model (name, path or hub id) and the layers that are wanted of it.
    """

    var_dir: Path
    find: Callable[[str, LayerRange], ModelFiles]
    fetch_default: Callable[[], object]

    def take(self, loan: Loan, model: str = "") -> tuple[str, ModelFiles]:
        """What MESHNET_MODEL must be set to for the loan, and the files. `model` is where the user says it is.

        Raises LendingRefused when the model is not here and cannot be fetched, or is another one.
        """
        name = model or loan.model
        try:
            if name == DEFAULT_MODEL:
                self.fetch_default()
            elif not model and not is_hub_id(name) and not (models_dir(self.var_dir) / name).is_dir():
                raise ModelUnavailable(
                    f"The mesh serves {name}, a folder of the head's own that is not here. Copy it, {MANIFEST} "
                    f"included, to {models_dir(self.var_dir) / name}, or say where it is (make node MODEL=/path)."
                )
            found = self.find(name, loan.layers)
        except MeshnetError as error:
            raise LendingRefused(error.detail) from None
        if found.fingerprint != loan.fingerprint:
            raise LendingRefused(
                f"{found.folder} is another model than the mesh serves under the name {loan.model}: its fingerprint is "
                f"{found.fingerprint}, the head's {loan.fingerprint}. Copy the head's folder here, {MANIFEST} included."
            )
        return name, found


def address_for(heads: Sequence[str], url: str) -> str:
    """The address to listen on: loopback when head and node are on one machine, else all of this machine's."""
    hosts = [split_url(one)[1] for one in (*heads, *([url] if url else ()))]
    addresses = [as_address("127.0.0.1" if host == "localhost" else host) for host in hosts]
    if all(address is not None and address.is_loopback for address in addresses):
        return "[::1]" if all(address is not None and address.version == 6 for address in addresses) else "127.0.0.1"
    return "0.0.0.0"  # noqa: S104  # other machines must reach it


def check_port(address: str, port: int) -> None:
    """Raises LendingRefused when the port cannot be had; it may still go until the server takes it."""
    family = socket.AF_INET6 if address.startswith("[") else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gunicorn binds
        try:
            probe.bind((address.strip("[]"), port))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "there is no such port"
            raise LendingRefused(
                f"Port {port} of {address} cannot be had: {reason}. Name another one (make node PORT=…)."
            ) from None


def node_environment(
    environ: Mapping[str, str],
    loan: Loan,
    *,
    model: str,
    heads: Sequence[str],
    bind: str,
    url: str,
    secret: Path | None,
) -> dict[str, str]:
    """The environment of the node: the user's, and in it what the loan demands. `secret` is the secret's file.

    Caches get what memory is left, if the user did not set a limit, and never more than a node's default.
    """
    own = {
        "DJANGO_SETTINGS_MODULE": "meshsite.settings",
        "MESHNET_ROLE": "node",
        "MESHNET_HEADS": ",".join(heads),
        "MESHNET_BIND": bind,
        "MESHNET_URL": url,
        "MESHNET_MODEL": model,
        "MESHNET_LAYERS": str(loan.layers),
        "MESHNET_DTYPE": loan.dtype,
        "MESHNET_CONTEXT_LENGTH": str(loan.context_length),
    }
    if "MESHNET_KV_MAX_BYTES" not in environ:
        own["MESHNET_KV_MAX_BYTES"] = str(max(1, min(2 * 1024**3, loan.cache_bytes)))
    unwanted = {f"{name}_FILE" for name in own} | {"GUNICORN_CMD_ARGS", "MESHNET_NODES", "DATABASE_URL"}
    if secret is not None:
        unwanted.add("MESHNET_SECRET")
        own["MESHNET_SECRET_FILE"] = str(secret.expanduser().absolute())
    return {**{name: value for name, value in environ.items() if name not in unwanted}, **own}
