"""What letting a request of a key with all limits in costs, by whoever counts: `python -m tests.measure_admission`.

The numbers of docs/decisions/0028-shared-state.md; one after the other in one run, so that ratios can be compared.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests import processes
from tests.postgres import find_binaries, running_cluster
from tests.redis_server import running_redis

MEASURE = """
import statistics, threading, time
from django.apps import apps
from django.db import connection
from django.utils import timezone
from generation.models import APIKey, HeadWorker

limits = apps.get_app_config("generation").limits
row, _ = APIKey.objects.create_key(
    name="m", requests_per_minute=10**6, concurrent_generations=10**6, tokens_per_day=10**12
)
HeadWorker.objects.create(boot_id="me", hostname="h", pid=1, started_at=timezone.now(), beat_at=timezone.now())

def ask(times, rounds):
    for _ in range(rounds):
        key = APIKey.objects.get(pk=row.pk)  # as authentication has just done: the connection is there
        taken = [time.perf_counter()]
        admission = limits.admit(key, owner="me")
        taken.append(time.perf_counter())
        connection.close()  # as the record's beginning does
        taken.append(time.perf_counter())
        limits.give_back(admission)
        taken.append(time.perf_counter())
        times.append(taken)
    connection.close()

def medians(times):
    return [1e3 * statistics.median(b - a for a, b in pairs) for pairs in
            ([(t[0], t[1]) for t in times], [(t[2], t[3]) for t in times])]

ask([], 20)
alone = []
ask(alone, 300)
crowd, began = [], time.perf_counter()
threads = [threading.Thread(target=ask, args=(crowd, 25)) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
result = *medians(alone), *medians(crowd), 400 / (time.perf_counter() - began)
"""


def main() -> None:
    binaries = find_binaries()
    assert binaries is not None, "PostgreSQL is not here"
    with (
        tempfile.TemporaryDirectory() as folder,
        running_cluster(binaries) as cluster,
        running_redis(Path(folder)) as redis,
    ):
        sys.stdout.write("                       alone: admit  give back   16 threads: admit  give back   requests/s\n")
        for number, (database, shared) in enumerate(
            (name, shared) for name in ("SQLite", "PostgreSQL") for shared in (False, True)
        ):
            environ = {} if database == "SQLite" else {"DATABASE_URL": cluster.new_database(f"m{number}")}
            if shared:
                environ["MESHNET_CACHE_URL"] = redis.url
            head = processes.head(Path(folder) / str(number), Path("none"), [], **environ)
            processes.prepare_head(head)
            a, b, c, d, rate = processes.in_django(head, MEASURE)
            name = f"{database}{' and Redis' if shared else ''}"
            sys.stdout.write(f"{name:22} {a:12.2f} ms {b:7.2f} ms {c:15.2f} ms {d:7.2f} ms {rate:10.0f}\n")


if __name__ == "__main__":
    main()
