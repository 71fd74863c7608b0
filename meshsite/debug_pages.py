"""What Django's debug pages leave out of the settings that they show."""

from __future__ import annotations

import re

from django.views.debug import SafeExceptionReporterFilter


class HidesCacheURL(SafeExceptionReporterFilter):
    """As Django's own, and the URL of the shared cache, which may hold a password."""

    hidden_settings = re.compile(f"{SafeExceptionReporterFilter.hidden_settings.pattern}|CACHE_URL|LOCATION", re.I)
