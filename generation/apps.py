from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig

if TYPE_CHECKING:
    from generation.limits import KeyLimits
    from generation.runtime import HeadRuntime


class GenerationConfig(AppConfig):
    name = "generation"
    verbose_name = "Text generation"

    #: The head that this process serves; set once by the gunicorn hook. None in commands and while loading.
    runtime: HeadRuntime | None = None

    #: What API keys may still do, as this process sees it; set once the models are there.
    limits: KeyLimits

    def ready(self) -> None:
        self.limits = _key_limits()


def _key_limits() -> KeyLimits:
    from django.conf import settings

    if settings.MESHNET_CACHE_URL:
        from generation.limits_redis import RedisKeyLimits

        return RedisKeyLimits.from_settings()
    from generation.limits_database import DatabaseKeyLimits

    return DatabaseKeyLimits()
