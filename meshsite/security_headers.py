"""What browsers are told about a head's pages, beyond what Django and django-csp say.

The rest is in `settings.py`: Content-Security-Policy (django-csp), Referrer-Policy, X-Content-Type-Options,
Cross-Origin-Opener-Policy and HSTS (SecurityMiddleware), X-Frame-Options.
"""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

#: The pages use none of what a browser could allow them.
PERMISSIONS = ", ".join(
    f"{feature}=()"
    for feature in (
        "accelerometer",
        "camera",
        "display-capture",
        "geolocation",
        "gyroscope",
        "magnetometer",
        "microphone",
        "midi",
        "payment",
        "usb",
    )
)


class SecurityHeaders:
    """Permissions-Policy everywhere; and nothing of the admin is kept by a browser or proxy (Django leaves that to
    each view, and not all of its own say so).
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        if request.path_info.startswith("/admin/") and "no-store" not in response.headers.get("Cache-Control", ""):
            response.headers["Cache-Control"] = "no-store, private"
        return response
