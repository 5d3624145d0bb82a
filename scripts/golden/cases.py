"""The table of generated checkpoints: which models, which optimizer layouts, how many ranks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelShape:
    """A small GPT model; the fields carry the names of Megatron's arguments."""

    num_layers: int = 2
    hidden_size: int = 16
    ffn_hidden_size: int = 64
    num_attention_heads: int = 2
    num_query_groups: int | None = None  # None: as many as heads, no grouped-query attention
    vocab_size: int = 64
    max_position_embeddings: int = 32
    add_bias_linear: bool = True
    add_qkv_bias: bool = True
    qk_layernorm: bool = False
    swiglu: bool = False
    normalization: str = "LayerNorm"
    position_embedding_type: str = "learned_absolute"
    untie_embeddings_and_output_weights: bool = True
    num_experts: int | None = None


@dataclass(frozen=True)
class Case:
    """One training state, written for every data-parallel size in `dp_sizes` in both formats.

    The values depend on the case and the parameter's name alone, so every folder of a case holds
    the same state: each is what a conversion or a reshard of any other one must give.
    """

    name: str
    about: str
    shape: ModelShape = field(default_factory=ModelShape)
    dp_sizes: tuple[int, ...] = (1, 2)
    formats: tuple[str, ...] = ("torch", "torch_dist")
    adam_layout: str = "torch"  # "torch": a step per parameter; "fused": as TE's FusedAdam
    iteration: int = 3
    fresh: bool = False  # biases and norms at their initial values: a master fits several weights
    rng_per_rank: bool = False  # --data-parallel-random-init
    rerun_state: bool = False  # state of Megatron's rerun state machine, one shard per rank
    fully_parallel_save: bool = True
    writer_threads: int = 1  # files per rank
    singleton_local_shards: bool = False  # layers under keys of their own, not stacked
    avoid_prefix: bool = True  # False: "chained_0.", as before chained_optim_avoid_prefix

    def folder(self, checkpoint_format: str, dp_size: int) -> str:
        return f"{self.name}_{checkpoint_format}_dp{dp_size}"


MEGATRON_CASES = (
    Case(
        "gpt2l",
        "the model of the recorded samples: 29 parameters, LayerNorm, biases, untied embeddings",
        dp_sizes=(1, 2, 3, 4, 7, 31),
    ),
    Case(
        "gpt1l_tiny",
        "as few bytes as a model can have: tests flip a bit of every one",
        ModelShape(
            num_layers=1,
            hidden_size=4,
            ffn_hidden_size=4,
            num_attention_heads=1,
            vocab_size=4,
            max_position_embeddings=4,
            add_bias_linear=False,
            add_qkv_bias=False,
            normalization="RMSNorm",
            position_embedding_type="rope",
            untie_embeddings_and_output_weights=False,
        ),
        dp_sizes=(2,),
    ),
    Case(
        "gpt5l_modern",
        "5 layers, grouped-query attention, SwiGLU, RMSNorm, rotary, tied embeddings, no bias",
        ModelShape(
            num_layers=5,
            ffn_hidden_size=40,
            num_attention_heads=4,
            num_query_groups=2,
            vocab_size=96,
            add_bias_linear=False,
            add_qkv_bias=False,
            swiglu=True,
            normalization="RMSNorm",
            position_embedding_type="rope",
            untie_embeddings_and_output_weights=False,
        ),
        dp_sizes=(1, 2, 4),
    ),
    Case(
        "gpt12l",
        "12 layers, so that layer 10 sorts before layer 2 as text; biases, learned positions",
        ModelShape(num_layers=12, ffn_hidden_size=48),
        dp_sizes=(2, 3),
    ),
    Case(
        "gpt3l_qk_norm",
        "query and key norms, SwiGLU with biases, grouped queries, untied",
        ModelShape(
            num_layers=3,
            ffn_hidden_size=24,
            num_attention_heads=4,
            num_query_groups=1,
            swiglu=True,
            qk_layernorm=True,
            normalization="RMSNorm",
            position_embedding_type="rope",
        ),
        dp_sizes=(1, 3),
    ),
    Case(
        "gpt2l_tied",
        "tied embeddings with learned positions, qkv bias alone",
        ModelShape(
            add_bias_linear=False, untie_embeddings_and_output_weights=False, vocab_size=80
        ),
        dp_sizes=(1, 2),
    ),
    Case(
        "gpt2l_fused",
        "FusedAdam layout: step in the group, absent where the group is empty on that rank",
        dp_sizes=(1, 2, 4),
        adam_layout="fused",
    ),
    Case(
        "gpt2l_fresh",
        "biases all zero and norms all one: several weights fit one master; iteration 1000000",
        dp_sizes=(2, 4),
        iteration=1_000_000,
        fresh=True,
    ),
    Case(
        "gpt2l_one_writer",
        "--no-ckpt-fully-parallel-save: rank 0 writes all model parameters",
        formats=("torch_dist",),
        dp_sizes=(2,),
        fully_parallel_save=False,
    ),
    Case(
        "gpt2l_two_files",
        "two writer threads, so two files per rank",
        dp_sizes=(2,),
        writer_threads=2,
    ),
    Case(
        "gpt2l_rng_per_rank",
        "one random-number state per data-parallel rank (--data-parallel-random-init)",
        dp_sizes=(2,),
        rng_per_rank=True,
    ),
    Case(
        "gpt2l_rerun",
        "the rerun state machine's state, one shard per rank",
        formats=("torch_dist",),
        dp_sizes=(2,),
        rerun_state=True,
    ),
)

# States that a program may refuse by name, but must not get wrong.
UNCOMMON_CASES = (
    Case(
        "gpt2l_moe",
        "four experts per layer, on every rank",
        ModelShape(num_experts=4, ffn_hidden_size=32, add_bias_linear=False, add_qkv_bias=False),
    ),
    Case(
        "gpt2l_unstacked",
        "singleton_local_shards: every layer and every SwiGLU half under a key of its own",
        ModelShape(swiglu=True, ffn_hidden_size=24),
        singleton_local_shards=True,
    ),
    Case(
        "gpt2l_prefixed",
        "optimizer keys with the prefix of the chained optimizer, as older checkpoints have them",
        avoid_prefix=False,
    ),
)
ALL_CASES = MEGATRON_CASES + UNCOMMON_CASES
