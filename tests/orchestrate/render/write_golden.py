"""Write the golden files of the renderer: tests/golden/render/<case>.yaml.

    python tests/orchestrate/render/write_golden.py

Look at the difference before committing it: it is what every user's next render will differ by.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

from orchestrate.cells.cell_set import select
from orchestrate.render import (
    Accelerators,
    Backend,
    Corpus,
    HarnessArchive,
    RenderRequest,
    Toleration,
    parse_image,
    render,
)

FOLDER = Path(__file__).parents[2] / "golden" / "render"
# Not the real harness, whose every change would change every golden file.
ARCHIVE = HarnessArchive(gz=b"stands for the archive", sha256=hashlib.sha256(b"stands for its tar").hexdigest())
PINNED = "registry.example.org/team/torch@sha256:" + "0123456789abcdef" * 4


def request(cell_set: str, groups: str | None = None, **fields: object) -> RenderRequest:
    chosen = select(cell_set, groups, {})
    named = {"run_id": "r20260102-030405-0a1b2c", "owner": "ann"} | fields
    return RenderRequest(
        cell_set=cell_set,
        cells=tuple(cell.key for cell in chosen.cells),
        group_variable=chosen.cell_set.group_variable,
        groups=None if chosen.groups is None else tuple(str(group) for group in chosen.groups),
        **named,
    )


def cases() -> dict[str, str]:
    launched = {
        "token": "00112233445566778899aabbccddeeff",
        "expires_at": datetime(2026, 1, 2, 9, 0, tzinfo=UTC),
        "image": parse_image(PINNED),
    }
    sha256 = "f" * 64
    ellavox = {
        Backend.SKY: request("ellavox", "1,4", corpus=Corpus("/data/ellavox.jsonl", sha256), **launched),
        Backend.K8S: request("ellavox", "1,4", corpus=Corpus("corpora/ellavox.jsonl", sha256), **launched),
    }
    options = {
        Backend.SKY: request(
            "cp2",
            "0",
            infra="slurm/lab/gpu",
            deadline_s=5400,
            repeat=3,
            cpus=16,
            memory_gib=64,
            harness_mount="/opt/venv/lib/python3.12/site-packages/harness",
        ),
        Backend.K8S: request(
            "cp2",
            "0",
            namespace="gpu-tests",
            deadline_s=5400,
            ttl_s=600,
            repeat=3,
            cpus=16,
            memory_gib=64,
            accelerators=Accelerators("H100", 8),
            node_selector=(("pool", "gpu"),),
            tolerations=(Toleration("dedicated", "gpu", "NoSchedule"), Toleration("spot")),
        ),
    }
    queued = {
        "accelerators": Accelerators.parse("none"),
        "queue": "team-a",
        "priority_class": "low",
        "sink": "pvc:evidence/runs",
    }
    found = {}
    for backend in Backend:
        for name, one in {
            "smoke": request("smoke"),
            "main": request("main"),
            "text": request("text", "0 7"),
            "ellavox-launched": ellavox[backend],
            "cp2-options": options[backend],
            "hostile": request("smoke", **hostile(backend)),
        }.items():
            found[f"{name}.{backend}"] = render(backend, one, archive=ARCHIVE).text
    found["smoke-queued.k8s"] = render(Backend.K8S, request("smoke", **queued), archive=ARCHIVE).text
    return found


def hostile(backend: Backend) -> dict[str, object]:
    """Values that mean something to YAML, to a shell, to SkyPilot or to Kubernetes."""
    fields: dict[str, object] = {
        "run_id": "1e3",
        "owner": "r\"1'\nenvs: {X: y}\n${{ secrets.TOKEN }} $(HOME) $$ ${CELL_SET} `id` !!python/object:os.system",
    }
    if backend is Backend.SKY:
        return fields | {"infra": "k8s/ctx: {a: [b]} # ${{ x }}", "corpus": Corpus("/a 'b' \"c\": !!set {x} # \u2028")}
    return fields | {"corpus": Corpus("claim/a 'b' \"c\": !!set {x} # $(HOME) \u2028")}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in cases().items():
        (FOLDER / f"{name}.yaml").write_text(text, encoding="utf-8")
        print(FOLDER / f"{name}.yaml")
