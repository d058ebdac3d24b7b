"""What docs/how-to/deploy.md shows of logging prints each line once, whatever else prints in the process."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.shown import shown

TRY = """
import json, logging, logging.config, sys
logging.config.dictConfig(json.loads(sys.argv[1]))
logging.getLogger().addHandler(logging.StreamHandler())  # as Celery's worker does
logging.getLogger("workflow").info("a line")
"""


def test_a_line_of_the_engines_is_printed_once() -> None:
    config = json.dumps(shown("docs/how-to/deploy.md", "Before the first time")["LOGGING"])
    done = subprocess.run(
        [sys.executable, "-c", TRY, config], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "a line\n"
