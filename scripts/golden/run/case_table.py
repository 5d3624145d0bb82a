"""The table of sets that a Megatron-LM tree makes: models, sizes, formats."""

from __future__ import annotations

from dataclasses import replace

from golden.run.command_line import Family, RunCase, Sizes

UNTIED = "--untie-embeddings-and-output-weights "
BASE = ("--hidden-size 8 --num-attention-heads 4 --ffn-hidden-size 12 --vocab-size 28 "
        "--make-vocab-size-divisible-by 8 " + UNTIED)
GROUPED_QUERIES = "--group-query-attention --num-query-groups 2 "
MODERN = "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
EXPERTS = ("--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 4 "
           "--moe-token-dispatcher-type alltoall ")
EXPERT_BIAS = "--moe-router-score-function sigmoid --moe-router-enable-expert-bias "
SHARED = "--moe-shared-expert-intermediate-size 8 "
LATENT = ("--multi-latent-attention --kv-lora-rank 4 --qk-head-dim 4 --qk-pos-emb-head-dim 4 "
          "--v-head-dim 4 ")  # Megatron builds it with TransformerEngine's modules alone
ENGINE = "--transformer-impl transformer_engine "
LOCAL = "--transformer-impl local "

DENSE = Family("te_dense", 2001, ENGINE + "--num-layers 4 " + BASE + GROUPED_QUERIES
               + "--qk-layernorm")
GROUPED = Family("te_grouped", 2002, ENGINE + "--num-layers 2 " + BASE + GROUPED_QUERIES + MODERN
                 + EXPERTS + EXPERT_BIAS + SHARED
                 + "--moe-shared-expert-gate --moe-grouped-gemm")
SEQUENTIAL = Family("te_sequential", 2003, ENGINE + "--num-layers 2 " + BASE + GROUPED_QUERIES
                    + EXPERTS)
DEEP = Family("te_deep", 2004, ENGINE + "--num-layers 4 " + BASE + MODERN + LATENT + EXPERTS
              + EXPERT_BIAS + SHARED + "--moe-grouped-gemm --moe-layer-freq [0,1,1,1] "
              "--mtp-num-layers 1 --qk-layernorm --q-lora-rank 6")
LATENT_PLAIN = Family("te_latent", 2005, ENGINE + "--num-layers 2 " + BASE + LATENT)

DP1 = Sizes("dp1")
DP2 = Sizes("dp2", dp=2)
TP2DP2 = Sizes("tp2dp2", tp=2, dp=2)
PP2VPP2 = Sizes("pp2vpp2", pp=2, vpp=2)
PP2 = Sizes("pp2", pp=2)
EP2 = Sizes("ep2dp2", ep=2, dp=2)
EP2DP4 = Sizes("ep2dp4", ep=2, dp=4)
EP2TP2 = Sizes("ep2tp2dp2", ep=2, tp=2, dp=2, etp=1)
EP2PP2 = Sizes("ep2pp2dp2", ep=2, pp=2, dp=2)

ENGINE_TABLE = (
    (DENSE, (DP1, TP2DP2, PP2VPP2)),
    (GROUPED, (DP1, EP2DP4, EP2TP2, EP2PP2)),
    (SEQUENTIAL, (DP1, EP2, EP2TP2)),
    (DEEP, (DP1, PP2, EP2TP2, EP2PP2)),
    (LATENT_PLAIN, (DP1, TP2DP2)),
)

AXES = Family("axes_moe", 2010, LOCAL + "--num-layers 4 " + BASE + MODERN + EXPERTS
              + EXPERT_BIAS + SHARED + "--moe-layer-freq [0,1,1,1] --mtp-num-layers 1")
TIED = Family("axes_tied", 2012, ENGINE + "--num-layers 6 " + BASE.replace(UNTIED, "")
              + GROUPED_QUERIES + MODERN)

EVERYTHING = Sizes("tp2pp2vpp2cp2dp2ep4etp1", tp=2, pp=2, vpp=2, cp=2, dp=2, ep=4, etp=1)
UNEVEN = Sizes("pp2vpp2uneven", pp=2, vpp=2,
               stages="--pipeline-model-parallel-layout Et|tt|t|mL")
UNEVEN_MOE = Sizes("pp2vpp2ep2uneven", pp=2, vpp=2, ep=2, dp=2,
                   stages="--pipeline-model-parallel-layout Et|tt|t|mL")
