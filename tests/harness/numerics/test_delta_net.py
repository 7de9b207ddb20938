"""The chunked delta rule and the convolution against the recurrence, token by token."""

from __future__ import annotations

import pytest
import torch

from harness.model.delta_net import Chunks, chunk_step, prepare_chunks, window_chunks
from harness.model.reference import reference_convolution, reference_delta_rule

HEADS, KEY, VALUE = 3, 6, 5


def drawn(length: int, *, decay: float, seed: int = 0):
    """q, k, v, g, beta of (length, heads, ...) that ask for gradients."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    k = torch.nn.functional.normalize(normal(length, HEADS, KEY), dim=-1)
    made = [normal(length, HEADS, KEY), k, normal(length, HEADS, VALUE)]
    made += [-decay * torch.rand(length, HEADS, generator=generator, dtype=torch.float64)]
    made += [torch.sigmoid(normal(length, HEADS))]
    return [part.requires_grad_() for part in made], normal(HEADS, KEY, VALUE).requires_grad_()


def chunked(parts, state, chunk: int):
    """The same through the fast form: padded to whole chunks, one after another."""
    length = parts[0].shape[0]
    count = -(-length // chunk)
    cut = [
        torch.cat([part, part.new_zeros((count * chunk - length, *part.shape[1:]))])
        .view(count, chunk, *part.shape[1:])
        .transpose(1, 2)
        for part in parts
    ]
    chunks = prepare_chunks(*cut)
    state, outputs = state[None], []
    for index in range(count):
        state, output = chunk_step(state, Chunks(*(part[index : index + 1] for part in chunks)))
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs)[:length], state[0]


def recurrent(parts, state):
    heads = [reference_delta_rule(*(part[:, head] for part in parts), state[head]) for head in range(HEADS)]
    return torch.stack([output for output, _ in heads], dim=1), torch.stack([final for _, final in heads])


@pytest.mark.parametrize("length", [1, 15, 16, 17, 50])
@pytest.mark.parametrize(("chunk", "decay"), [(16, 0.1), (64, 0.1), (16, 30.0)])
def test_chunks_give_the_recurrence_and_its_gradients(length, chunk, decay):
    parts, state = drawn(length, decay=decay)
    inputs = [*parts, state]
    weights = torch.randn(length, HEADS, VALUE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    results = []
    for form in (lambda: chunked(parts, state, chunk), lambda: recurrent(parts, state)):
        outputs, final = form()
        gradients = torch.autograd.grad((outputs * weights).sum() + final.square().sum(), inputs)
        results.append([outputs, final, *gradients])
    for fast, slow in zip(*results, strict=True):
        assert slow.abs().max() > 0
        torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)


def test_a_strong_decay_over_a_long_chunk_stays_finite_in_float32():
    parts, state = drawn(64, decay=200.0)
    parts, state = [part.detach().float().requires_grad_() for part in parts], state.detach().float()
    outputs, _ = chunked(parts, state, 64)
    outputs.sum().backward()
    assert all(torch.isfinite(part.grad).all() for part in parts)


def test_the_convolution_of_a_chunk_reaches_the_rows_before_it():
    generator = torch.Generator().manual_seed(2)
    length, chunk, width, heads, size = 11, 4, 4, 2, 4
    channels = 3 * heads * size
    rows = torch.randn(length, channels + 2 * heads, generator=generator, dtype=torch.float64)
    taps = torch.randn(channels, width, generator=generator, dtype=torch.float64)
    rate, bias = torch.full((heads,), 0.1, dtype=torch.float64), torch.zeros(heads, dtype=torch.float64)
    order = torch.arange(1 - width, 12)
    windows = torch.where((order < 0) | (order >= length), length, order).unfold(0, width - 1 + chunk, chunk)
    valid = (torch.arange(12) < length).view(3, chunk)
    chunks = window_chunks(rows, windows, valid, taps, rate, bias, size, size)
    state, outputs = torch.zeros(1, heads, size, size, dtype=torch.float64), []
    for index in range(3):
        state, output = chunk_step(state, Chunks(*(part[index : index + 1] for part in chunks)))
        outputs.append(output[0].transpose(0, 1))
    mixed = torch.nn.functional.silu(reference_convolution(rows[:, :channels], taps))
    q, k, v = (part.reshape(length, heads, size) for part in mixed.chunk(3, dim=1))
    q, k = (part / torch.sqrt((part * part).sum(-1, keepdim=True) + 1e-6) for part in (q, k))
    g = -rate * torch.nn.functional.softplus(rows[:, channels : channels + heads] + bias)
    beta = torch.sigmoid(rows[:, channels + heads :])
    for head in range(heads):
        parts = [part[:, head] for part in (q / size**0.5, k, v, g, beta)]
        slow, final = reference_delta_rule(*parts, torch.zeros(size, size, dtype=torch.float64))
        torch.testing.assert_close(torch.cat(outputs)[:length, head], slow, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(state[0, head], final, rtol=1e-10, atol=1e-12)
