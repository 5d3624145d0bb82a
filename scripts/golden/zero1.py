"""Cases of a DistributedOptimizer (ZeRO-1) that is precision-aware, by Megatron-Core 0.16.1.

Megatron lays out the buffers, deals them to ranks and writes the files. TransformerEngine's
FusedAdam, which needs a GPU, is replaced by a stand-in that holds state as it does and returns it
as its get_unscaled_state() does; nothing here takes a step.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import types
from pathlib import Path
from unittest import mock

import torch
import torch.distributed

from golden.run import devices

devices.replace_devices()  # before Megatron is imported

from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedObject  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
)
from megatron.core.optimizer import OptimizerConfig, distrib_optimizer  # noqa: E402
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402

from golden import optimizer as settings  # noqa: E402
from golden.cases import Case, ModelShape  # noqa: E402
from golden.model import build_model, transformer_config  # noqa: E402
from golden.values import master_of, rng_state, state_of  # noqa: E402
from golden.write import (  # noqa: E402
    TorchDistSaveShardedStrategy,
    case_args,
    detached,
    writer_in_this_process,
)

FP8_RANGE, FP16_RANGE = 448.0, 65504.0 / 2
FORMATS = ("torch", "dp_reshardable", "fully_reshardable")


@dataclasses.dataclass(frozen=True)
class PrecisionCase:
    """A training state; the fields carry the names of Megatron's arguments."""

    name: str
    about: str
    exp_avg_dtype: torch.dtype = torch.float32
    exp_avg_sq_dtype: torch.dtype = torch.float32
    main_params_dtype: torch.dtype = torch.float32
    store_param_remainders: bool = True
    ddp_bucket_size: int | None = None  # with gradients that are reduced as they come
    dp_sizes: tuple[int, ...] = (1, 2)
    iteration: int = 3
    shape: ModelShape = dataclasses.field(default_factory=ModelShape)
    use_precision_aware_optimizer: bool = True  # as args say it

    def model(self) -> Case:
        return Case(self.name, self.about, shape=self.shape, iteration=self.iteration)

    def folder(self, checkpoint_format: str, dp_size: int) -> str:
        return f"{self.name}_{checkpoint_format}_dp{dp_size}"


CASES = [
    PrecisionCase("remainders", "masters as 16-bit remainders, moments in float32"),
    PrecisionCase("remainders_fp8", "the same, moments in fp8 with a scale for each shard",
                  torch.uint8, torch.uint8, dp_sizes=(2,)),
    PrecisionCase("remainders_half", "the same, moments in bfloat16 and in float16 with scales",
                  torch.bfloat16, torch.float16, dp_sizes=(2,)),
    PrecisionCase("half_masters", "masters in float16 with scales", torch.bfloat16,
                  torch.bfloat16, torch.float16, dp_sizes=(2,)),
    PrecisionCase("whole_masters", "as TransformerEngine before 2.1: masters in float32",
                  store_param_remainders=False, dp_sizes=(2,)),
    PrecisionCase("remainders_displaced", "several buckets with padding: what issue 5077 leaves",
                  ddp_bucket_size=3000, dp_sizes=(3,)),
]


