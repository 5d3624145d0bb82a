"""The table of sets that a Megatron-LM tree makes: models, sizes, formats."""

from __future__ import annotations

from golden.run.command_line import Family, RunCase, Sizes

BASE = ("--hidden-size 16 --num-attention-heads 4 --ffn-hidden-size 24 --vocab-size 60 "
        "--make-vocab-size-divisible-by 16 --untie-embeddings-and-output-weights ")
GROUPED_QUERIES = "--group-query-attention --num-query-groups 2 "
MODERN = "--swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
EXPERTS = ("--num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 8 "
           "--moe-token-dispatcher-type alltoall ")
EXPERT_BIAS = "--moe-router-score-function sigmoid --moe-router-enable-expert-bias "
SHARED = "--moe-shared-expert-intermediate-size 12 "
LATENT = ("--multi-latent-attention --q-lora-rank 8 --kv-lora-rank 8 --qk-head-dim 4 "
          "--qk-pos-emb-head-dim 4 --v-head-dim 4 ")
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
              "--mtp-num-layers 1 --qk-layernorm")

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
)


def _cases(table) -> list[RunCase]:
    return [RunCase(f"{family.name}_{kind}_{sizes.name}", family, sizes, kind)
            for family, layouts in table for sizes in layouts for kind in ("torch", "torch_dist")]


ENGINE_CASES = _cases(ENGINE_TABLE)
