"""Who belongs to the mesh: whoever sends one of its secrets as a bearer token. For nodes' endpoints and `/mesh/*`."""

from __future__ import annotations

import hmac

from django.conf import settings
from django.http import HttpRequest

from nodes.errors import Unauthorized


def authorize(request: HttpRequest) -> None:
    """Raises Unauthorized unless the request carries MESHNET_SECRET or MESHNET_SECRET_ALSO. Reads no body."""
    check(request.headers.get("Authorization", ""))


def check(authorization: str) -> None:
    """The same, for the header's value ("" when there is none).

    An empty secret lets nobody in. Each comparison takes the same time however much is right, and both are always
    made, so that the time tells neither which of them came close nor whether there are two.
    """
    scheme, _, given = authorization.partition(" ")
    offered = given.encode(errors="replace")
    secrets = (settings.MESHNET_SECRET.encode(), settings.MESHNET_SECRET_ALSO.encode())
    matches = [bool(secret) & hmac.compare_digest(offered, secret) for secret in secrets]
    if not any(matches) or scheme.lower() != "bearer":
        raise Unauthorized()
