"""URLs of a head that also holds layers."""

from __future__ import annotations

from meshsite.urls_head import urlpatterns

# The node's own paths never get here: meshsite.node_paths takes them before.
__all__ = ["urlpatterns"]
