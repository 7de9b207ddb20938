"""The geometries of the model classes, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.errors import InputError

__all__ = ["MODEL_NAMES", "AttentionShape", "DeltaNetShape", "ModelConfig", "model_config"]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Full attention: `heads` query heads of `head_dim` over `kv_heads` key and value heads.

    `rotary_dim` of the `head_dim` are rotated; `gated` adds an output gate of the size of the queries, as in Qwen3.5.
    """

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rotary_base: float
    gated: bool


@dataclass(frozen=True, slots=True)
class DeltaNetShape:
    """Gated delta net: each of `value_heads` heads keeps a state of `key_dim` x `value_dim`.

    Consecutive value heads share one of the `key_heads`. `conv_width` taps of a causal depth-wise convolution run over
    queries, keys and values; the delta rule works in chunks of `chunk` tokens.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    chunk: int

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model class at one depth. `delta_net` is None in a class with full attention only."""

    name: str
    layers: int
    hidden: int
    ffn: int
    vocab: int
    attention: AttentionShape
    delta_net: DeltaNetShape | None
    lora_rank: int
    lora_scale: float
    norm_eps: float = 1e-6

    def is_attention(self, layer: int) -> bool:
        """Whether layer `layer`, counted from 0, is full attention: every fourth of a hybrid, each of the others."""
        return self.delta_net is None or layer % 4 == 3

    @property
    def gdn_layers(self) -> int:
        """The number of gated delta net layers."""
        return sum(not self.is_attention(layer) for layer in range(self.layers))

    def refuse_uneven_heads(self, tp: int, cp: int) -> None:
        """Refuse a parallel shape that does not divide the model.

        Raises:
            InputError: tp x cp does not divide a head count, or tp the ffn.
        """
        counts = {"attention heads": self.attention.heads, "attention key/value heads": self.attention.kv_heads}
        if self.delta_net is not None:
            counts |= {"delta net key heads": self.delta_net.key_heads}
            counts |= {"delta net value heads": self.delta_net.value_heads}
        for what, count in counts.items():
            if count % (tp * cp):
                raise InputError(
                    f"{self.name} has {count} {what}, which tp {tp} x cp {cp} = {tp * cp} does not divide",
                    remedy="choose a tp x cp that divides every head count of the model",
                )
        if self.ffn % tp:
            raise InputError(
                f"{self.name} has ffn {self.ffn}, which tp {tp} does not divide", remedy="choose another tp"
            )


MODEL_NAMES = ("tiny-hybrid", "Qwen/Qwen3.5-4B", "Qwen/Qwen3-4B")


def model_config(name: str, layers: int) -> ModelConfig:
    """The geometry of class `name` with `layers` layers.

    >>> model_config("Qwen/Qwen3.5-4B", 32).gdn_layers
    24

    Raises:
        InputError: there is no such class, or `layers` is not positive.
    """
    if layers < 1:
        raise InputError(f"a model of {layers} layers", remedy="give at least one layer")
    match name:
        case "tiny-hybrid":
            return _TINY_HYBRID if layers == _TINY_HYBRID.layers else replace(_TINY_HYBRID, layers=layers)
        case "Qwen/Qwen3.5-4B":
            return replace(_QWEN_3_5_4B, layers=layers)
        case "Qwen/Qwen3-4B":
            return replace(_QWEN_3_4B, layers=layers)
        case _:
            raise InputError(f"no model class {name!r}", remedy=f"choose one of {', '.join(MODEL_NAMES)}")


_TINY_HYBRID = ModelConfig(
    name="tiny-hybrid",
    layers=4,
    hidden=32,
    ffn=64,
    vocab=512,
    attention=AttentionShape(heads=8, kv_heads=4, head_dim=16, rotary_dim=8, rotary_base=10_000.0, gated=True),
    delta_net=DeltaNetShape(key_heads=4, value_heads=8, key_dim=8, value_dim=8, conv_width=4, chunk=16),
    lora_rank=4,
    lora_scale=2.0,
)

# Head counts, head sizes, ffn and convolution as DESIGN section 10 lists them; vocabulary and rotary settings from the
# published model configurations.
_QWEN_3_5_4B = ModelConfig(
    name="Qwen/Qwen3.5-4B",
    layers=32,
    hidden=2560,
    ffn=9216,
    vocab=248_320,
    attention=AttentionShape(heads=16, kv_heads=4, head_dim=256, rotary_dim=64, rotary_base=10_000_000.0, gated=True),
    delta_net=DeltaNetShape(key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv_width=4, chunk=64),
    lora_rank=16,
    lora_scale=2.0,
)

_QWEN_3_4B = ModelConfig(
    name="Qwen/Qwen3-4B",
    layers=36,
    hidden=2560,
    ffn=9728,
    vocab=151_936,
    attention=AttentionShape(heads=32, kv_heads=8, head_dim=128, rotary_dim=128, rotary_base=1_000_000.0, gated=False),
    delta_net=None,
    lora_rank=16,
    lora_scale=2.0,
)
