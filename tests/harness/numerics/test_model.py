"""The packed model against the slow reference that sees one row at a time, and what all its forms have in common."""

from __future__ import annotations

import pytest
import torch

from harness.checks import unsharded
from harness.model.block import HybridModel
from harness.model.config import model_config
from harness.model.reference import reference_log_probs
from harness.packing import pack
from harness.parallel.plan import make_plan
from harness.parallel.topology import Topology
from harness.prefix_tree import Layout, PrefixTree, candidate_family

CONFIG = model_config("tiny-hybrid", 4)
ROWS = (
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20),
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 5),
    (1, 2, 8),
    (1, 9),
    (4, 4, 4),
)


def model_and_topology(dtype: torch.dtype = torch.float64, backend: str | None = None, name: str = "tiny-hybrid"):
    topology = Topology.single("cpu")
    return HybridModel(model_config(name, 4), topology, dtype=dtype, compile_backend=backend), topology


def gradients_of(model: HybridModel, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    for parameter in model.lora_parameters().values():
        parameter.grad = None
    loss.backward()
    return {name: parameter.grad for name, parameter in model.lora_parameters().items()}


@pytest.fixture(scope="module")
def reference():
    """Log-probabilities and gradients of `ROWS` by the slow reference."""
    model, _ = model_and_topology()
    log_probs = torch.cat([reference_log_probs(model, row) for row in ROWS])
    packed = pack(ROWS, PrefixTree.from_rows(ROWS), Layout("no_sharing", frozenset()))
    weights = torch.tensor([term.weight for term in packed.terms], dtype=torch.float64)
    return log_probs.detach(), gradients_of(model, -(weights * log_probs).sum())


def test_every_layout_gives_the_slow_reference_and_its_gradients(reference):
    log_probs, gradients = reference
    model, topology = model_and_topology()
    tree = PrefixTree.from_rows(ROWS)
    assert len(candidate_family(tree)) > 2
    for layout in candidate_family(tree):
        plan = make_plan(pack(ROWS, tree, layout), CONFIG, topology)
        decoded = model.decode(plan)
        found = torch.empty_like(log_probs)
        found[plan.terms.index] = decoded.log_probs.detach()
        torch.testing.assert_close(found, log_probs, rtol=1e-11, atol=1e-11)
        for name, gradient in gradients_of(model, decoded.loss).items():
            assert gradients[name].abs().max() > 0, name
            error = (gradient - gradients[name]).abs().max() / gradients[name].abs().max()
            assert error < 1e-10, (layout.label, name)


def test_the_loss_is_minus_the_weighted_sum_of_the_terms():
    model, topology = model_and_topology()
    packed = pack(ROWS, PrefixTree.from_rows(ROWS), Layout("no_sharing", frozenset()))
    plan = make_plan(packed, CONFIG, topology)
    decoded = model.decode(plan)
    expected = -sum(
        packed.terms[index].weight * log_prob
        for index, log_prob in zip(plan.terms.index.tolist(), decoded.log_probs.tolist(), strict=True)
    )
    assert float(decoded.loss.detach()) == pytest.approx(expected, rel=1e-12)
    assert expected > 0


def test_only_lora_factors_are_trained_and_each_projection_has_both():
    model, topology = model_and_topology()
    names = set(model.lora_parameters())
    mixers = {"delta": ("q", "k", "v", "z", "out"), "attention": ("q", "k", "v", "gate", "out")}
    kinds = ["delta", "delta", "delta", "attention"]
    expected = {
        f"layers.{layer}.{part}.{projection}.lora_{factor}"
        for layer, kind in enumerate(kinds)
        for part, projections in ((kind, mixers[kind]), ("ffn", ("gate", "up", "down")))
        for projection in projections
        for factor in "ab"
    }
    assert names == expected
    assert all(parameter.count_nonzero() == parameter.numel() for parameter in model.lora_parameters().values())
    plan = make_plan(pack(ROWS, PrefixTree.from_rows(ROWS), Layout("no_sharing", frozenset())), CONFIG, topology)
    model(plan).backward()
    assert model.embedding.grad is None
    assert not model.embedding.requires_grad
    assert not model.layers[0].ffn.up.weight.requires_grad


def test_compiled_regions_give_the_same_numbers_and_settle():
    plain, topology = model_and_topology()
    compiled, _ = model_and_topology(backend="eager")
    tree = PrefixTree.from_rows(ROWS)
    for layout in candidate_family(tree)[:2]:
        plan = make_plan(pack(ROWS, tree, layout), CONFIG, topology)
        expected, found = (gradients_of(model, model(plan)) for model in (plain, compiled))
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-12)


def test_bfloat16_stays_near_float32():
    exact = unsharded(CONFIG, ROWS, device="cpu", dtype=torch.float32)
    rough = unsharded(CONFIG, ROWS, device="cpu", dtype=torch.bfloat16)
    assert rough.loss == pytest.approx(exact.loss, rel=0.02)
    assert (rough.log_probs - exact.log_probs).abs().mean() < 0.3
    assert all(torch.isfinite(gradient).all() for gradient in rough.gradients.values())


def test_logits_in_several_blocks_give_the_same_gradients(monkeypatch):
    model, topology = model_and_topology()
    packed = pack(ROWS, PrefixTree.from_rows(ROWS), Layout("no_sharing", frozenset()))
    expected = gradients_of(model, model(make_plan(packed, CONFIG, topology)))
    monkeypatch.setattr("harness.parallel.plan._LOGIT_ROWS", 5)
    plan = make_plan(packed, CONFIG, topology)
    assert len(plan.terms.blocks) > 3
    for name, gradient in gradients_of(model, model(plan)).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-12, atol=1e-12)


def test_a_device_that_is_not_the_topology_s_is_refused():
    with pytest.raises(ValueError, match="its topology is on cpu"):
        HybridModel(CONFIG, Topology.single("cpu"), device="cuda")
