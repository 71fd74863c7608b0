"""The operators' pages: the mesh overview, nodes and live sessions. Their numbers were just read from the nodes."""

from __future__ import annotations

from nodes.admin.mesh import MeshAdmin
from nodes.admin.node import NodeAdmin
from nodes.admin.session import KVSessionAdmin

__all__ = ["KVSessionAdmin", "MeshAdmin", "NodeAdmin"]
