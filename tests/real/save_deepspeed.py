"""A ZeRO checkpoint of DeepSpeed on CPUs: for docs/records/compatibility.md, by hand.

usage: python -m torch.distributed.run --nproc-per-node W save_deepspeed.py OUT STAGE VARIANT
       python OUT/zero_to_fp32.py OUT OUT.fp32

VARIANT: plain, groups, sub (sub-groups of 150 elements), frozen, tied, fp32. `ckpt-convert OUT
OUT.pt --to torch --model-only` has to be equal to OUT.fp32/pytorch_model.bin.
"""

from __future__ import annotations

import os
import sys

os.environ.update(DS_ACCELERATOR="cpu", DS_SKIP_CUDA_CHECK="1")

import deepspeed  # noqa: E402  (asks the environment)
import torch  # noqa: E402
from torch import nn  # noqa: E402


class Net(nn.Module):
    def __init__(self, variant: str) -> None:
        super().__init__()
        self.words = nn.Embedding(23, 10)
        self.layers = nn.ModuleList(nn.Linear(10, 10) for _ in range(3))
        self.norm = nn.LayerNorm(10)
        self.out = nn.Linear(10, 23, bias=False)
        self.register_buffer("scale", torch.tensor([1.25, 0.5]))
        self.register_buffer("count", torch.tensor(3))
        if variant == "tied":
            self.out.weight = self.words.weight
        if variant == "frozen":
            self.layers[1].requires_grad_(False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.out(self.norm(x)) * self.scale[0]


def main() -> None:
    out, stage, variant = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    deepspeed.init_distributed("gloo")
    torch.manual_seed(1)
    net = Net(variant)
    params = [param for param in net.parameters() if param.requires_grad]
    if variant in ("groups", "sub"):
        params = [{"params": [each for each in params if each.ndim > 1], "weight_decay": 0.1},
                  {"params": [each for each in params if each.ndim == 1], "weight_decay": 0.0}]
    zero = {"stage": stage} | ({"sub_group_size": 150} if variant == "sub" else {})
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero,
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    if variant != "fp32":
        config["bf16"] = {"enabled": True}
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=torch.optim.AdamW(params, lr=1e-2), config=config)
    for _ in range(3):
        loss = engine(torch.randint(0, 23, (2, 6))).float().square().mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(out, tag="global_step3")


if __name__ == "__main__":
    main()