FIRST3 = Sizes("pp2first3", pp=2, stages="--decoder-first-pipeline-num-layers 3")
EDGES = Sizes("pp3first1last3", pp=3, stages="--decoder-first-pipeline-num-layers 1 "
              "--decoder-last-pipeline-num-layers 3")
AXES_TABLE = (
    (AXES, (DP1, Sizes("tp4ep2etp2dp2", tp=4, ep=2, etp=2, dp=2),
            Sizes("tp2dp2ep4etp1", tp=2, dp=2, ep=4, etp=1), UNEVEN, UNEVEN_MOE, FIRST3)),
    (TIED, (DP1, Sizes("pp2vpp3", pp=2, vpp=3), EDGES)),
)


# DistributedOptimizers of several instances, each with the whole state, and of one.
INSTANCES = Family("instances_moe", 3002, LOCAL + "--num-layers 2 " + BASE + GROUPED_QUERIES
                   + MODERN + EXPERTS + "--optimizer adam --adam-beta2 0.95 "
                   "--use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 300")

# The optimizer's state in flat buckets and by name: TransformerEngine's names, latent attention,
# MTP, shared experts, uneven stages.
ZERO1 = "--optimizer adam --adam-beta2 0.95 --use-distributed-optimizer --ddp-bucket-size 900"
ZERO1_FORMS = {"torch": ("torch", ""), "dp_reshardable": ("torch_dist", ""),
               "fully_reshardable": ("torch_dist", "--dist-ckpt-optim-fully-reshardable")}


def _with_zero1(family: Family, name: str, seed: int) -> Family:
    return Family(name, seed, f"{family.model} {ZERO1}")


ZERO1_TABLE = (
    (_with_zero1(DEEP, "zero1_deep", 3010), (DP1, PP2, EP2TP2, EP2PP2)),
    (_with_zero1(GROUPED, "zero1_grouped", 3011), (DP2, EP2TP2)),
    (_with_zero1(AXES, "zero1_axes", 3012),
     (DP2, Sizes("tp2dp2ep4etp1", tp=2, dp=2, ep=4, etp=1), UNEVEN_MOE)),
    (_with_zero1(TIED, "zero1_tied", 3013), (DP2, Sizes("pp2vpp3dp2", pp=2, vpp=3, dp=2), EDGES)),
)

# Muon beside a DistributedOptimizer, as Megatron-Core 0.18 files both (of its own tree alone).
HALVES = Family("core018", 3020, LOCAL + "--num-layers 2 " + BASE + GROUPED_QUERIES + MODERN)

# How Muon's parameters lie in buffers, and so who owns them: `padded` of core 0.20-dev, `decoupled`
# (the default of Megatron-LM's change 5479), `legacy`. Buckets are small, so that owners differ.
LAYOUTS = Family("layouts", 3030, LOCAL + "--num-layers 3 " + BASE + GROUPED_QUERIES + MODERN
                 + "--overlap-grad-reduce --ddp-bucket-size 300")
LAYOUT_CASES = {"default": ("torch_dist", ""),
                "padded": ("torch_dist", "--use-layer-wise-param-layout"),
                "legacy": ("torch", "--no-use-layer-wise-param-layout")}

# Parameters in float32 among bf16 ones, which core 0.20-dev of 10 August saves. Those of a
# DistributedOptimizer are paired with their own state only where each group has them first.
KEPT = r"word_embeddings|router\.weight|pre_mlp_layernorm\.weight|^decoder.*input_layernorm"
NATIVE = Family("native", 3040, LOCAL + "--num-layers 2 " + BASE + GROUPED_QUERIES + MODERN
                + EXPERTS, kept_in_fp32=KEPT)
NATIVE_ADAM = replace(NATIVE, name="native_adam", model=NATIVE.model + "--optimizer adam",
                      kept_in_fp32=r"router\.weight|pre_mlp_layernorm\.weight")
NATIVE_ZERO1 = replace(NATIVE, name="native_zero1", model=NATIVE.model + ZERO1)
NATIVE_SWAPPED = replace(NATIVE, name="native_swapped", model=NATIVE.model + ZERO1,
                         kept_in_fp32=r"pre_mlp_layernorm\.weight")

