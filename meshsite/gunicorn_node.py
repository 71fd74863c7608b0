"""gunicorn for a node, or for a head that also holds layers: `gunicorn -c meshsite/gunicorn_node.py meshsite.wsgi`.

One worker, since the sessions' caches are this process's memory.
"""

from __future__ import annotations

import os
from typing import Any

from meshsite import gunicorn_conf as conf
from meshsite.gunicorn_conf import load_worker as post_worker_init  # noqa: F401
from meshsite.metrics_folder import VARIABLE
from nodes import tls
from nodes.limits import HELD_PER_SLOT
from nodes.tls import server_context as ssl_context  # noqa: F401

_settings = conf.load_settings(("node", "all"), "A head without layers starts with meshsite/gunicorn_head.py.")

#: Steps of as many sessions as there are slots, and as many stateless ones; steps that are on their way to other nodes
#: and heads that wait for a result, as many as the node lets in (nodes/handing_over.py); and some, so that all these
#: never starve /livez or an eviction. A thread is made when it is needed.
_NODE_THREADS = (2 + HELD_PER_SLOT) * _settings.MESHNET_KV_MAX_SESSIONS + 8
_HEAD_THREADS = _settings.MESHNET_MAX_ANSWERS + conf.SPARE_THREADS

bind = _settings.MESHNET_BIND
worker_class = conf.WORKER_CLASS
workers = 1
threads = _NODE_THREADS + (_HEAD_THREADS if _settings.ROLE == "all" else 0)
worker_connections = 1000 + threads
keepalive = conf.KEEPALIVE_SECONDS
timeout = conf.TIMEOUT_SECONDS
graceful_timeout = conf.GRACEFUL_SECONDS
max_requests = 0
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


def on_starting(server: Any) -> None:
    conf.check_master(server)
    # One process counts in its own memory; a folder named by some other program's environment is not for it.
    os.environ.pop(VARIABLE, None)
    if server.cfg.workers != 1:
        conf.refuse_master(
            server,
            f"{server.cfg.workers} workers were asked for: a node is one process, since its sessions' caches are that "
            "process's memory. Start more nodes instead.",
        )
    if server.cfg.max_requests:
        conf.refuse_master(server, "max_requests would throw every session away. Leave out --max-requests.")
    if server.cfg.threads < _NODE_THREADS:
        conf.refuse_master(
            server, f"{_NODE_THREADS} threads are needed for MESHNET_KV_MAX_SESSIONS, not {server.cfg.threads}."
        )


def nworkers_changed(server: Any, new_value: int, old_value: int | None) -> None:
    """A TTIN signal asks for one more. At start (old None) `on_starting` refuses."""
    if old_value is not None and new_value > 1:
        server.log.error("A node keeps its one worker: %d workers would each hold caches of their own.", new_value)
        server.num_workers = 1


def pre_exec(server: Any) -> None:
    """A USR2 signal starts a second master beside this one, on the same socket. Runs in the fork that would be it."""
    server.log.error("USR2 is refused: two nodes behind one address would mix up their sessions. Restart instead.")
    os._exit(0)


def worker_exit(server: Any, worker: Any) -> None:
    conf.stop_runtimes()
