"""The geometries are those of the design, and a shape that does not divide them is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import InputError
from harness.model.config import MODEL_NAMES, model_config

RECORDED = Path(__file__).parents[4] / "shared" / "data" / "h200_dense_h2560_cells.jsonl"


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded H200 cells are not beside the repository")
def test_the_recorded_cells_have_the_delta_net_layers_that_the_classes_give():
    cells = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    assert len(cells) == 58
    for cell in cells:
        _, name, layers, *_ = cell["cell"].split("|")
        config = model_config(name, int(layers.removeprefix("L")))
        assert config.gdn_layers == cell["facts"]["gdn_layers"], cell["cell"]
        config.refuse_uneven_heads(int(cell["facts"]["tp"]), int(cell["facts"]["cp"]))


def test_every_fourth_layer_of_a_hybrid_is_full_attention():
    config = model_config("tiny-hybrid", 8)
    assert [config.is_attention(layer) for layer in range(8)] == [False, False, False, True] * 2
    assert all(model_config("Qwen/Qwen3-4B", 3).is_attention(layer) for layer in range(3))


def test_the_4b_classes_have_the_published_sizes():
    hybrid, dense = model_config("Qwen/Qwen3.5-4B", 32), model_config("Qwen/Qwen3-4B", 36)
    assert (hybrid.hidden, hybrid.ffn, hybrid.gdn_layers) == (2560, 9216, 24)
    attention, delta_net = hybrid.attention, hybrid.delta_net
    assert (attention.heads, attention.head_dim, attention.kv_heads) == (16, 256, 4)
    assert (delta_net.value_heads, delta_net.key_heads, delta_net.key_dim, delta_net.value_dim) == (32, 16, 128, 128)
    assert (delta_net.conv_width, delta_net.chunk) == (4, 64)
    assert (dense.hidden, dense.ffn, dense.delta_net) == (2560, 9728, None)
    assert (dense.attention.heads, dense.attention.head_dim, dense.attention.kv_heads) == (32, 128, 8)


@pytest.mark.parametrize(
    ("name", "tp", "cp", "what"),
    [
        ("tiny-hybrid", 3, 1, "8 attention heads, which tp 3 x cp 1 = 3"),
        ("tiny-hybrid", 2, 4, "4 attention key/value heads, which tp 2 x cp 4 = 8"),
        ("Qwen/Qwen3.5-4B", 1, 8, "4 attention key/value heads, which tp 1 x cp 8 = 8"),
    ],
)
def test_heads_that_the_shape_does_not_divide_are_refused_with_the_count(name, tp, cp, what):
    with pytest.raises(InputError) as refused:
        model_config(name, 4).refuse_uneven_heads(tp, cp)
    assert what in str(refused.value)
    assert refused.value.remedy


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)])
def test_every_class_runs_on_every_shape_of_four_gpus(tp, cp):
    for name in MODEL_NAMES:
        model_config(name, 4).refuse_uneven_heads(tp, cp)


def test_an_unknown_class_and_an_empty_model_are_refused():
    with pytest.raises(InputError, match="no model class 'tiny'") as refused:
        model_config("tiny", 4)
    assert "tiny-hybrid" in refused.value.remedy
    with pytest.raises(InputError, match="a model of 0 layers"):
        model_config("tiny-hybrid", 0)
