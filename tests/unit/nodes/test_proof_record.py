from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodes import proof, proof_record
from nodes.errors import ShardRefused
from nodes.kv_footprint import Footprint, LayerFootprint
from nodes.proof import Verdict
from nodes.proof_record import ProofKey, proved
from tests.meshes import ranges, running_nodes

KEY = ProofKey("sha256:00", "0:2", "float32", "cpu", 512, {"meshnet": "1", "torch": "2", "platform": "Linux"})
VERDICT = Verdict(True, Footprint((LayerFootprint(0, 256), LayerFootprint(8, 256, 7), LayerFootprint())))


class Prover:
    """Counts the proofs that ran."""

    def __init__(self, verdict: Verdict = VERDICT) -> None:
        self.verdict = verdict
        self.runs = 0

    def __call__(self) -> Verdict:
        self.runs += 1
        return self.verdict


@pytest.mark.parametrize("verdict", [VERDICT, Verdict(supports_kv_cache=False)])
def test_a_kept_verdict_is_taken_over_as_it_was(tmp_path: Path, verdict: Verdict) -> None:
    first, second = Prover(verdict), Prover()
    assert proved(KEY, tmp_path / "proofs", first) == verdict
    assert proved(KEY, tmp_path / "proofs", second) == verdict
    assert (first.runs, second.runs) == (1, 0)
    assert [path.name for path in (tmp_path / "proofs").iterdir()] == [f"{KEY.digest}.json"]


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": "sha256:01"},
        {"layers": "0:3"},
        {"dtype": "bfloat16"},
        {"device": "cuda"},
        {"context_length": 256},
        {"versions": {**KEY.versions, "torch": "3"}},
        {"versions": {**KEY.versions, "platform": "Darwin"}},
    ],
    ids=str,
)
def test_whatever_the_verdict_depends_on_asks_for_a_new_proof(tmp_path: Path, other: dict[str, Any]) -> None:
    proved(KEY, tmp_path, Prover())
    again = Prover()
    proved(replace(KEY, **other), tmp_path, again)
    assert again.runs == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_the_log_says_whether_the_proof_ran(tmp_path: Path, caplog: Any) -> None:
    with caplog.at_level(logging.INFO):
        proved(KEY, tmp_path, Prover())
        proved(KEY, tmp_path, Prover())
    ran, taken = (record.getMessage() for record in caplog.records)
    assert "0:2 ran in" in ran and "passed" in ran
    assert "0:2 was taken over from" in taken and "passed" in taken


DAMAGE: dict[str, Any] = {
    "cut off": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "not an object": lambda text: "[]",
    "no utf-8": lambda text: b"\xff\xfe\x00",
    "without its verdict": lambda text: json.dumps({"key": json.loads(text)["key"]}),
    "bytes below zero": lambda text: text.replace('"per_token": 256', '"per_token": -256'),
    "bytes that are no number": lambda text: text.replace('"per_token": 256', '"per_token": "256"'),
    "a verdict that is no bool": lambda text: text.replace('"supports_kv_cache": true', '"supports_kv_cache": 1'),
    "a cache of no layers": lambda text: json.dumps(
        {**json.loads(text), "verdict": {"supports_kv_cache": True, "layers": []}}
    ),
    "deeply nested": lambda text: "[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_ignored_and_written_anew(tmp_path: Path, damage: str) -> None:
    proved(KEY, tmp_path, Prover())
    path = KEY.path(tmp_path)
    good = path.read_text()
    bad = DAMAGE[damage](good)
    assert bad != good
    path.write_bytes(bad if isinstance(bad, bytes) else bad.encode())
    again = Prover()
    assert proved(KEY, tmp_path, again) == VERDICT
    assert again.runs == 1
    assert path.read_text() == good


def test_a_file_of_another_key_under_this_name_is_ignored(tmp_path: Path) -> None:
    other = replace(KEY, layers="2:4")
    proved(other, tmp_path, Prover(Verdict(supports_kv_cache=False)))
    other.path(tmp_path).rename(KEY.path(tmp_path))
    again = Prover()
    assert proved(KEY, tmp_path, again) == VERDICT
    assert again.runs == 1


def test_a_refusal_is_never_kept(tmp_path: Path) -> None:
    def refuse() -> Verdict:
        raise ShardRefused("on purpose")

    with pytest.raises(ShardRefused, match="on purpose"):
        proved(KEY, tmp_path / "proofs", refuse)
    assert not (tmp_path / "proofs").exists()


def test_a_folder_that_cannot_be_written_to_costs_the_proof_and_nothing_else(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "proofs").write_text("a file where the folder should be")
    for _ in range(2):
        prover = Prover()
        assert proved(KEY, tmp_path / "proofs", prover) == VERDICT
        assert prover.runs == 1
    assert "cannot be kept" in caplog.text


def test_without_a_folder_the_proof_always_runs(toy_folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prover = Prover(proof.Verdict(supports_kv_cache=False))
    monkeypatch.setattr(proof, "prove", lambda shard: prover())
    for _ in range(2):
        with running_nodes(toy_folder("llama"), ranges(0, 2)) as (node,):
            assert not node.status()["supports_kv_cache"]
    assert prover.runs == 2


def test_a_node_that_starts_again_takes_its_proof_over(
    toy_folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = proof.prove, []
    monkeypatch.setattr(proof, "prove", lambda shard: calls.append(str(shard.layers)) or real(shard))
    seen = []
    for _ in range(2):
        with running_nodes(toy_folder("llama"), ranges(0, 2, 4), proofs=tmp_path) as nodes:
            seen.append([node.status()["kv_bytes_of_full_context"] for node in nodes])
    assert calls == ["0:2", "2:4"]
    assert seen[0] == seen[1] and seen[0][0] > 0
    key = json.loads(next(tmp_path.iterdir()).read_bytes())["key"]
    assert set(key["versions"]) == {"meshnet", "torch", "transformers", "python", "platform"}


def test_a_partial_file_of_a_write_that_broke_off_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Path, target: Path) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", broken)
        proof_record.write(KEY, tmp_path, VERDICT)
    assert list(tmp_path.iterdir()) == []
    assert proof_record.read(KEY, tmp_path) is None
