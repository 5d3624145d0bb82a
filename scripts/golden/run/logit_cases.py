"""The table of models whose logits are recorded: a family of Hugging Face each, small, with all
that its architecture has in use."""

from __future__ import annotations

from dataclasses import dataclass

from golden.run.command_line import Family, RunCase, Sizes

LOCAL, ENGINE = "--transformer-impl local ", "--transformer-impl transformer_engine "
BASE = ("--num-layers 4 --hidden-size 32 --num-attention-heads 4 "
        "--kv-channels 8 --ffn-hidden-size 48 --vocab-size 60 --make-vocab-size-divisible-by 8 "
        "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
        "--max-position-embeddings 256 --optimizer adam --adam-beta2 0.95 ")
UNTIED = "--untie-embeddings-and-output-weights "
GROUPED = "--group-query-attention --num-query-groups 2 "
EXPERTS = "--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 16 "
SIGMOID = ("--num-experts 8 --moe-router-topk 4 --moe-ffn-hidden-size 8 "
           "--moe-router-num-groups 4 --moe-router-group-topk 2 "
           "--moe-router-score-function sigmoid --moe-router-enable-expert-bias "
           "--moe-router-topk-scaling-factor 2.5 --moe-shared-expert-intermediate-size 16 "
           "--moe-layer-freq [0,1,1,1] ")
LATENT = ("--multi-latent-attention --q-lora-rank 16 --kv-lora-rank 16 --qk-head-dim 8 "
          "--qk-pos-emb-head-dim 8 --v-head-dim 8 --qk-layernorm --rope-type yarn "
          "--rotary-scaling-factor 4 "
          "--mscale 1.0 --mscale-all-dim 1.0 --norm-epsilon 1e-6 ")
SINKS = ("--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7.0 --add-qkv-bias "
         "--softmax-type learnable --window-size 7,0 --window-attn-skip-freq 2 "
         "--position-embedding-type yarn --rotary-scaling-factor 4 --rotary-base 150000 "
         "--yarn-original-max-position-embeddings 64 --no-yarn-correction-range-round-to-int ")

DELTA = ("--qk-layernorm --moe-shared-expert-intermediate-size 16 --moe-shared-expert-gate "
         "--attention-output-gate --experimental-attention-variant gated_delta_net "
         "--linear-attention-freq 2 --linear-conv-kernel-dim 4 --linear-key-head-dim 4 "
         "--linear-value-head-dim 6 --linear-num-key-heads 2 --linear-num-value-heads 4 "
         "--apply-layernorm-1p --rotary-percent 0.5 --moe-grouped-gemm ")
HYBRID = (BASE.replace("--num-layers 4 ", "").replace("--swiglu ", "--squared-relu ")
          .replace("embedding-type rope", "embedding-type none") + UNTIED + GROUPED
          + SIGMOID.replace("--moe-layer-freq [0,1,1,1] ", "") + "--moe-grouped-gemm "
          "--mamba-state-dim 4 --mamba-head-dim 8 --mamba-num-groups 2 "
          "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec "
          "--hybrid-layer-pattern M*-E|ME-M ")

DENSE = Sizes("tp2pp2vpp2", tp=2, pp=2, vpp=2)
MOE = Sizes("tp2pp2vpp2ep2", tp=2, pp=2, vpp=2, ep=2, etp=1)
HYBRID_MOE = Sizes("tp2pp2ep2", tp=2, pp=2, ep=2, etp=1)


@dataclass(frozen=True)
class LogitCase:
    """`length`: of the sequence whose logits are recorded; it passes the original context. A family
    that is saved under TransformerEngine's names is computed by Megatron's own modules."""

    family: Family
    sizes: Sizes
    length: int = 160

    @property
    def is_mixed(self) -> bool:
        """Whether a layer has no module of Megatron's own: what stands in computes."""
        return self.family.name in ("qwen3_next", "nemotron_h")

    @property
    def has_engine(self) -> bool:
        return ENGINE in self.family.model

    def run(self, form: str, more: str) -> RunCase:
        name = f"{self.family.name}_{form}_{self.sizes.name}"
        kind = "torch" if form.startswith("torch") and form != "torch_dist" else "torch_dist"
        return RunCase(name, self.family, self.sizes, kind, more=more)


def _case(name: str, seed: int, options: str, sizes: Sizes = DENSE, length: int = 160):
    implementation = "" if ENGINE in options else LOCAL
    return LogitCase(Family(name, seed, implementation + options), sizes, length)


LOGIT_CASES = (
    # Llama 3's scaled angles differ from plain ones behind its 8192 positions alone.
    _case("llama", 4001, BASE + UNTIED + GROUPED + "--use-rope-scaling --rotary-base 500000 ",
          length=8320),
    _case("mistral", 4002, BASE + UNTIED + GROUPED + "--window-size 7,0 "),
    _case("qwen2", 4003, BASE + GROUPED + "--add-qkv-bias "),  # tied, as the small ones are
    _case("qwen3", 4004, BASE + UNTIED + GROUPED + "--qk-layernorm --rotary-base 1000000 "),
    _case("qwen3_moe", 4005, BASE + UNTIED + GROUPED + EXPERTS + "--qk-layernorm "
          "--moe-layer-freq [0,1,1,1] ", MOE),
    _case("mixtral", 4006, BASE + UNTIED + GROUPED + EXPERTS, MOE),
    # YaRN of latent attention begins behind 4096 positions, which no option changes.
    _case("deepseek_v3", 4007, ENGINE + BASE.replace("--kv-channels 8 ", "") + UNTIED + SIGMOID
          + LATENT + "--moe-grouped-gemm ", MOE, length=4224),
    _case("gpt_oss", 4008, BASE.replace("--swiglu ", "").replace("--disable-bias-linear ", "")
          + UNTIED + GROUPED + EXPERTS + SINKS, MOE),
    _case("glm4_moe", 4009, BASE + UNTIED + GROUPED + SIGMOID + "--qk-layernorm --add-qkv-bias "
          "--rotary-percent 0.5 ", MOE),
    _case("qwen3_next", 4010, ENGINE + BASE + UNTIED + GROUPED + EXPERTS + DELTA, MOE),
    _case("nemotron_h", 4011, ENGINE + HYBRID, HYBRID_MOE),
)

# How the state is filed: the model alone, which is small, and with an optimizer.
ZERO1 = "--use-distributed-optimizer --ddp-bucket-size 900"
FORMS = {
    "torch": "--no-save-optim", "torch_dist": "--no-save-optim",
    "torch_zero1": ZERO1, "dp_reshardable": ZERO1,
    "fully_reshardable": ZERO1 + " --dist-ckpt-optim-fully-reshardable",
    "muon": "--optimizer dist_muon",
}
