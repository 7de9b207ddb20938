"""Where a table may be used: on what it was measured on, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrate.analysis.measured import MeasuredCell

__all__ = ["admission"]


def admission(cells: Sequence[MeasuredCell]) -> dict[str, Any] | None:
    """The envelope of `cells`: device names, hidden sizes, dtypes, layer geometries and parallel shapes.

    None where the input does not say what it was measured on: then the table is admitted nowhere.
    """
    executions = [cell.execution for cell in cells]
    known = [execution for execution in executions if execution is not None]
    if not known or len(known) < len(executions):
        return None
    geometries = {(cell.facts.layers, cell.facts.gdn_layers) for cell in cells}
    return {
        "device_names": sorted({execution.device for execution in known}),
        "hidden_sizes": sorted({execution.hidden for execution in known}),
        "param_dtypes": sorted({execution.dtype for execution in known}),
        "geometries": [{"layers": layers, "gdn_layers": gdn} for layers, gdn in sorted(geometries)],
        "shapes": [{"tp": tp, "cp": cp} for tp, cp in sorted({(cell.facts.tp, cell.facts.cp) for cell in cells})],
    }
