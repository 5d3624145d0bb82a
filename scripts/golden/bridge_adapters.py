"""Adapter-only iterations as Megatron-Bridge saves them, and its own folders of PEFT of them.

usage: [torchrun --nproc_per_node 2] bridge_adapters.py SETS OUT CASE...

SETS: what tests/golden/huggingface/sets.tar.xz holds. Needs Megatron-Bridge 0.6.2, the transformers
that it wants and Megatron-LM 0.20-dev on PYTHONPATH, and no GPU: modules are Megatron's own.
What Bridge imports and this does not use is stood in for by empty modules.
"""

from __future__ import annotations

import builtins
import os
import sys
import types
import typing
from pathlib import Path

import typing_extensions

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.update(HF_HUB_OFFLINE="1")
for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"),
                    ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29611")):  # fmt: skip
    os.environ.setdefault(name, value)
ABSENT = ("transformer_engine", "modelopt", "wandb", "datasets", "PIL", "torchvision", "timm",
          "nvidia_resiliency_ext", "megatron.energon", "torch.utils.tensorboard", "webdataset",
          "qwen_vl_utils", "scipy", "matplotlib", "pandas")  # fmt: skip
typing.override = getattr(typing, "override", typing_extensions.override)


class Empty(types.ModuleType):
    __path__: typing.ClassVar = []
    __version__ = "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Empty(name) if name[:1].islower() else type(name, (), {})
        setattr(self, name, made)
        return made


def _import(name, values=None, locals_=None, fromlist=(), level=0, real=builtins.__import__):
    asks = (values or {}).get("__name__", "")
    is_absent = any(name == each or name.startswith(each + ".") for each in ABSENT)
    if level or not is_absent or not asks.startswith("megatron.bridge."):
        return real(name, values, locals_, fromlist, level)
    module = Empty(name.split(".")[0])
    for part in name.split(".")[1:] if fromlist else ():
        module = getattr(module, part)
    return module


builtins.__import__ = _import

import torch  # noqa: E402
from golden.run import devices  # noqa: E402

devices.replace_devices()

import megatron.bridge.peft.utils as peft_utils  # noqa: E402
from golden.run import megatron_on_cpu  # noqa: E402
from megatron.bridge import AutoBridge  # noqa: E402
from megatron.bridge.models.conversion.mapping_registry import (  # noqa: E402
    MegatronMappingRegistry,
)
from megatron.bridge.models.conversion.param_mapping import AutoMapping  # noqa: E402
from megatron.bridge.models.gpt_provider import local_layer_spec  # noqa: E402
from megatron.bridge.peft.canonical_lora import CanonicalLoRA  # noqa: E402
from megatron.bridge.peft.lora import LoRA  # noqa: E402
from megatron.bridge.training import checkpointing, config  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.transformer import dot_product_attention  # noqa: E402

LATENT = ["linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj",
          "linear_proj", "linear_fc1", "linear_fc2"]  # fmt: skip
CASES = {  # the model's family, the kind of adapter, its settings, how the optimizer is sharded
    "llama": ("llama", LoRA, dict(dim=4, alpha=6), "dp_reshardable"),
    "llama_canonical": ("llama", CanonicalLoRA, dict(dim=4, alpha=8), None),
    "qwen2": ("qwen2", LoRA, dict(dim=4, target_modules=["linear_qkv", "linear_proj"]), None),
    "qwen3_moe": ("qwen3_moe", LoRA, dict(dim=4, alpha=8, normalize_moe_lora=True), None),
    "deepseek_v3": ("deepseek_v3", LoRA, dict(dim=4, alpha=8, target_modules=LATENT),
                    "fully_reshardable"),
}  # fmt: skip
CASES["llama_canonical_tp2"] = CASES["llama_canonical"]
CASES["llama_tp2"] = (*CASES["llama"][:3], None)
SETTINGS = dict(
    params_dtype=torch.float32, bf16=False, fp16=False, autocast_dtype=torch.float32,
    pipeline_dtype=torch.float32, use_cpu_initialization=True, perform_initialization=False,
    gradient_accumulation_fusion=False, moe_grouped_gemm=False, moe_permute_fusion=False,
    apply_rope_fusion=False, bias_dropout_fusion=False, bias_activation_fusion=False,
    masked_softmax_fusion=False, persist_layer_norm=False, cross_entropy_loss_fusion=False,
    moe_router_fusion=False, moe_router_dtype=None, attention_dropout=0.0, hidden_dropout=0.0,
    moe_shared_expert_overlap=False, moe_aux_loss_coeff=0.0, make_vocab_size_divisible_by=1,
    moe_token_dispatcher_type="allgather",
)  # fmt: skip
# Names of Megatron's own modules beside those of TransformerEngine's, which the bridges know.
LOCAL = (("self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"),
         ("mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"),
         ("linear_q_up_proj.layer_norm_weight", "q_layernorm.weight"),
         ("linear_kv_up_proj.layer_norm_weight", "kv_layernorm.weight"))  # fmt: skip


