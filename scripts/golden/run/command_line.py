"""A run's command line, from the shape of its model and its parallel sizes."""

from __future__ import annotations

from dataclasses import dataclass

ALWAYS = (
    "--seq-length 16 --max-position-embeddings 16 --tokenizer-type NullTokenizer "
    "--micro-batch-size 1 --train-iters 10 --lr 0.01 --min-lr 0.001 --lr-decay-style cosine "
    "--weight-decay 0.1 --clip-grad 1.0 --bf16 --eval-iters 0 --save-interval 1 "
    "--no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-gelu-fusion "
    "--no-bias-swiglu-fusion --no-bias-dropout-fusion --no-check-for-nan-in-loss-and-grad "
    "--no-persist-layer-norm --no-rope-fusion --distributed-backend gloo "
    "--optimizer dist_muon --muon-momentum 0.9 "
    "--muon-tp-mode duplicated --save ckpt"
).split()


@dataclass(frozen=True)
class Family:
    """One model and its gradients; every layout of it has the same training state."""

    name: str
    seed: int
    model: str  # options that shape the model
    steps: int = 2
    kept_in_fp32: str = ""  # parameters among bf16 ones: a pattern of names
    is_float32: bool = False  # all of it


@dataclass(frozen=True)
class Sizes:
    """Parallel sizes; dp is Megatron's data_parallel_size, with expert parallelism inside it."""

    name: str
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int | None = None
    stages: str = ""  # options that say how layers are dealt to stages
    batch: int = 8

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    def options(self) -> list[str]:
        given = ["--tensor-model-parallel-size", self.tp, "--pipeline-model-parallel-size",
                 self.pp, "--context-parallel-size", self.cp, "--expert-model-parallel-size",
                 self.ep, "--global-batch-size", self.batch]
        if self.etp is not None:
            given += ["--expert-tensor-parallel-size", self.etp]
        if self.vpp > 1 and not self.stages:
            given += ["--num-virtual-stages-per-pipeline-rank", self.vpp]
        if self.tp > 1 and self.ep > 1:
            given += ["--sequence-parallel"]
        return [str(word) for word in given] + self.stages.split()


PARALLEL_OPTIONS = {  # and how many words follow each
    "--tensor-model-parallel-size": 1, "--pipeline-model-parallel-size": 1,
    "--context-parallel-size": 1, "--expert-model-parallel-size": 1,
    "--expert-tensor-parallel-size": 1, "--num-virtual-stages-per-pipeline-rank": 1,
    "--num-layers-per-virtual-pipeline-stage": 1, "--pipeline-model-parallel-layout": 1,
    "--decoder-first-pipeline-num-layers": 1, "--decoder-last-pipeline-num-layers": 1,
    "--sequence-parallel": 0,
}
OF_A_SAVE = {"--save": 1, "--save-interval": 1, "--ckpt-format": 1}


def without(words: list[str], options: dict[str, int]) -> list[str]:
    kept, skip = [], 0
    for word in words:
        if skip:
            skip -= 1
        elif word in options:
            skip = options[word]
        else:
            kept.append(word)
    return kept


def with_sizes(words: list[str], sizes: Sizes) -> list[str]:
    """A run's command line at other parallel sizes, without what it saves."""
    batch = words[words.index("--global-batch-size") + 1]
    words = without(words, PARALLEL_OPTIONS | OF_A_SAVE | {"--global-batch-size": 1})
    options = sizes.options()
    options[options.index("--global-batch-size") + 1] = batch
    return words + options


@dataclass(frozen=True)
class RunCase:
    """One checkpoint: a family at some sizes in one format."""

    name: str
    family: Family
    sizes: Sizes
    checkpoint_format: str
    extra_state: str = ""  # "fp8": bytes, as with delayed scaling; "stream": as TE up to 2.3
    reloads: bool = True  # False: Megatron cannot load what it saves here
    more: str = ""  # options of this run alone

    def command_line(self) -> list[str]:
        always = [word for word in ALWAYS if word != "--bf16" or not self.family.is_float32]
        return [*always, *self.family.model.split(), "--seed", str(self.family.seed),
                *self.sizes.options(), "--ckpt-format", self.checkpoint_format,
                *self.more.split()]
