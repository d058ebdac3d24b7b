"""The rooms of the package and the direction of its imports, as setup.cfg states them."""

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = "importlinter:contract:rooms"


def lint_imports(config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", config],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_module_imports_only_from_the_floors_below_it() -> None:
    done = lint_imports(ROOT / "setup.cfg")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kept, 0 broken" in done.stdout


def test_the_contract_notices_an_import_in_the_wrong_direction(tmp_path: Path) -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    layers = config[CONTRACT]["layers"].strip().splitlines()
    assert layers[-1] == "errors"
    config[CONTRACT]["layers"] = "\n".join(["errors", *layers[:-1]])
    with (tmp_path / "setup.cfg").open("w") as upside_down:
        config.write(upside_down)
    done = lint_imports(tmp_path / "setup.cfg")
    assert done.returncode == 1
    assert "0 kept, 1 broken" in done.stdout
    assert "workflow.definitions is not allowed to import workflow.errors" in done.stdout


def test_importing_the_package_needs_no_settings_and_imports_no_model() -> None:
    code = "import sys, workflow; sys.exit('workflow.models' in sys.modules)"
    environment = {"PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "no.such.settings"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
