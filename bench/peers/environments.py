"""A virtual environment for each peer, made once and kept in the user's cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

PSYCOPG = "psycopg[binary]==3.3.9"
NEEDS = {
    "rawpg": [PSYCOPG],
    "absurd": ["absurd-sdk==0.5.1", "absurdctl==0.5.1", PSYCOPG],
    "celery": ["celery[redis]==5.7.0", PSYCOPG],
    "procrastinate": ["procrastinate==3.10.0", "psycopg[binary,pool]==3.3.9"],
    "dbos": ["dbos==3.4.0", PSYCOPG],
}


def cache() -> Path:
    """Where environments are kept: `BENCH_HOME`, else in the user's cache folder."""
    if named := os.environ.get("BENCH_HOME"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "django-saga-bench"


def python_of(engine: str) -> Path:
    """The interpreter that an engine is run by; installs the engine when it is not there yet."""
    if engine == "ours":
        return Path(sys.executable)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache() / f"{engine}-{version}"
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    wanted = "\n".join(NEEDS[engine])
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return python
    print(f"installing {engine} ({', '.join(NEEDS[engine])})", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.EnvBuilder(with_pip=True, symlinks=True).create(folder)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *NEEDS[engine]]
    subprocess.run(install, check=True)
    stamp.write_text(wanted)
    return python


def version_of(engine: str) -> str:
    """The installed version of an engine's first package, from its pin."""
    if engine in ("ours", "rawpg"):
        return ""
    return NEEDS[engine][0].rsplit("==", 1)[1]