def split(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(bf16 weight, int16 remainder) as multi_tensor_adam_param_remainder stores a master: its
    upper 16 bits, one more where the lower ones, as a signed number, are negative."""
    bits = master.contiguous().view(torch.int32)
    low = (bits & 0xFFFF).to(torch.int64)
    remainder = torch.where(low >= 1 << 15, low - (1 << 16), low).to(torch.int16)
    high = (bits >> 16) + (remainder < 0).to(torch.int32)
    return high.to(torch.int16).view(torch.bfloat16), remainder


class FusedAdam(torch.optim.Optimizer):
    """Holds groups and state of TransformerEngine's FusedAdam, with its types and scales."""

    def __init__(self, groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0,
                 case: PrecisionCase | None = None):
        super().__init__(groups, dict(lr=lr, bias_correction=True, betas=betas, eps=eps,
                                      weight_decay=weight_decay))
        self.case = case
        self.types = {"exp_avg": case.exp_avg_dtype, "exp_avg_sq": case.exp_avg_sq_dtype,
                      "master_param": case.main_params_dtype}
        self.remainders = case.store_param_remainders and (
            case.main_params_dtype == torch.float32)
        self.scales = {}

    def hold(self, param, name: str, value: torch.Tensor) -> None:
        dtype, scale = self.types[name], torch.ones(1)
        if name == "master_param" and self.remainders:
            value = split(value)[1]
        elif dtype in (torch.uint8, torch.float16):
            scale = value.abs().max() / (FP8_RANGE if dtype == torch.uint8 else FP16_RANGE)
            value = value / scale if scale > 0 else torch.zeros_like(value)
            value = value.to(torch.float8_e4m3fn if dtype == torch.uint8 else dtype)
        else:
            value = value.to(dtype)
        self.state[param][name], self.scales[param, name] = value, scale

    def get_unscaled_state(self, param, name: str) -> torch.Tensor:
        """What Megatron asks for: float32, but of remainders, which are int16."""
        held = self.state[param][name]
        return held if held.dtype == torch.int16 else held.float() * self.scales[param, name]


def optimizer_config(case: PrecisionCase) -> OptimizerConfig:
    """Without its check that TransformerEngine's FusedAdam can be imported and is new enough."""
    engine = types.ModuleType("transformer_engine.pytorch.optimizers")
    names = ("master_weight_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "use_decoupled_grad")
    exec(f"class FusedAdam:\n  def __init__(self, {', '.join(names)}): pass", vars(engine))
    modules = {name: types.ModuleType(name)
               for name in ("transformer_engine", "transformer_engine.pytorch")}
    modules["transformer_engine.pytorch.optimizers"] = engine
    with mock.patch.dict(sys.modules, modules), mock.patch(
            "megatron.core.optimizer.optimizer_config.is_te_min_version", lambda *_: True):
        return OptimizerConfig(
            optimizer="adam", lr=settings.MAX_LR, min_lr=settings.MIN_LR, bf16=True,
            weight_decay=settings.WEIGHT_DECAY, use_distributed_optimizer=True,
            use_precision_aware_optimizer=True, main_params_dtype=case.main_params_dtype,
            exp_avg_dtype=case.exp_avg_dtype, exp_avg_sq_dtype=case.exp_avg_sq_dtype,
            store_param_remainders=case.store_param_remainders)


def wrapped(model, case: PrecisionCase) -> DistributedDataParallel:
    config = DistributedDataParallelConfig(
        use_distributed_optimizer=True, overlap_grad_reduce=case.ddp_bucket_size is not None,
        bucket_size=case.ddp_bucket_size, grad_reduce_in_fp32=True)
    return DistributedDataParallel(transformer_config(case.model().shape), config, model)


def build_optimizer(model: DistributedDataParallel, case: PrecisionCase) -> DistributedOptimizer:
    with_decay, without_decay = [], []
    for name, parameter in model.module.named_parameters():
        is_plain = parameter.dim() == 1 or name.endswith(".bias")
        (without_decay if is_plain else with_decay).append(parameter)
    groups = [settings.param_group(with_decay, optimizer="adam"),
              settings.param_group(without_decay, 0.0, optimizer="adam")]
    adam = FusedAdam(groups, lr=settings.MAX_LR, weight_decay=settings.WEIGHT_DECAY, case=case)
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    distrib_optimizer.Adam = FusedAdam
    distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_TE_OPTIMIZER = True
    return DistributedOptimizer(
        adam, optimizer_config(case), None, None, model_chunks=[model],
        per_model_buffers={0: model.buffers}, data_parallel_group=group,
        data_parallel_group_gloo=group, data_parallel_group_idx=0,
        distributed_optimizer_instance_id=0)


def fill(optimizer: DistributedOptimizer, model: DistributedDataParallel,
         case: PrecisionCase) -> dict[str, torch.Tensor]:
    """Each rank's shards, and what they hold as whole tensors are called by their parameters."""
    held = {}
    for group in optimizer.optimizer.param_groups:
        group["step"] = case.iteration
    for name, parameter in model.module.named_parameters():
        shape = tuple(parameter.shape)
        whole = {kind: state_of(case.name, name, shape, kind).clamp(-1, 1)
                 for kind in ("exp_avg", "exp_avg_sq")}
        whole["master_param"] = master_of(case.name, name, shape, False)
        parameter.data.copy_(split(whole["master_param"])[0] if optimizer.optimizer.remainders
                             else whole["master_param"].bfloat16())
        held[f"model.{name}"] = parameter.detach().clone()
        if parameter not in optimizer.model_param_gbuf_map:
            continue
        place = optimizer._get_model_param_range_map(parameter)["param"]
        group, index = optimizer.model_param_group_index_map[parameter]
        shard = optimizer.optimizer.param_groups[group]["params"][index]
        for kind, value in whole.items():
            optimizer.optimizer.hold(shard, kind, value.view(-1)[place.start : place.end])
            stored = optimizer.optimizer.get_unscaled_state(shard, kind)
            held[f"{kind_in_state(kind, stored)}.{name}"] = (shape, place.start, stored.clone())
    return held


def kind_in_state(kind: str, stored: torch.Tensor) -> str:
    """A remainder is a state of its own; a master is one whatever it was held as."""
    if kind != "master_param":
        return kind
    return "param_remainder" if stored.dtype == torch.int16 else "master"


def gathered(held: dict) -> dict[str, torch.Tensor]:
    """The live state of all ranks as whole tensors, on rank 0."""
    world, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    everyone = [None] * world if rank == 0 else None
    torch.distributed.gather_object(held, everyone, dst=0)
    whole: dict[str, torch.Tensor] = {}
    for of_rank in everyone or ():
        for key, value in of_rank.items():
            if torch.is_tensor(value):
                whole[key] = value
                continue
            shape, start, stored = value
            flat = whole.setdefault(key, torch.zeros(shape, dtype=stored.dtype)).view(-1)
            flat[start : start + len(stored)] = stored
    return whole


def arguments(case: PrecisionCase, checkpoint_format: str, dp_size: int):
    model = case.model()
    is_torch = checkpoint_format == "torch"
    args = case_args(model, "torch" if is_torch else "torch_dist", dp_size)
    vars(args).update(
        optimizer="adam", use_distributed_optimizer=True,
        use_layer_wise_distributed_optimizer=False,
        use_precision_aware_optimizer=case.use_precision_aware_optimizer,
        main_params_dtype=case.main_params_dtype, exp_avg_dtype=case.exp_avg_dtype,
        exp_avg_sq_dtype=case.exp_avg_sq_dtype, ddp_bucket_size=case.ddp_bucket_size,
        overlap_grad_reduce=case.ddp_bucket_size is not None,
        dist_ckpt_optim_fully_reshardable=checkpoint_format == "fully_reshardable")
    return args


def write_torch(case: PrecisionCase, folder: Path, model, optimizer, common: dict) -> None:
    folder = folder / "mp_rank_00"
    folder.mkdir(parents=True, exist_ok=True)
    optimizer.save_parameter_state(str(folder / "distrib_optim.pt"))
    if torch.distributed.get_rank() != 0:
        return
    state = {**common, "model": detached(model.module.state_dict_for_save_checkpoint()),
             "optimizer": optimizer.state_dict(), "rng_state": [rng_state(case.name, 0)]}
    torch.save(state, folder / "model_optim_rng.pt")


def write_torch_dist(case: PrecisionCase, folder: Path, model, optimizer, common: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.distributed.barrier()
    is_fully = common["args"].dist_ckpt_optim_fully_reshardable
    content = {"distrib_optim_sharding_type": FORMATS[2] if is_fully else FORMATS[1],
               "singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    model_state = model.module.sharded_state_dict(metadata=content)
    state = {**common, "model": model_state,
             "optimizer": optimizer.sharded_state_dict(model_state, metadata=content),
             "rng_state": ShardedObject("rng_state", [rng_state(case.name, 0)], (1, 1), (0, 0),
                                        replica_id=torch.distributed.get_rank())}
    with writer_in_this_process():
        dist_checkpointing.save(
            state, str(folder), content_metadata=content,
            sharded_strategy=TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1))


def write_case(case: PrecisionCase, checkpoint_format: str, folder: Path) -> None:
    from safetensors.torch import save_file

    root = folder / "ckpt"
    dp_size = torch.distributed.get_world_size()
    model = wrapped(build_model(case.model()), case)
    optimizer = build_optimizer(model, case)
    scheduler = settings.build_scheduler(optimizer, case.model())
    expected = gathered(fill(optimizer, model, case))
    common = {"args": arguments(case, checkpoint_format, dp_size), "checkpoint_version": 3.0,
              "iteration": case.iteration, "opt_param_scheduler": scheduler.state_dict(),
              "num_floating_point_operations_so_far": 123456789}
    write = write_torch if checkpoint_format == "torch" else write_torch_dist
    write(case, root / f"iter_{case.iteration:07d}", model, optimizer, common)
    torch.distributed.barrier()
    if torch.distributed.get_rank() != 0:
        return
    (root / "latest_checkpointed_iteration.txt").write_text(str(case.iteration))
    (folder / "expected").mkdir()
    save_file(expected, folder / "expected/state.safetensors")


def write_all(cases: list[PrecisionCase], out: Path, formats: tuple[str, ...] = FORMATS) -> None:
    from golden.processes import in_processes

    for case in cases:
        for checkpoint_format in formats:
            for dp_size in case.dp_sizes:
                shutil.rmtree(out / case.folder(checkpoint_format, dp_size), ignore_errors=True)
    for dp_size in sorted({size for case in cases for size in case.dp_sizes}):
        of_this_size = [case for case in cases if dp_size in case.dp_sizes]
        in_processes(dp_size, write_world, of_this_size, (out, formats))


def write_world(cases: list[PrecisionCase], where: tuple[Path, tuple[str, ...]]) -> None:
    """All folders of one data-parallel size; called by every process of that world."""
    (out, formats), dp_size = where, torch.distributed.get_world_size()
    parallel_state.initialize_model_parallel()
    for case in cases:
        for checkpoint_format in formats:
            write_case(case, checkpoint_format, out / case.folder(checkpoint_format, dp_size))
    parallel_state.destroy_model_parallel()