# Lion, which has one moment: alone, as a DistributedOptimizer, and for what Muon does not step
# (core 0.20-dev of July); groups with learning rates of their own.
LION = HALVES.model + "--lion-beta1 0.9 --optimizer lion"
LION_TABLE = (
    (Family("lion", 3050, LION), (("torch", ""), ("torch_dist", ""))),
    (Family("lion_zero1", 3051, LION + " --use-distributed-optimizer --ddp-bucket-size 900"),
     tuple(ZERO1_FORMS.values())),
    (Family("lion_muon", 3052, HALVES.model + "--optimizer muon --muon-scalar-optimizer lion "
            "--use-distributed-optimizer --ddp-bucket-size 900"), tuple(ZERO1_FORMS.values())[1:]),
    (_with_zero1(replace(HALVES, model=HALVES.model + "--decoupled-lr 0.02"), "zero1_rates", 3053),
     tuple(ZERO1_FORMS.values())),
)

# Layers of Mamba, attention, MLP and experts; GatedDeltaNet beside attention with an output gate.
MAMBA = "--mamba-state-dim 2 --mamba-head-dim 4 --mamba-num-groups 2 "
HYBRID_MODEL = (ENGINE + BASE + GROUPED_QUERIES + "--swiglu --normalization RMSNorm "
                "--disable-bias-linear --position-embedding-type none " + MAMBA + EXPERTS
                + "--moe-grouped-gemm --spec megatron.core.models.mamba.mamba_layer_specs "
                "mamba_stack_spec --hybrid-layer-pattern ")
HYBRID = Family("hybrid", 4001, HYBRID_MODEL + "M*-E")
DELTA = Family("delta", 4002, ENGINE + "--num-layers 2 " + BASE + GROUPED_QUERIES + MODERN
               + "--attention-output-gate --experimental-attention-variant gated_delta_net "
               "--linear-attention-freq 2 --linear-conv-kernel-dim 3 --linear-key-head-dim 2 "
               "--linear-value-head-dim 3 --linear-num-key-heads 2 --linear-num-value-heads 4 "
               "--apply-layernorm-1p")
# Experts with an optimizer of their own, where no optimizer is sharded.
APART = Family("adam_hybrid", 4005, HYBRID_MODEL + "M*-E --optimizer adam")
HYBRID_TABLE = ((HYBRID, (TP2DP2, PP2)), (DELTA, (TP2DP2,)))
HYBRID_ZERO1_TABLE = ((_with_zero1(HYBRID, "zero1_hybrid", 4003), (DP2, TP2DP2)),
                      (_with_zero1(DELTA, "zero1_delta", 4004), (DP2,)))

# DeepSeek-V3.2's sparse attention with its indexer, in each layer or in every second one, which
# Megatron cannot save in torch_dist; one layer for two depths of multi-token prediction; gradients
# summed in float32 beside bf16 ones; all of the model in float32, which it does not load from flat
# buffers.
DSA_MODEL = (BASE + MODERN + LATENT + "--q-lora-rank 6 --qk-layernorm "
             "--experimental-attention-variant dsa --dsa-indexer-n-heads 2 "
             "--dsa-indexer-head-dim 8 --dsa-indexer-topk 4")
DSA = Family("dsa", 5001, ENGINE + "--num-layers 2 " + DSA_MODEL)
DSA_SHARED = Family("dsa_shared", 5002, ENGINE + "--num-layers 4 --dsa-indexer-topk-freq 2 "
                    "--dsa-indexer-skip-topk-offset 1 " + DSA_MODEL)
REPEATED = Family("repeated", 5003, ENGINE + "--num-layers 2 " + BASE + GROUPED_QUERIES + MODERN
                  + "--mtp-num-layers 2 --mtp-use-repeated-layer")
LOCAL_SUMS = Family("local_sums", 5004, LOCAL + "--num-layers 2 " + BASE + GROUPED_QUERIES + MODERN
                    + "--grad-reduce-in-bf16 "
                    "--ddp-param-name-patterns-for-fp32-local-accumulation *layernorm*")
FLOAT32 = Family("float32", 5005, LOCAL + "--num-layers 2 " + BASE + GROUPED_QUERIES + MODERN,
                 is_float32=True)
SGD = replace(HALVES, name="sgd", seed=5006, model=HALVES.model + "--optimizer sgd")
CHANGED_TABLE = ((DSA, (DP2, replace(TP2DP2, stages="--sequence-parallel"))),
                 (REPEATED, (DP2, PP2)), (LOCAL_SUMS, (DP2,)), (FLOAT32, (DP2, TP2DP2)))

STREAM_TABLE = ((DENSE, (DP1, TP2DP2)), (GROUPED, (EP2TP2,)))


