"""A database of its own for the registry, beside the one of the settings and thrown away afterwards.

Statements are counted and timed, so that a beat's share of the database is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.db import connection

#: SQL that takes the write lock.
_WRITES = ("UPDATE", "INSERT", "DELETE")


@dataclass
class Statements:
    """Milliseconds of each statement since the last `clear`."""

    reads: list[float] = field(default_factory=list)
    writes: list[float] = field(default_factory=list)

    def clear(self) -> None:
        self.reads.clear()
        self.writes.clear()

    def note(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        """As `connection.execute_wrapper` wants it."""
        begun = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            kind = self.writes if sql.lstrip().startswith(_WRITES) else self.reads
            kind.append((time.perf_counter() - begun) * 1e3)


@contextmanager
def throw_away_database(folder: Path) -> Iterator[str]:
    """Gives the vendor. Of SQLite it is a file in this folder; else one made on the server of DATABASE_URL, which
    needs the right to make databases.
    """
    named = connection.settings_dict["NAME"]
    is_file = connection.vendor == "sqlite"
    connection.settings_dict["TEST"]["NAME"] = str(folder / "registry.sqlite3") if is_file else f"{named}_simulate"
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        yield connection.vendor
    finally:
        connection.creation.destroy_test_db(named, verbosity=0)
