"""Render and check 5,000 cells, schemas included and SkyPilot not imported (bar: under 2 s, here of CPU time).

A document holds a set, not a cell: 5,000 cells are a single large set, or as many sets of the size that the recorded
cells have (58 cells in 6 sets). One document for each cell is measured too, as the price of a document.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from orchestrate.render import Backend, HarnessArchive, RenderRequest, parse_image, render

CELLS = 5000
CELLS_A_SET = 10
ARCHIVE = HarnessArchive(gz=b"the price of compressing the harness is paid once a process", sha256="0" * 64)


def request(index: int, cells: int) -> RenderRequest:
    return RenderRequest(
        run_id=f"r20260102-030405-{index:06x}",
        cell_set="ellavox",
        cells=tuple(f"cal-ellavox|Qwen/Qwen3.5-4B|L32|tp1|cp4|g{number}" for number in range(cells)),
        group_variable="ELLAVOX_GROUPS",
        groups=tuple(str(index + number) for number in range(min(cells, 1000))),
        owner="ann",
        token=f"{index:032x}",
        image=parse_image("a/b@sha256:" + "0" * 64),
    )


def seconds(backend: Backend, requests: Sequence[RenderRequest]) -> float:
    started = time.process_time()
    for one in requests:
        render(backend, one, archive=ARCHIVE)
    return time.process_time() - started


def main() -> None:
    for backend in Backend:
        first = seconds(backend, [request(0, 1)])
        whole = seconds(backend, [request(0, CELLS)])
        sets = seconds(backend, [request(index, CELLS_A_SET) for index in range(CELLS // CELLS_A_SET)])
        single = seconds(backend, [request(index, 1) for index in range(CELLS)])
        print(
            f"{backend}: {CELLS} cells in one set {first + whole:.3f} s, in {CELLS // CELLS_A_SET} sets {sets:.2f} s "
            f"(bar: 2 s; {first:.3f} s of it compile the schemas); one document a cell {single:.1f} s"
        )
    if "sky" in sys.modules:
        sys.exit("SkyPilot was imported")


if __name__ == "__main__":
    main()
