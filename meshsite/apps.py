from __future__ import annotations

from django.apps import AppConfig


class MeshsiteConfig(AppConfig):
    name = "meshsite"
    verbose_name = "meshnet"

    def ready(self) -> None:
        from meshsite import checks  # noqa: F401  # registers the system checks
