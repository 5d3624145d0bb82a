"""Records newton_schulz_tp of emerging_optimizers over two Gloo processes.

    PYTHONPATH=EMERGING_OPTIMIZERS .venv-test/bin/python scripts/golden/newton_schulz_tp.py \
        tests/golden/optim_layout/newton_schulz_tp.json

needs emerging_optimizers 0.3.0, absl-py and Python 3.12 (typing.override). Each case has the matrix
`random_tensor(shape, seed)` of tests/optim/step/tensors.h and what the two ranks got back, put
together again.
"""

import json
import sys
import tempfile

import torch
import torch.multiprocessing as mp

CASES = [  # shape, partition_dim, seed
    ((6, 14), 1, 3), ((14, 6), 0, 4), ((6, 14), 0, 5), ((8, 8), 0, 6), ((14, 6), 1, 7)]
MODES = ["duplicated", "distributed"]
PRECISIONS = ["highest", "medium"]


def numbers(count, seed):
    """The linear congruential generator of the tests."""
    state = (seed * 2654435761 + 1) % 2**64
    values = []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        signed = state - 2**64 if state >= 2**63 else state
        values.append((signed >> 11) * 2.0**-52)
    return values


def run(rank, store, results):
    from emerging_optimizers.orthogonalized_optimizers.muon_utils import newton_schulz_tp

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method="file://" + store, rank=rank, world_size=2)
    group = torch.distributed.group.WORLD
    for number, (shape, dim, seed) in enumerate(CASES):
        whole = torch.tensor(numbers(shape[0] * shape[1], seed), dtype=torch.float32).view(shape)
        part = whole.chunk(2, dim=dim)[rank].contiguous()
        for precision in PRECISIONS:
            torch.set_float32_matmul_precision(precision)
            for mode in MODES:
                out = newton_schulz_tp(part, 5, "quintic", group, partition_dim=dim, tp_mode=mode)
                results[rank, number, precision, mode] = out.tolist()
    torch.distributed.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(run, args=(folder + "/store", results), nprocs=2)
        cases = []
        for number, (shape, dim, seed) in enumerate(CASES):
            for precision in PRECISIONS:
                for mode in MODES:
                    parts = [torch.tensor(results[rank, number, precision, mode])
                             for rank in range(2)]
                    values = torch.cat(parts, dim=dim).flatten().tolist()
                    cases.append({"shape": shape, "dim": dim, "seed": seed,
                                  "precision": precision, "mode": mode,
                                  "result": [float(f"{value:.9g}") for value in values]})
    with open(sys.argv[1], "w", encoding="ascii") as file:
        versions = {"emerging_optimizers": "0.3.0", "torch": torch.__version__}
        json.dump({**versions, "cases": cases}, file)
        file.write("\n")


if __name__ == "__main__":
    main()
