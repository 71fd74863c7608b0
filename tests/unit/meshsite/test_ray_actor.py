"""What travels to a machine by value, and what it says where the project is not."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from meshsite import ray_actor
from meshsite.ray_actor import Order, missing, survey

ROOT = Path(__file__).resolve().parents[3]


def test_a_machine_without_the_project_says_where_it_should_be(tmp_path: Path) -> None:
    assert missing(str(tmp_path)).startswith(f"the project is not at {tmp_path} there")
    assert survey(str(tmp_path)) == {"problem": missing(str(tmp_path))}


def test_a_machine_with_project_and_environment_lacks_nothing() -> None:
    assert missing(str(ROOT)) == ""


def test_the_secret_is_not_in_the_orders_repr() -> None:
    order = Order("node1", {"MESHNET_SECRET": "not-to-be-seen"}, "/project", "/var")
    assert "not-to-be-seen" not in f"{order!r} {order}"


def test_it_imports_nothing_of_the_project_before_it_has_looked() -> None:
    tree = ast.parse(Path(ray_actor.__file__).read_text())
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert {name.partition(".")[0] for name in imported} <= {*sys.stdlib_module_names, "__future__"}
