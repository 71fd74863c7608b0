"""The head's endpoints for nodes: thin shells over `announcements` and `joining`, with the rules of a node's own.

Every caller shows the mesh secret; errors are the protocol's JSON.
"""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse

from nodes import announcements, joining, wire
from nodes.announcement import Announcement
from nodes.errors import BadRequest
from nodes.joining import JoinRequest
from nodes.metrics_access import FORWARDED_HEADERS
from nodes.views import endpoint, json_object, read_body

#: An announcement takes less than 1 KiB.
MAX_BODY_BYTES = 64 * 1024


@endpoint("POST")
def announce(request: HttpRequest) -> HttpResponse:
    """A node says where it is, what it holds and how it is doing."""
    announcement = Announcement.from_json(json_object(read_body(request, wire.JSON_TYPE, MAX_BODY_BYTES)))
    row = announcements.accept(announcement, _address(request, has_url=bool(announcement.url)))
    return JsonResponse({"url": row.url, "beat_seconds": settings.MESHNET_ANNOUNCE_SECONDS})


@endpoint("POST")
def join(request: HttpRequest) -> HttpResponse:
    """A machine asks which layers of which model it should hold."""
    wanted = JoinRequest.from_json(json_object(read_body(request, wire.JSON_TYPE, MAX_BODY_BYTES)))
    offer = joining.offer(wanted, _address(request, has_url=bool(wanted.url)))
    return JsonResponse(offer.as_json())


def _address(request: HttpRequest, *, has_url: bool) -> str:
    """Where the request came from. Raises BadRequest when it is needed and a proxy stands in between.

    What a proxy says of its own peer is not asked for: whether it can be believed is for no one to tell here.
    """
    if not has_url and any(name in request.headers for name in FORWARDED_HEADERS):
        raise BadRequest(
            "A proxy stands between this node and the head, so the node's address cannot be seen: set MESHNET_URL "
            "(make node URL=…)."
        )
    return str(request.META.get("REMOTE_ADDR", ""))
