"""Staff members with chosen rights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

SignIn = Callable[..., Client]


@pytest.fixture
def sign_in() -> SignIn:
    """`sign_in("view_generation", …)` is a browser of a staff member with these rights and no others."""

    def sign_in(*rights: str, superuser: bool = False) -> Client:
        user = User.objects.create_user("operator", is_staff=True, is_superuser=superuser)
        wanted = Permission.objects.filter(codename__in=rights, content_type__app_label__in=["generation", "nodes"])
        user.user_permissions.set(wanted)
        client = Client()
        client.force_login(user)
        return client

    return sign_in
