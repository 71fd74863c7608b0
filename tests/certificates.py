"""Authorities and certificates for one test, in files, as settings name them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

import trustme


@dataclass
class Authority:
    """One certificate authority that is trusted by whoever is given its `file`."""

    folder: Path
    _ca: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ca.cert_pem.write_to_path(str(self.file))

    @property
    def file(self) -> Path:
        return self.folder / "ca.pem"

    def certificate(self, name: str) -> tuple[Path, Path]:
        """A certificate for this host name or address, and its key."""
        made = self._ca.issue_cert(name)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(key))
        return certificate, key

    def serves(self, name: str = "127.0.0.1") -> dict[str, str]:
        """Environment of a process that serves HTTPS by this name."""
        certificate, key = self.certificate(name)
        return {"MESHNET_TLS_CERT": str(certificate), "MESHNET_TLS_KEY": str(key)}

    def shows(self, name: str = "head.example") -> dict[str, str]:
        """Environment of a process that shows a certificate to those it connects to."""
        certificate, key = self.certificate(name)
        return {"MESHNET_NODE_CERT": str(certificate), "MESHNET_NODE_KEY": str(key)}

    def context(self, name: str | None = None) -> ssl.SSLContext:
        """A client that trusts this authority, and with a name shows a certificate of it."""
        context = ssl.create_default_context(cafile=str(self.file))
        if name is not None:
            certificate, key = self.certificate(name)
            context.load_cert_chain(certificate, key)
        return context
