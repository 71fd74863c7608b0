"""`var/mesh.json`: where a running local mesh is, for scripts and commands. Readable by its owner only."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE_NAME = "mesh.json"


@dataclass(frozen=True)
class MeshFile:
    """The file's content. Nodes stand in layer order, replicas of a stretch side by side."""

    head: str
    nodes: tuple[str, ...]
    api_key: str = field(repr=False)
    mesh_secret: str = field(repr=False)
    admin_user: str
    admin_password: str = field(repr=False)
    #: All of them, the first included.
    heads: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "head": self.head,
            "heads": list(self.heads or (self.head,)),
            "nodes": list(self.nodes),
            "api_key": self.api_key,
            "mesh_secret": self.mesh_secret,
            "admin": {"user": self.admin_user, "password": self.admin_password},
        }

    def write(self, var_dir: Path) -> Path:
        """Puts the file in place in one step, with mode 0600 from its first byte on."""
        path = var_dir / FILE_NAME
        partial = path.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(self.as_json(), file, indent=2)
            file.write("\n")
        partial.replace(path)
        return path

    @classmethod
    def read(cls, var_dir: Path) -> MeshFile | None:
        """The running mesh's file, or None when there is none. Raises ValueError when it cannot be understood."""
        path = var_dir / FILE_NAME
        try:
            data = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}") from None
        try:
            return cls(
                head=data["head"],
                nodes=tuple(data["nodes"]),
                api_key=data["api_key"],
                mesh_secret=data["mesh_secret"],
                admin_user=data["admin"]["user"],
                admin_password=data["admin"]["password"],
                heads=tuple(data.get("heads", ())) or (data["head"],),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} does not describe a mesh: {error!r} is missing.") from None
