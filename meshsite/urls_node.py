"""URLs of a node."""

from __future__ import annotations

from django.urls import path

from nodes import views
from nodes.urls import urlpatterns as node_urls

urlpatterns = [
    *node_urls,
    path("livez", views.livez),
    path("readyz", views.readyz),
    path("metrics", views.metrics),
]
handler404 = "nodes.views.not_found"
handler500 = "nodes.views.server_error"
