"""gunicorn for a head: `gunicorn -c meshsite/gunicorn_head.py meshsite.wsgi`. May run several workers (`-w`)."""

from __future__ import annotations

from typing import Any

from meshsite import gunicorn_conf as conf
from meshsite.gunicorn_conf import check_master as on_starting  # noqa: F401
from meshsite.gunicorn_conf import load_worker as post_worker_init  # noqa: F401
from meshsite.metrics_folder import MetricsFolder
from nodes import tls
from nodes.tls import server_context as ssl_context  # noqa: F401

_settings = conf.load_settings(("head",), "Roles that hold layers start with meshsite/gunicorn_node.py.")

bind = _settings.MESHNET_BIND
worker_class = conf.WORKER_CLASS
workers = 1
# Each answer holds its thread until it ends; probes and the admin need some beside them.
threads = _settings.MESHNET_MAX_ANSWERS + conf.SPARE_THREADS
worker_connections = 1000 + threads
keepalive = conf.KEEPALIVE_SECONDS
timeout = conf.TIMEOUT_SECONDS
graceful_timeout = conf.GRACEFUL_SECONDS
preload_app = False
# All masters of a user would share one path for it.
control_socket_disable = True
# Clients of a proxy could name another path or user than the proxy looked at: its header names have an underscore.
forwarder_headers = ""
forwarded_allow_ips = ",".join(_settings.FORWARDED_ALLOW_IPS)
_tls = tls.server_options(_settings)
certfile, keyfile = _tls["certfile"], _tls["keyfile"]
ca_certs, cert_reqs = _tls["ca_certs"], _tls["cert_reqs"]
accesslog = None
loglevel = _settings.MESHNET_LOG_LEVEL.lower()


def when_ready(server: Any) -> None:
    """Before the first worker is forked, and after the address was had: a head that cannot have it changes nothing."""
    server.meshnet_metrics = MetricsFolder(_settings.MESHNET_VAR_DIR)


def child_exit(server: Any, worker: Any) -> None:
    server.meshnet_metrics.forget_worker(worker.pid)


def on_exit(server: Any) -> None:
    if hasattr(server, "meshnet_metrics"):  # not when it ended before it was ready
        server.meshnet_metrics.remove()


def worker_exit(server: Any, worker: Any) -> None:
    conf.stop_runtimes()
