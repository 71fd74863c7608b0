"""The name of the house on every admin page."""

from __future__ import annotations

from django.contrib import admin

admin.site.site_header = "meshnet"
admin.site.site_title = "meshnet"
admin.site.index_title = "Your mesh"
