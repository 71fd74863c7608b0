"""What MESHNET_CACHE_URL may be, looked at before anything is connected. Never repeated: it may hold a password."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from django.core.exceptions import ImproperlyConfigured

#: Options of redis-py that may stand behind the `?`: files for TLS.
OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_FORM = (
    "write redis://host:6379/0, with :password@ before the host if it has one (percent-encoded), and rediss:// for TLS"
)


def check_cache_url(url: str) -> None:
    """Raises ImproperlyConfigured for what is not the URL of a Redis; an empty one is none."""
    if not url:
        return
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:  # its text repeats parts of the URL
        raise ImproperlyConfigured(f"MESHNET_CACHE_URL cannot be read: {_FORM}.") from None
    database = parts.path.removeprefix("/")
    if parts.scheme not in ("redis", "rediss") or not host or port == 0 or parts.fragment:
        raise ImproperlyConfigured(f"MESHNET_CACHE_URL is not the URL of a Redis: {_FORM}.")
    if database and not (database.isascii() and database.isdigit()):
        raise ImproperlyConfigured(f"MESHNET_CACHE_URL must end in the number of a database: {_FORM}.")
    if strange := sorted(set(parse_qs(parts.query, keep_blank_values=True)) - OPTIONS):
        raise ImproperlyConfigured(
            f"MESHNET_CACHE_URL has {len(strange)} options that are not known here; known are "
            f"{', '.join(sorted(OPTIONS))}."
        )
    if parts.query and parts.scheme == "redis":
        raise ImproperlyConfigured("MESHNET_CACHE_URL has options for TLS: write rediss:// and not redis://.")
