"""The hybrid decoder: gated delta net and full attention layers with LoRA slots on frozen, seeded weights."""
