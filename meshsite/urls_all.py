"""URLs of a head that also holds layers."""

from __future__ import annotations

from meshsite.urls_head import urlpatterns as head_urls
from nodes.urls import urlpatterns as node_urls

urlpatterns = [*node_urls, *head_urls]
