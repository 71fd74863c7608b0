"""`manage.py node`: lends layers of this machine to a mesh, with one command. The process becomes gunicorn."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes import lending
from nodes.amounts import human_bytes, parse_bytes
from nodes.errors import BadRequest
from nodes.fetch import Fetch
from nodes.head_client import HeadClient, connect_head
from nodes.joining import JoinRequest
from nodes.layers import LayerRange
from nodes.lending import LendingRefused, Loan, Shelf
from nodes.memory import available_bytes
from nodes.model_files import ModelFiles, find_model, is_hub_id
from nodes.networks import normal_url


class Command(BaseCommand):
    help = (
        "Makes this machine a node of a mesh: asks the head which layers it should hold, finds or fetches the model, "
        "and serves until Ctrl-C."
    )
    requires_system_checks = ()  # the node's own process makes them

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--head", required=True, metavar="URL[,URL]", help="The mesh's head or heads.")
        parser.add_argument("--secret-file", metavar="FILE", help="File with the mesh secret. Default: MESHNET_SECRET.")
        parser.add_argument("--url", default="", help="How heads reach this node. Default: the address they see.")
        parser.add_argument("--layers", default="", metavar="A:B", help="Layers to hold. Default: what is needed most.")
        parser.add_argument("--port", default="8001", help="Port to listen on. Default: %(default)s.")
        parser.add_argument(
            "--bind",
            default="",
            metavar="ADDRESS",
            help="Address to listen on. Default: loopback for a head on it, else all.",
        )
        parser.add_argument("--model", default="", help="Where the model is, if not where it is looked for.")
        parser.add_argument(
            "--memory", default="", metavar="SIZE", help="Memory to use: 8GiB, 8GB. Default: what is available."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            environ = self._prepare(options)
        except LendingRefused as error:
            raise CommandError(str(error)) from None
        self.stdout.flush()
        os.chdir(settings.BASE_DIR)
        command = [sys.executable, "-m", "gunicorn", "-c", "meshsite/gunicorn_node.py", "meshsite.wsgi"]
        os.execve(sys.executable, command, environ)  # noqa: S606  # the same process: signals reach gunicorn itself

    def _prepare(self, options: dict[str, Any]) -> dict[str, str]:
        """The environment with which this process becomes the node. Raises LendingRefused."""
        secret_file = Path(options["secret_file"]) if options["secret_file"] else None
        heads = self._heads(options["head"], secret_file)
        urls = [head.url for head in heads]
        url = _url(options["url"])
        address = options["bind"] or lending.address_for(urls, url)
        port = _port(options["port"])
        lending.check_port(address, port)
        wanted = JoinRequest(
            memory_bytes=_memory(options["memory"]),
            url=url,
            scheme="https" if settings.MESHNET_TLS_CERT else "http",
            port=port,
            layers=_layers(options["layers"]),
        )
        asked = monotonic()
        loan = lending.ask_heads(heads, wanted)
        self._say_loan(loan)
        shelf = Shelf(settings.MESHNET_VAR_DIR, _find, self._fetch_default)
        model, _ = shelf.take(loan, options["model"].strip())
        if monotonic() - asked > loan.reserved_seconds / 2:
            loan = lending.ask_heads(heads, wanted)
            self._say_loan(loan)
            model, _ = shelf.take(loan, options["model"].strip())
        self.stdout.write(f"Loading, then serving on {address}:{port}. Ctrl-C ends the node.")
        return lending.node_environment(
            os.environ, loan, model=model, heads=urls, bind=f"{address}:{port}", url=url, secret=secret_file
        )

    def _heads(self, text: str, secret_file: Path | None) -> list[HeadClient]:
        secret = settings.MESHNET_SECRET if secret_file is None else lending.read_secret(secret_file)
        if len(secret) < lending.MIN_SECRET_LENGTH:
            raise LendingRefused("Name the file with the mesh secret: --secret-file (make node SECRET_FILE=…).")
        try:
            heads = [connect_head(normal_url(url.strip()), secret) for url in text.split(",") if url.strip()]
        except (BadRequest, ImproperlyConfigured) as error:
            raise LendingRefused(str(error)) from None
        if not heads:
            raise LendingRefused("Name the mesh's head: --head https://… (make node HEAD=…).")
        return heads

    def _say_loan(self, loan: Loan) -> None:
        self.stdout.write(
            f"{loan.head} asks for layers {loan.layers} of {loan.model} ({loan.dtype}); "
            f"{human_bytes(loan.cache_bytes)} are left for sessions."
        )

    def _fetch_default(self) -> None:
        Fetch(settings.MESHNET_VAR_DIR, self.stdout.write).run()


def _find(model: str, layers: LayerRange) -> ModelFiles:
    wanted = None
    if is_hub_id(model):
        from nodes.shard import wanted_files  # loads torch, which takes seconds

        wanted = wanted_files(
            layers, settings.MESHNET_CONTEXT_LENGTH, allow_untested=settings.MESHNET_ALLOW_UNTESTED_MODELS
        )
    return find_model(model, settings.MESHNET_VAR_DIR, wanted=wanted)


def _url(text: str) -> str:
    try:
        return normal_url(text.strip()) if text.strip() else ""
    except BadRequest as error:
        raise LendingRefused(f"--url: {error.detail}") from None


def _layers(text: str) -> LayerRange | None:
    try:
        return LayerRange.parse(text) if text.strip() else None
    except ValueError as error:
        raise LendingRefused(f"--layers: {error} Write start:end, such as 0:15.") from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 65535):
        raise LendingRefused(f"--port: {text!r:.20} is not a port.")
    return int(text)


def _memory(text: str) -> int:
    if text.strip():
        try:
            return parse_bytes(text)
        except ValueError as error:
            raise LendingRefused(f"--memory: {error}") from None
    size = available_bytes()
    if size is None:
        raise LendingRefused("This machine does not say how much memory it has: name it with --memory 8GiB.")
    return size
