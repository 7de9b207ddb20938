"""Write the schema that SkyPilot checks a task with to orchestrate/render/schemas, or check that file for drift.

    python tests/orchestrate/render/export_skypilot_schema.py [--check]

Needs the pinned SkyPilot installed. The task schema leaves `resources` to a second schema: both are exported. Unknown
keys under `config` are accepted by a SkyPilot client and refused by its server: the export has the server's answer.
"""

from __future__ import annotations

import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PINNED = "0.14.1"
TARGET = Path(__file__).parents[3] / "orchestrate" / "render" / "schemas" / f"skypilot-task-{PINNED}.json"


def exported() -> dict[str, Any]:
    from sky.utils import schemas

    task = schemas.get_task_schema()
    task["properties"]["config"]["additionalProperties"] = False
    return {
        "$comment": "From SkyPilot, sky/utils/schemas.py, Apache-2.0; see README.md beside this file.",
        "skypilot": metadata.version("skypilot"),
        "task": task,
        "resources": schemas.get_resources_schema(),
    }


def text() -> str:
    return json.dumps(exported(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(0 if TARGET.read_text(encoding="utf-8") == text() else f"{TARGET} is not what SkyPilot says")
    TARGET.write_text(text(), encoding="utf-8")
    print(TARGET)
