"""The cells that a later attempt runs are handed to the node by name, on both providers."""

import pytest

from orchestrate.errors import UsageError
from orchestrate.render.rendered import render
from orchestrate.render.request import RenderRequest
from orchestrate.render.templates import Backend

CELLS = ("cal-grpo-g8|Qwen/Qwen3.5-4B|L32|tp1|cp4", "cal-grpo-g16|Qwen/Qwen3.5-4B|L32|tp1|cp4")


def environment(backend, **more):
    rendered = render(backend, RenderRequest(run_id="r1", cell_set="main", cells=CELLS, **more))
    tree = rendered.documents[0].tree
    if backend is Backend.SKY:
        return tree["envs"]
    container = tree["spec"]["template"]["spec"]["containers"][0]
    return {entry["name"]: entry.get("value") for entry in container["env"]}


@pytest.mark.parametrize("backend", list(Backend))
def test_only_the_named_cells_are_handed_to_the_node(backend):
    assert environment(backend, cell_keys=CELLS[1:])["CELL_KEYS"] == CELLS[1]
    assert "CELL_KEYS" not in environment(backend)


def test_a_cell_that_is_not_selected_can_not_be_named():
    for keys in ((), ("another",)):
        with pytest.raises(UsageError, match="not among the cells"):
            RenderRequest(run_id="r1", cell_set="main", cells=CELLS, cell_keys=keys)