def know_local_names(bridge):
    known = bridge.mapping_registry().mappings
    have = {mapping.megatron_param for mapping in known}
    more = [AutoMapping(megatron_param=mapping.megatron_param[: -len(engine)] + local,
                        hf_param=mapping.hf_param)
            for mapping in known for engine, local in LOCAL
            if mapping.megatron_param.endswith(engine)
            and mapping.megatron_param[: -len(engine)] + local not in have]  # fmt: skip
    registry = MegatronMappingRegistry(*known, *more)
    type(bridge).mapping_registry = lambda _: registry


def model_of(bridge, ranks):
    provider = bridge.to_megatron_provider(load_weights=False)
    know_local_names(bridge._model_bridge)
    for field, value in {**SETTINGS, "tensor_model_parallel_size": ranks}.items():
        if hasattr(provider, field):
            setattr(provider, field, value)
    has_experts = provider.num_moe_experts is not None
    provider.transformer_layer_spec = (
        (lambda config, vp_stage=None: get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, vp_stage=vp_stage))
        if has_experts else local_layer_spec)  # fmt: skip
    provider.finalize()
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    model = provider.provide().float().eval()
    bridge.load_hf_weights([model])
    if has_experts:  # what can be named in a configuration
        provider.transformer_layer_spec = get_gpt_decoder_block_spec
    return provider, model


def optimizer_of(model):
    ddp = DistributedDataParallel(
        model.config, DistributedDataParallelConfig(use_distributed_optimizer=True), model
    )
    settings = OptimizerConfig(optimizer="adam", lr=1e-3, use_distributed_optimizer=True,
                               params_dtype=torch.float32)  # fmt: skip
    optimizer = get_megatron_optimizer(settings, [ddp], use_gloo_process_groups=False)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.main_grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def run(sets, out, name):
    family, kind, settings, sharding = CASES[name]
    ranks = torch.distributed.get_world_size()
    bridge = AutoBridge.from_hf_pretrained(f"{sets}/{family}_hf", torch_dtype=torch.float32)
    provider, model = model_of(bridge, ranks)
    lora = kind(**settings)
    lora([model], training=True)
    lora.set_params_to_save([model])
    generator = torch.Generator().manual_seed(7 + torch.distributed.get_rank())
    for key, parameter in model.named_parameters():
        if ".adapter." in key:
            parameter.data = torch.randn(parameter.shape, generator=generator)
    optimizer = optimizer_of(model) if sharding else None
    metadata = {"distrib_optim_sharding_type": sharding,
                "dp_cp_group": parallel_state.get_data_parallel_group(True)}  # fmt: skip
    whole = checkpointing._generate_model_state_dict([model], {"metadata": metadata})
    state = checkpointing.apply_peft_adapter_filter_to_state_dict(whole, lora)
    if optimizer:
        state["optimizer"] = optimizer.sharded_state_dict(whole, metadata=metadata)
    folder = Path(out) / name / "iter_0000002"
    folder.mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save({**state, "checkpoint_version": 3.0, "iteration": 2}, str(folder),
                            content_metadata={"distrib_optim_sharding_type": sharding})  # fmt: skip
    stated = config.ConfigContainer(
        model=provider, train=None, ddp=None, scheduler=None, dataset=None, tokenizer=None,
        dist=None, peft=lora, logger=config.LoggerConfig(),
        optimizer=config.OptimizerConfig(use_distributed_optimizer=sharding is not None),
        checkpoint=config.CheckpointConfig(save="ckpt", ckpt_format="torch_dist"))  # fmt: skip
    if torch.distributed.get_rank() == 0:
        stated.to_yaml(str(folder / "run_config.yaml"))
    bridge.save_hf_adapter([model], path=f"{out}/{name}_peft", peft_config=lora,
                           base_model_name_or_path="")  # fmt: skip


def main():
    peft_utils.HAVE_TE = False
    megatron_on_cpu.fit()
    start = dot_product_attention.DotProductAttention.__init__

    def with_channels(self, *values, k_channels=None, v_channels=None, **options):
        start(self, *values, **options)

    dot_product_attention.DotProductAttention.__init__ = with_channels
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=torch.distributed.get_world_size()
    )
    sets, out, *names = sys.argv[1:]
    for each in names:
        run(sets, out, each)
        print("made", each, flush=True)


if __name__ == "__main__":
    main()
