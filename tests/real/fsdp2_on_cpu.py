#!/usr/bin/env python3
"""Trains a small GPT under PyTorch's FSDP2 by a Megatron-LM tree on CPUs, and saves torch_dcp; or
loads such a folder and steps. By hand: for docs/records/compatibility.md.

usage: fsdp2_on_cpu.py TREE OUT RANKS [--packages DIR]... [--load ROOT --as OTHER] [--is-loading]

OUT gets ckpt, and as whole tensors state.safetensors and, a step later, next.safetensors. --load:
starts from ROOT, a folder of ours say, and prints what differs from those of OTHER, which was
trained at the same number of ranks. --is-loading: with the argument that no release gives
ChainedOptimizer.state_dict(), without which none loads torch_dcp. FusedAdam is a stand-in.
"""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

MODEL = shlex.split(
    "--num-layers 2 --hidden-size 16 --num-attention-heads 4 --ffn-hidden-size 24 --vocab-size 60 "
    "--make-vocab-size-divisible-by 8 --untie-embeddings-and-output-weights --swiglu "
    "--group-query-attention --num-query-groups 2 --normalization RMSNorm --disable-bias-linear "
    "--position-embedding-type rope --transformer-impl local --attention-dropout 0 "
    "--hidden-dropout 0 --optimizer adam --clip-grad 0 --global-batch-size 12 "
    "--use-torch-fsdp2 --ckpt-format torch_dcp")
STEPS, SAMPLES = 2, 12


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("out", type=lambda path: Path(path).resolve())
    parser.add_argument("ranks", type=int)
    parser.add_argument("--packages", type=Path, action="append", default=[])
    parser.add_argument("--load", type=lambda path: Path(path).resolve())
    parser.add_argument("--as", dest="other", type=lambda path: Path(path).resolve())
    parser.add_argument("--is-loading", action="store_true")
    return parser.parse_args()


def import_tree(arguments: argparse.Namespace) -> None:
    """Before the ranks are forked. Meshes are of CPUs."""
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    sys.path[:0] = [str(arguments.tree), *map(str, arguments.packages)]
    import torch
    from golden.run import devices, megatron_on_cpu
    from torch.distributed import device_mesh

    devices.replace_devices()
    torch.cuda.device_count = lambda: 8
    devices.Inert.record_event = lambda self, *_, **__: devices.Inert()
    import gpt_builders  # noqa: F401
    import megatron.core.optimizer.optimizer as optimizers
    import megatron.training.training  # noqa: F401

    megatron_on_cpu.fit()
    make, make_all = device_mesh.DeviceMesh.__init__, device_mesh.init_device_mesh
    device_mesh.DeviceMesh.__init__ = lambda self, _, *a, **k: make(self, "cpu", *a, **k)
    device_mesh.init_device_mesh = torch.distributed.init_device_mesh = (
        lambda _, *a, **k: make_all("cpu", *a, **k))
    if arguments.is_loading:
        def state_dict(self, is_loading: bool = False):
            states = [one.state_dict(is_loading=is_loading) for one in self.chained_optimizers]
            return states[0] if len(states) == 1 else states

        optimizers.ChainedOptimizer.state_dict = state_dict


def live_state(model, optimizer) -> dict:
    from torch.distributed.tensor import DTensor

    def whole(tensor):
        tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return tensor.detach().clone().contiguous()

    state = {f"model.{name}": whole(param) for name, param in model.named_parameters()}
    names = {id(param): name for name, param in model.named_parameters()}
    leaf = getattr(optimizer, "chained_optimizers", [optimizer])[0]
    for masters, weights in zip(leaf.fp32_from_float16_groups, leaf.float16_groups, strict=True):
        for master, weight in zip(masters, weights, strict=True):
            name = names[id(weight)]
            state[f"master.{name}"] = whole(master)
            state |= {f"{key}.{name}": whole(value)
                      for key, value in leaf.optimizer.state[master].items()}
    return state


def take_step(model, optimizer, scheduler, number: int) -> None:
    import torch

    optimizer.zero_grad()
    tokens = torch.randint(0, 50, (1, 16), generator=torch.Generator().manual_seed(number))
    mask = torch.triu(torch.ones(1, 1, 16, 16), 1).bool()
    model(tokens, torch.arange(16)[None], mask, labels=tokens).float().mean().backward()
    optimizer.step()
    scheduler.step(increment=SAMPLES)


def run_rank(rank: int, arguments: argparse.Namespace) -> None:
    import model_provider
    import torch
    from golden.run.command_line import ALWAYS, OF_A_SAVE, without
    from golden.run.training import builder_of, start
    from megatron.core.enums import ModelType
    from megatron.training import get_args
    from megatron.training.checkpointing import save_checkpoint
    from megatron.training.training import preprocess_common_state_dict, setup_model_and_optimizer
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    os.chdir(arguments.out)
    words = without(list(ALWAYS), {**OF_A_SAVE, "--muon-momentum": 1, "--muon-tp-mode": 1,
                                   "--optimizer": 1, "--clip-grad": 1, "--save-interval": 1})
    sys.argv = ["pretrain_gpt.py", *words, *MODEL, "--save", "ckpt", "--save-interval", "1"]
    if arguments.load:
        sys.argv += ["--load", str(arguments.load), "--exit-on-missing-checkpoint"]
    start()
    args = get_args()
    model, optimizer, scheduler = setup_model_and_optimizer(
        model_provider_func=functools.partial(model_provider.model_provider, builder_of(args)),
        model_type=ModelType.encoder_or_decoder)[:3]

    def keep(name: str) -> None:
        state = live_state(model[0], optimizer)
        if rank == 0:
            save_file(state, f"{name}.safetensors")

    if not arguments.load:
        for number in range(STEPS):
            take_step(model[0], optimizer, scheduler, number)
        args.iteration, args.consumed_train_samples = STEPS, STEPS * SAMPLES
        save_checkpoint(STEPS, model, optimizer, scheduler, 0.0,
                        preprocess_common_state_dict_fn=preprocess_common_state_dict)
    keep("state")
    take_step(model[0], optimizer, scheduler, STEPS)
    keep("next")


def compare(ours: Path, theirs: Path) -> bool:
    import torch
    from safetensors.torch import load_file

    is_equal = True
    for name in ("state", "next"):
        mine, other = (load_file(folder / f"{name}.safetensors") for folder in (ours, theirs))
        differ = [key for key in mine.keys() | other.keys()
                  if key not in mine or key not in other or not torch.equal(mine[key], other[key])]
        print(f"{name}: {len(differ)} of {len(other)} tensors differ", *sorted(differ)[:5])
        is_equal &= not differ
    return is_equal


def main() -> int:
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    import_tree(arguments)
    from golden.run.launch import in_ranks

    logs = arguments.out / "logs"
    failed = in_ranks(arguments.ranks, lambda rank: run_rank(rank, arguments), logs)
    if failed:
        print((logs / f"rank{failed[0]}.log").read_text().strip().splitlines()[-1])
        return 1
    return 0 if arguments.other is None or compare(arguments.out, arguments.other) else 1


if __name__ == "__main__":
    sys.exit(main())