def _cases(table, extra_state: str = "") -> list[RunCase]:
    name = f"_{extra_state}" if extra_state else ""
    return [RunCase(f"{family.name}{name}_{kind}_{sizes.name}", family, sizes, kind, extra_state)
            for family, layouts in table for sizes in layouts for kind in ("torch", "torch_dist")]


# In `torch` folders, ranks of one tensor-parallel rank overwrite each other's experts where the
# experts' tensor parallelism is larger, and those of context parallelism each other's optimizers.
UNSTORABLE = (EVERYTHING, Sizes("etp2ep2dp4", ep=2, etp=2, dp=4))
RUN_CASES = [
    *_cases(ENGINE_TABLE),
    *_cases(ENGINE_TABLE, "fp8"),
    *_cases(STREAM_TABLE, "stream"),
    *_cases(AXES_TABLE),
    *_cases(HYBRID_TABLE),
    RunCase("adam_hybrid_torch_dist_ep2dp2", APART, EP2, "torch_dist"),
    *(RunCase(f"axes_moe_torch_dist_{sizes.name}", AXES, sizes, "torch_dist")
      for sizes in UNSTORABLE),
    *(RunCase(f"instances_moe_{kind}_{number}", INSTANCES, EP2DP4, kind,
              more=f"--num-distributed-optimizer-instances {number}")
      for kind in ("torch", "torch_dist") for number in (1, 2)),
    *(RunCase(f"{family.name}_{form}_{sizes.name}", family, sizes, kind, more=more)
      for family, layouts in (*ZERO1_TABLE, *HYBRID_ZERO1_TABLE) for sizes in layouts
      for form, (kind, more) in ZERO1_FORMS.items()),
    *(RunCase(f"core018_{form}_{sizes.name}", HALVES, sizes, "torch_dist",
              more=ZERO1_FORMS[form][1])
      for form in ("dp_reshardable", "fully_reshardable") for sizes in (DP1, TP2DP2)),
    *(RunCase(f"layouts_{name}_dp4", LAYOUTS, Sizes("dp4", dp=4), kind, more=more)
      for name, (kind, more) in LAYOUT_CASES.items()),
    RunCase("native_torch_dp1", NATIVE, DP1, "torch", more="--no-use-layer-wise-param-layout"),
    RunCase("native_torch_dp2", NATIVE, DP2, "torch", more="--no-use-layer-wise-param-layout"),
    RunCase("native_torch_dist_dp2", NATIVE, DP2, "torch_dist", reloads=False),
    RunCase("native_fully_reshardable_dp2", NATIVE, DP2, *ZERO1_FORMS["fully_reshardable"][:1],
            more=ZERO1_FORMS["fully_reshardable"][1]),
    *(RunCase(f"native_adam_{kind}_{sizes.name}", NATIVE_ADAM, sizes, kind)
      for kind in ("torch", "torch_dist") for sizes in (DP2, TP2DP2)),
    *(RunCase(f"native_zero1_{form}_{sizes.name}", NATIVE_ZERO1, sizes, kind, more=more,
              reloads=form == "fully_reshardable")
      for form, (kind, more) in ZERO1_FORMS.items() for sizes in (DP2, TP2DP2)),
    RunCase("native_swapped_fully_reshardable_dp2", NATIVE_SWAPPED, DP2, "torch_dist",
            more=ZERO1_FORMS["fully_reshardable"][1]),
    *(RunCase(f"{family.name}_{kind}{more and '_fully'}_{sizes.name}", family, sizes, kind,
              more=more)
      for family, forms in LION_TABLE for kind, more in forms for sizes in (DP2, TP2DP2)),
    *(RunCase(f"{family.name}_{form}_{sizes.name}", family, sizes, kind, more=f"{ZERO1} {more}",
              reloads=not family.is_float32 or form == "fully_reshardable")
      for family, layouts in CHANGED_TABLE for sizes in layouts
      for form, (kind, more) in ZERO1_FORMS.items()),
    *(RunCase(f"sgd_{kind}_dp2", SGD, DP2, kind, reloads=kind == "torch")
      for kind in ("torch", "torch_dist")),
    RunCase("dsa_shared_torch_dp2", DSA_SHARED, DP2, "torch", more=ZERO1),
    RunCase("overwritten_torch_etp2ep2dp4", AXES, UNSTORABLE[1], "torch", reloads=False),
]
