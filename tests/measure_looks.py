"""How often a node is asked how it is by four head workers: `python -m tests.measure_looks idle|busy [redis]`.

The numbers of docs/decisions/0028-shared-state.md. Two heads with two workers each over the toy mesh, on SQLite. Busy:
four clients that chat without a pause, and two pages of the admin that refresh themselves.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests import processes, toys
from tests.processes import wait_until
from tests.redis_server import running_redis
from tests.toy_mesh import running_toy_mesh

SECONDS = 40.0
LOGIN = """
from django.contrib.auth.models import User
from django.test import Client
client = Client()
client.force_login(User.objects.create_superuser("looker"))
result = client.cookies["sessionid"].value
"""


def main(load: str, *shared: str) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mesh = stack.enter_context(running_toy_mesh(toys.build_model("llama", folder), folder / "mesh"))
        mesh.head.stop()
        environ = {"GUNICORN_CMD_ARGS": "-w 2", "DATABASE_URL": f"sqlite:///{folder / 'shared.sqlite3'}"}
        if shared:
            environ["MESHNET_CACHE_URL"] = stack.enter_context(running_redis(folder)).url
        heads = [processes.head(folder / name, mesh.model, mesh.urls, **environ) for name in ("a", "b")]
        key = processes.prepare_head(heads[0])
        cookie = {"Cookie": f"sessionid={processes.in_django(heads[0], LOGIN)}"}
        stack.enter_context(processes.serving(*heads))
        for head in heads:
            wait_until(lambda head=head: head.log.read_text().count("Ready to serve") == 2, 60)  # type: ignore[misc]
        over = threading.Event()

        def chat(number: int) -> None:
            body = {"model": mesh.model.name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}
            headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
            while not over.is_set():
                url = f"{heads[number % 2].url}/v1/chat/completions"
                assert processes.call(url, "POST", body, headers)[0] == 200

        def page(number: int) -> None:
            while not over.wait(2):
                url = f"{heads[number % 2].url}/admin/nodes/kvsession/data.json"
                status, _, said = processes.call(url, headers=cookie | {"Connection": "close"})
                assert status == 200, (status, said[:300])

        tasks = [] if load == "idle" else [(chat, n) for n in range(4)] + [(page, n) for n in range(2)]
        threads = [threading.Thread(target=task, args=(n,)) for task, n in tasks]
        for thread in threads:
            thread.start()
        before = len(mesh.proxy.exchanges)
        time.sleep(SECONDS)  # what is measured
        asked = Counter(exchange.path for exchange in mesh.proxy.exchanges[before:])
        over.set()
        for thread in threads:
            thread.join()
    per_minute = {path: round(asked[path] * 60 / SECONDS) for path in ("/status", "/sessions")}
    sys.stdout.write(f"{load} {' '.join(shared) or 'alone'}: {per_minute}, {asked['/forward']} steps\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
