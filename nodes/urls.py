"""The node's endpoints."""

from __future__ import annotations

from django.urls import path

from nodes import views

urlpatterns = [
    path("forward", views.forward),
    path("sessions", views.sessions),
    path("sessions/evict", views.evict),
    path("sessions/<str:session_id>", views.session),
    path("sessions/<str:session_id>/steps/<str:nonce>", views.result),
    path("status", views.status),
    path("limits", views.limits),
    path("drain", views.drain),
]
