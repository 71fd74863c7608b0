from __future__ import annotations

from tests.toy_mesh import ToyMesh, get_json

__all__ = ["ToyMesh", "get_json"]
