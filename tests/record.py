"""Records the exchanges of docs/recordings anew: `python -m tests.record`.

To be run when the protocol changes on purpose; `git diff docs/recordings` then shows what changed on the wire. Each
scenario goes to a fresh node process of the toy llama (tests/toys.py, seed 0).
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests import processes, toys
from tests.recorded_scenarios import Scenario, scenarios
from tests.recordings import FOLDER, described, send
from tests.toy_mesh import get_json


def record(case: Scenario, model: Path, folder: Path) -> dict[str, Any]:
    """The scenario with the answers of a fresh node."""
    node = processes.node(folder / case.name, model, case.layers, **case.settings)
    exchanges = []
    with processes.serving(node):
        fingerprint = get_json(f"{node.url}/status")["fingerprint"]
        for exchange in case.requests:
            answer = send(node.port, exchange["request"], fingerprint)
            said = {"status": answer.status, "headers": answer.headers, **described(answer.headers, answer.body)}
            exchanges.append({**exchange, "answer": said})
    return {
        "about": case.about,
        "node": {"model": "llama of tests/toys.py, seed 0", "layers": case.layers, "settings": case.settings},
        "exchanges": exchanges,
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = toys.build_model("llama", folder / "toy")
        for case in scenarios():
            text = json.dumps(record(case, model, folder), indent=1, ensure_ascii=False)
            (FOLDER / f"{case.name}.json").write_text(f"{text}\n")
            sys.stdout.write(f"{case.name}: {len(case.requests)} exchanges\n")


if __name__ == "__main__":
    main()
