"""URLs of a head."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from generation import views

urlpatterns = [
    path("v1/", include("generation.openai.urls")),
    path("admin/", admin.site.urls),
    # Not here: /mesh/…, which meshsite.mesh_paths takes before.
    path("livez", views.livez),
    path("readyz", views.readyz),
    path("metrics", views.metrics),
    path("", RedirectView.as_view(url="/admin/")),
]
