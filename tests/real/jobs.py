"""What is resharded and converted for the tables of docs/records/compatibility.md, and what a run
needs to load it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DEFAULT_CONTAINER = {"flat_file": "torch"}  # of a form; torch_dist of others
# A batch that three replicas share, with the learning rates that the checkpoint has.
OF_THREE_REPLICAS = " --global-batch-size 24 --use-checkpoint-opt-param-scheduler"


@dataclass(frozen=True)
class Job:
    source: str  # a set
    sizes: str  # of the result
    to: str = ""  # container, where it is another one
    expected: str = ""  # the set whose state it must have; the source if empty
    layout: str = ""  # of pipeline stages, where they are uneven
    form: str = ""  # of the optimizer's state
    megatron: str = ""  # which one's layout
    through: str = ""  # sizes that it is taken to before
    run: str = ""  # a further option of the run that loads it
    buckets: str = ""  # elements of one

    @property
    def target(self) -> str:
        through = f"{self.through}, then " if self.through else ""
        buckets = f"buckets={self.buckets}" if self.buckets else ""
        words = (self.to, self.form, self.megatron, buckets, through + self.sizes, self.run)
        return " ".join(filter(None, words))

    @property
    def name(self) -> str:
        words = re.sub(r"[=, ]+", "", self.target)
        return f"{self.source}_to_{words}{'uneven' if self.layout else ''}"

    def commands(self, source: Path, out: Path) -> list[list[str]]:
        """The last one writes the result."""
        result, words = out / self.name, []
        if self.through:
            words = self._commands(source, out / f"{self.name}_through", self.through)
            source = out / f"{self.name}_through"
        return words + self._commands(source, result, self.sizes)

    def _commands(self, source: Path, result: Path, sizes: str) -> list[list[str]]:
        if self.form or self.megatron:
            to = self.to or DEFAULT_CONTAINER.get(self.form, "torch_dist")
            words = ["ckpt-convert", str(source), str(result), "--to", to]
            words += ["--optimizer-sharding", self.form] if self.form else []
            words += ["--target-megatron", self.megatron] if self.megatron else []
            words += ["--bucket-size", self.buckets] if self.buckets else []
            return [words + self._options(sizes)]
        words = []
        if self.to:
            converted = result.with_name(f"{result.name}_converted")
            words.append(["ckpt-convert", str(source), str(converted), "--to", self.to])
            source = converted
        return [*words, ["reshard", str(source), str(result), *self._options(sizes)]]

    def _options(self, sizes: str) -> list[str]:
        words = []
        for part in sizes.split(","):
            name, number = part.split("=")
            words += [f"--{name}", number]
        return words + (["--pipeline-layout", self.layout] if self.layout else [])

    def run_options(self) -> list[str]:
        """For load_result.py."""
        further = f"--pipeline-model-parallel-layout {self.layout}" if self.layout else ""
        further += f" {self.run}" if self.run else ""
        if self.buckets:
            further += f" --overlap-grad-reduce --ddp-bucket-size {self.buckets}"
        further += OF_THREE_REPLICAS if "dp=3" in self.sizes else ""
        words = [f"--options={further}"] if further else []
        return words + (["--form", self.form] if self.form else [])


LAYER_WISE = "par_lw_muon"
LAYER_WISE_JOBS = (
    # Refused by Megatron, or loaded wrong: `torch`, any change.
    Job(f"{LAYER_WISE}_torch_tp2dp2", "tp=1,dp=1"),
    Job(f"{LAYER_WISE}_torch_tp2dp2", "tp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_tp2dp2", "tp=1,dp=2"),
    Job(f"{LAYER_WISE}_torch_tp2dp2", "tp=1,pp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_pp2dp2", "pp=2,vpp=2,dp=2"),
    Job(f"{LAYER_WISE}_torch_pp2dp2", "pp=1,dp=2"),
    Job(f"{LAYER_WISE}_torch_pp2dp2", "pp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_pp2vpp2dp2", "pp=2,vpp=1,dp=2"),
    Job(f"{LAYER_WISE}_torch_pp2vpp2dp2", "pp=2,vpp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_dp4", "tp=2,dp=2"),
    Job(f"{LAYER_WISE}_torch_dp4", "tp=2,pp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_dp4", "pp=4,dp=1"),
    Job(f"{LAYER_WISE}_torch_dp4", "tp=2,pp=4,dp=1"),
    Job(f"{LAYER_WISE}_torch_dp3", "tp=2,dp=2"),
    Job(f"{LAYER_WISE}_torch_tp2pp2dp2", "tp=1,pp=2,vpp=2,dp=2"),
    Job(f"{LAYER_WISE}_llama_torch_tp2dp2", "tp=1,dp=2"),
    Job(f"{LAYER_WISE}_tied_torch_pp2dp2", "pp=2,dp=1"),
    Job(f"{LAYER_WISE}_tied_torch_pp2dp2", "pp=1,dp=1"),
    Job(f"{LAYER_WISE}_tied_torch_dp1", "pp=2,vpp=2,dp=2"),
    Job(f"{LAYER_WISE}_moe_torch_ep2dp2", "ep=1,dp=1"),
    Job(f"{LAYER_WISE}_moe_torch_ep2dp2", "ep=4,dp=4"),
    Job(f"{LAYER_WISE}_moe_torch_ep2dp2", "ep=1,dp=4"),
    Job(f"{LAYER_WISE}_moe_torch_dp1", "ep=2,dp=4"),
    Job(f"{LAYER_WISE}_moe_torch_ep2dp2", "ep=2,tp=2,etp=1,dp=2"),
    Job(f"{LAYER_WISE}_moef_torch_ep2pp2dp2", "ep=4,pp=1,dp=4"),
    Job("par_adam_fp16_torch_tp2dp2", "tp=1,dp=2"),
    Job("par_adam_fp16_torch_dp2", "tp=2,pp=2,dp=1"),
    # torch_dist: EP 1 to and from EP > 1 is refused; the others Megatron loads by itself.
    Job(f"{LAYER_WISE}_moe_torch_dist_dp1", "ep=2,dp=4"),
    Job(f"{LAYER_WISE}_moe_torch_dist_ep2dp2", "ep=1,dp=1"),
    Job(f"{LAYER_WISE}_moe_torch_dist_ep2dp2", "ep=1,dp=4"),
    Job(f"{LAYER_WISE}_torch_dist_tp2dp2", "tp=2,pp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_dist_tp2dp2", "tp=1,pp=2,vpp=2,dp=1"),
    Job(f"{LAYER_WISE}_torch_dist_dp4", "tp=2,cp=2,dp=1"),
    Job(f"{LAYER_WISE}_moef_torch_dist_ep2dp2", "ep=2,pp=2,dp=2"),
    Job(f"{LAYER_WISE}_vpad_torch_dist_tp2dp2", "tp=1,dp=1",
        expected=f"{LAYER_WISE}_vpad_torch_dist_tp2dp2_to_dp1"),
    # The other container and other sizes at once.
    Job(f"{LAYER_WISE}_torch_tp2dp2", "tp=1,pp=2,dp=2", to="torch_dist"),
    Job(f"{LAYER_WISE}_torch_dist_pp2vpp2dp2", "tp=2,pp=1,dp=1", to="torch"),
    Job(f"{LAYER_WISE}_moe_torch_dist_dp1", "ep=2,tp=2,etp=1,dp=2", to="torch"),
    # TransformerEngine's names, latent attention, token prediction, shared experts, all axes.
    Job("te_dense_fp8_torch_tp2dp2", "tp=1,pp=2,vpp=2,dp=1"),
    Job("te_grouped_fp8_torch_ep2tp2dp2", "ep=1,tp=1,etp=1,dp=1"),
    Job("te_grouped_torch_dist_dp1", "ep=4,dp=4"),
    Job("te_deep_torch_pp2", "pp=1,ep=2,tp=2,etp=1,dp=2"),
    Job("te_deep_torch_dist_pp2", "pp=1,ep=2,dp=4"),
    Job("axes_moe_torch_tp2dp2ep4etp1", "tp=1,pp=2,ep=2,etp=1,dp=2"),
    Job("axes_moe_torch_dp1", "pp=2,dp=1", layout="Et|tt|t|mL"),
    Job("axes_moe_torch_pp2vpp2ep2uneven", "pp=1,vpp=1,ep=1,dp=1"),
    Job("axes_tied_torch_pp3first1last3", "pp=2,vpp=3,dp=1"),
    Job("axes_moe_torch_dist_tp2pp2vpp2cp2dp2ep4etp1", "tp=1,pp=1,vpp=1,cp=1,ep=1,etp=1,dp=1"),
    Job("axes_moe_torch_dist_dp1", "tp=4,ep=2,etp=2,dp=2"),
)


ZERO1 = "par_do_adam"
FULLY, BUCKETS, FLAT = "fully_reshardable", "dp_reshardable", "flat_file"


def zero1_jobs(megatron: str = "") -> list[Job]:
    """ZeRO-1 state of each kind of model to other sizes and forms, which Megatron refuses but for
    fully_reshardable at one expert-parallel size or above, and for other data-parallel sizes."""
    same_form = [
        (source, sizes, form)
        for form, source in ((FULLY, "fully_reshardable_dp4"), (BUCKETS, "dp_reshardable_dp4"))
        for sizes in ("tp=2,dp=2", "pp=2,dp=2", "pp=2,vpp=2,dp=1", "tp=2,pp=2,dp=1", "dp=2")
    ]
    others = [
        ("dp_reshardable_dp4", "cp=2,dp=2", BUCKETS),
        ("dp_reshardable_tp2dp2", "tp=1,pp=2,dp=2", BUCKETS),
        ("dp_reshardable_pp2vpp2dp2", "tp=2,pp=1,vpp=1,dp=2", BUCKETS),
        ("fully_reshardable_mem_efficient_dp4", "tp=2,dp=2", FULLY),
        ("torch_dp4", "dp=2", FLAT),
        ("torch_dp4", "tp=2,dp=1", FLAT),
        ("torch_tp2dp2", "tp=1,pp=2,vpp=2,dp=2", FLAT),
        ("torch_tp2dp2", "tp=1,dp=2", BUCKETS),
        ("torch_pp2vpp2dp2", "tp=2,pp=1,vpp=1,dp=1", FULLY),
        ("dp_reshardable_tp2dp2", "tp=1,dp=2", FLAT),
        ("dp_reshardable_tp2dp2", "tp=1,pp=2,vpp=2,dp=1", FULLY),
        ("fully_reshardable_tp2dp2", "tp=1,pp=2,vpp=2,dp=2", BUCKETS),
        ("fully_reshardable_pp2dp2", "tp=2,pp=1,dp=2", FLAT),
        ("moe_fully_reshardable_dp1", "ep=2,dp=4", FULLY),
        ("moe_fully_reshardable_ep2dp2", "ep=1,dp=1", FULLY),
        ("moe_fully_reshardable_ep2dp2", "ep=1,dp=4", FULLY),
        ("moe_dp_reshardable_dp1", "ep=2,dp=2", BUCKETS),
        ("moe_dp_reshardable_ep2dp2", "ep=1,dp=1", BUCKETS),
        ("moe_dp_reshardable_ep2dp2", "ep=4,dp=4", BUCKETS),
        ("moe_dp_reshardable_ep2dp2", "ep=2,tp=2,etp=1,dp=2", BUCKETS),
        ("moe_torch_ep2dp2", "ep=1,dp=2", FLAT),
        ("moe_torch_dp1", "ep=2,pp=2,dp=2", FLAT),
        ("moef_fully_reshardable_ep2dp2", "ep=1,dp=1", FULLY),
        ("moef_torch_ep2dp2", "ep=2,pp=2,dp=2", BUCKETS),
        ("llama_dp_reshardable_tp2dp2", "tp=1,dp=2", BUCKETS),
        ("llama_torch_dp1", "tp=2,dp=2", FULLY),
        ("tied_dp_reshardable_dp1", "pp=2,vpp=2,dp=1", BUCKETS),
        ("tied_fully_reshardable_pp2dp2", "pp=1,dp=1", FULLY),
        ("tied_torch_pp2dp2", "pp=2,vpp=2,dp=2", FLAT),
        ("fp16_dp_reshardable_tp2dp2", "tp=1,dp=2", BUCKETS),
        ("fp16_torch_dp2", "tp=2,dp=2", FULLY),
    ]
    jobs = [Job(f"{ZERO1}_{source}", sizes, form=form, megatron=megatron)
            for source, sizes, form in same_form + others]
    jobs += [Job(f"{ZERO1}_{form}_dp4", "dp=3", form=form, megatron=megatron, through="dp=2")
             for form in (FULLY, BUCKETS)]
    jobs.append(Job(f"{ZERO1}_dp_reshardable_dp4", "tp=2,dp=2", form=BUCKETS, megatron=megatron,
                    buckets="4096"))
    vpad = f"{ZERO1}_vpad_fully_reshardable_tp2dp2"
    return [*jobs, Job(vpad, "tp=1,dp=1", form=FULLY, megatron=megatron, expected=f"{vpad}_to_dp1")]


def upgrade_jobs(megatron: str = "") -> list[Job]:
    """What Megatron-Core 0.12 and 0.14 wrote, which no later one reads but for dp_zero."""
    listed = [
        ("v012_do_adam_fully_sharded_tp2dp2", "tp=2,dp=2", FULLY),
        ("v012_do_adam_fully_sharded_tp2dp2", "tp=1,dp=2", BUCKETS),
        ("v012_do_adam_fully_sharded_tp2dp2", "tp=2,dp=2", FLAT),
        ("v012_do_adam_fully_sharded_dp4", "pp=2,dp=2", BUCKETS),
        ("v012_do_adam_fully_sharded_tp2pp2dp2", "tp=1,pp=2,vpp=2,dp=1", FULLY),
        ("v012_do_adam_llama_fully_sharded_tp2dp2", "tp=1,dp=2", FULLY),
        ("v012_do_adam_moe_fully_sharded_ep2dp2", "ep=1,dp=1", FULLY),
        ("v012_do_adam_moe_fully_sharded_ep2dp2", "ep=2,dp=4", BUCKETS),
        ("v012_do_adam_tied_fully_sharded_pp2dp2", "pp=1,dp=2", FULLY),
        ("v012_do_adam_torch_tp2dp2", "tp=2,dp=2", FULLY),
        ("v012_do_adam_torch_tp2dp2", "tp=2,dp=2", FLAT),
        ("v014_do_adam_fully_sharded_tp2dp2", "tp=2,dp=2", FULLY),
        ("v014_do_adam_fully_sharded_dp2", "pp=2,dp=1", BUCKETS),
        ("v014_do_adam_fully_sharded_pp2dp2", "tp=2,pp=1,dp=2", FLAT),
        ("v014_do_adam_llama_fully_sharded_tp2dp2", "tp=1,dp=2", BUCKETS),
        ("v014_do_adam_moef_fully_sharded_ep2dp2", "ep=1,dp=1", FULLY),
    ]
    return [Job(f"par_{source}", sizes, form=form, megatron=megatron)
            for source, sizes, form in listed]


def halves_jobs(megatron: str) -> list[Job]:
    """April's LayerWise state with AdamW beside Muon, as August's DistributedOptimizer has it, and
    what August's Megatron wrote itself."""
    listed = [
        (f"{LAYER_WISE}_torch_dist_tp2dp2", "tp=2,dp=2"),
        (f"{LAYER_WISE}_torch_dist_tp2dp2", "tp=1,pp=2,dp=2"),
        (f"{LAYER_WISE}_torch_dist_pp2vpp2dp2", "tp=2,pp=1,vpp=1,dp=1"),
        (f"{LAYER_WISE}_torch_dist_dp4", "pp=2,vpp=2,dp=1"),
        (f"{LAYER_WISE}_torch_tp2dp2", "tp=1,dp=2"),
        (f"{LAYER_WISE}_moe_torch_dist_ep2dp2", "ep=2,dp=4"),
        (f"{LAYER_WISE}_moe_torch_dist_ep2dp2", "ep=1,dp=1"),
        (f"{LAYER_WISE}_moef_torch_dist_ep2dp2", "ep=2,dp=4"),
        (f"{LAYER_WISE}_moef_torch_dist_ep2dp2", "ep=2,pp=2,dp=2"),
        (f"{LAYER_WISE}_moef_torch_dist_dp1", "ep=2,dp=2"),
        (f"{LAYER_WISE}_moef_torch_dist_ep2dp2", "ep=1,pp=2,dp=1"),
        (f"{LAYER_WISE}_tied_torch_dist_pp2dp2", "pp=1,dp=2"),
        ("par_head_lw_muon_torch_dist_tp2dp2", "tp=1,pp=2,dp=2"),
        ("par_head_lw_muon_fully_reshardable_tp2dp2", "tp=1,pp=2,vpp=2,dp=1"),
        ("par_head_lw_muon_buckets_torch_dist_dp4", "tp=2,dp=2"),
    ]
    jobs = [Job(source, sizes, form=form, megatron=megatron)
            for source, sizes in listed for form in (BUCKETS, FULLY)]
    return [*jobs, Job(f"{LAYER_WISE}_torch_dist_dp4", "tp=2,dp=2", form=BUCKETS,
                       megatron=megatron, buckets="6000")]


# Of tests/golden/runs.
HYBRID_JOBS = (
    Job("hybrid_torch_tp2dp2", "tp=1,pp=2,dp=2"),
    Job("hybrid_torch_tp2dp2", "tp=1,ep=2,etp=1,dp=2"),
    Job("hybrid_torch_tp2dp2", "tp=2,pp=2,dp=1", to="torch_dist"),
    Job("hybrid_torch_dist_pp2", "tp=2,pp=1,dp=2"),
    Job("hybrid_torch_dist_pp2", "tp=1,pp=2,dp=1", to="torch"),
    Job("delta_torch_tp2dp2", "tp=1,pp=2,dp=1"),
    Job("delta_torch_tp2dp2", "tp=1,dp=2", to="torch_dist"),
    Job("zero1_hybrid_fully_reshardable_dp2", "tp=2,pp=2,dp=1", form=FULLY),
    Job("zero1_hybrid_fully_reshardable_dp2", "tp=1,pp=2,dp=1", form=BUCKETS),
    Job("zero1_hybrid_fully_reshardable_dp2", "tp=2,dp=1", form=FLAT),
)

AUGUST = "2026-08"
HEAD = "par_head_do_adam"
HEAD_JOBS = [
    Job(f"{HEAD}_fully_reshardable_tp2dp2", "tp=1,pp=2,dp=2", form=FULLY),
    Job(f"{HEAD}_dp_reshardable_tp2dp2", "tp=1,pp=2,vpp=2,dp=1", form=BUCKETS),
    Job(f"{HEAD}_dp_reshardable_pp2dp2", "tp=2,pp=1,dp=2", form=FLAT),
]
BACK_JOBS = [
    Job(f"{HEAD}_dp_reshardable_tp2dp2", "tp=1,dp=2", form=BUCKETS, megatron="2026-04"),
    Job("par_head_lw_muon_torch_dist_tp2dp2", "tp=2,dp=2", form="layer_wise", megatron="2026-04"),
    Job("par_head_lw_muon_fully_reshardable_tp2dp2", "tp=1,pp=2,dp=2", form="layer_wise",
        megatron="2026-04"),
    Job("par_head_lw_muon_buckets_torch_dist_dp4", "tp=2,dp=2", form="layer_wise",
        megatron="2026-04"),
]
# Megatron-Core 0.18 and later keep all of a LayerWise optimizer's state in one with it.
IN_ONE = "--no-use-layer-wise-param-layout"
IN_ONE_JOBS = [
    Job(f"{LAYER_WISE}_torch_dist_dp4", "tp=2,dp=2", form="layer_wise", megatron="2026-04",
        run=IN_ONE),
    Job(f"{LAYER_WISE}_torch_dist_dp4", "tp=2,dp=2", to="torch", run=IN_ONE),
    Job(f"{LAYER_WISE}_moe_torch_dist_dp1", "ep=2,dp=4", form="layer_wise", megatron="2026-04",
        run=IN_ONE),
    Job(f"{LAYER_WISE}_moe_torch_ep2dp2", "ep=1,dp=1", to="torch_dist", run=IN_ONE),
]
# One of each form and layout, from checkpoints that April's Megatron wrote, and 0.14's.
RELEASE_JOBS = [
    *(Job(f"{ZERO1}_{source}", "tp=2,dp=2", form=form, megatron=megatron)
      for source, form in (("dp_reshardable_dp4", FULLY), ("fully_reshardable_dp4", BUCKETS))
      for megatron in ("2026-04", AUGUST)),
    Job(f"{ZERO1}_dp_reshardable_dp4", "tp=2,dp=2", form=FLAT),
    Job(f"{LAYER_WISE}_torch_dist_dp4", "tp=2,dp=2", form="layer_wise", megatron="2026-04"),
    *(Job(f"{LAYER_WISE}_torch_dist_dp4", "tp=2,dp=2", form=form, megatron=AUGUST)
      for form in (FULLY, BUCKETS)),
    Job(f"{LAYER_WISE}_torch_dist_dp4", "tp=2,dp=2", to="torch"),
    *IN_ONE_JOBS[:2],
    *(Job("par_v014_do_adam_fully_sharded_dp2", "tp=2,dp=2", form=form)
      for form in (FULLY, BUCKETS, FLAT)),
]
# Float32 parameters among bf16 ones, by August's tree: sets that scripts/make_golden.py makes.
NATIVE_JOBS = [
    *(Job("native_zero1_fully_reshardable_dp2", sizes, form=FULLY)
      for sizes in ("dp=1", "dp=4", "tp=2,dp=2", "pp=2,dp=2", "ep=2,dp=2")),
    Job("native_zero1_fully_reshardable_tp2dp2", "tp=1,dp=2", form=FULLY),
    Job("native_zero1_dp_reshardable_tp2dp2", "tp=1,dp=4", form=FULLY),
    Job("native_zero1_torch_tp2dp2", "tp=1,pp=2,dp=1", form=FULLY),
    Job("native_fully_reshardable_dp2", "tp=2,dp=2", form=FULLY),
    Job("native_adam_torch_dp2", "tp=2,dp=1"),
    Job("native_adam_torch_tp2dp2", "tp=1,dp=2", to="torch_dist"),
    Job("native_adam_torch_dist_tp2dp2", "tp=1,pp=2,dp=1", to="torch"),
    Job("native_torch_dp1", "dp=2", run=IN_ONE),
    Job("native_torch_dp2", "tp=2,dp=1", run=IN_ONE),
]
# Groups with a learning rate of their own, and Lion: by August's tree, too.
GROUP_JOBS = [
    *(Job("zero1_rates_torch_dist_fully_dp2", "tp=2,dp=2", form=form)
      for form in (FULLY, BUCKETS, FLAT)),
    Job("zero1_rates_torch_tp2dp2", "tp=1,pp=2,dp=2", form=FULLY),
    Job("lion_torch_dist_dp2", "tp=2,dp=1"),
    Job("lion_torch_dist_tp2dp2", "tp=1,pp=2,dp=1"),
    *(Job("lion_muon_torch_dist_fully_dp2", sizes, form=FULLY) for sizes in ("tp=2,dp=2", "dp=1")),
]
# DeepSeek-V3.2's sparse attention, one layer for two depths of token prediction, gradients summed
# in float32, a model in float32: by core 0.19's tree and August's.
SEQUENCE = "--sequence-parallel"  # which sparse attention asks for above TP 1
CHANGED_JOBS = [
    Job("dsa_fully_reshardable_dp2", "tp=2,dp=2", form=FULLY, run=SEQUENCE),
    Job("dsa_fully_reshardable_dp2", "tp=1,pp=2,dp=1", form=BUCKETS),
    Job("dsa_dp_reshardable_tp2dp2", "tp=1,dp=4", form=BUCKETS),
    Job("dsa_dp_reshardable_dp2", "tp=2,dp=1", form=FLAT, run=SEQUENCE),
    Job("dsa_torch_tp2dp2", "tp=1,pp=2,dp=1", form=FLAT),
    Job("dsa_torch_dp2", "tp=2,dp=2", form=FULLY, run=SEQUENCE),
    Job("dsa_shared_torch_dp2", "tp=2,dp=1", form=FLAT, run=SEQUENCE),
    Job("repeated_fully_reshardable_dp2", "tp=2,pp=2,dp=1", form=FULLY),
    Job("repeated_dp_reshardable_pp2", "pp=1,dp=4", form=BUCKETS),
    Job("repeated_torch_dp2", "pp=2,dp=2", form=FLAT),
    Job("repeated_torch_pp2", "tp=2,pp=1,dp=1", form=FULLY),
    Job("repeated_torch_dp2", "pp=2,vpp=1,dp=1", form=FLAT, layout="Ett|mmL"),
    *(Job(f"local_sums_{form}_dp2", "tp=2,dp=1", form=to)
      for form, to in (("fully_reshardable", BUCKETS), ("dp_reshardable", FLAT), ("torch", FULLY))),
    *(Job(f"float32_{form}_dp2", "tp=2,dp=2", form=FULLY)
      for form in ("fully_reshardable", "dp_reshardable", "torch")),
    Job("float32_torch_tp2dp2", "tp=1,pp=2,dp=1", form=FULLY),
]
JOBS = {
    "layer_wise": LAYER_WISE_JOBS,
    "zero1": [*zero1_jobs(), *upgrade_jobs(), *BACK_JOBS],
    "august": [*halves_jobs(AUGUST), *IN_ONE_JOBS, *HEAD_JOBS, *zero1_jobs(AUGUST),
               *upgrade_jobs(AUGUST)],
    "releases": RELEASE_JOBS,
    "hybrid": HYBRID_JOBS,
    "native": NATIVE_JOBS,
    "groups": GROUP_JOBS,
    "changed": CHANGED_JOBS,
}

# Sets that recorded the next step, for others of equal state that did not.
_OF_GPT = "(dp_reshardable|fully_reshardable|fully_sharded|dp_zero|torch)_(?!dp3)"
NEXT_STEPS = {
    f"{LAYER_WISE}_torch_dp4":
        r"par_(head_)?lw_muon_(torch|fully_reshardable)_(dist_)?(tp\d|pp\d)",
    f"{LAYER_WISE}_moe_torch_ep2dp2": r"par_lw_muon_moe_torch_(dist_)?dp1$",
    f"{LAYER_WISE}_moef_torch_ep2dp2": r"par_lw_muon_moef_torch_(dist_)?(dp1|ep2pp2dp2)$",
    "par_adam_fp16_torch_tp2dp2": r"par_adam_fp16_torch_(dist_)?dp2",
    f"{ZERO1}_dp_reshardable_dp4": rf"par_(head_|v01\d_)?do_adam_{_OF_GPT}",
    f"{ZERO1}_llama_dp_reshardable_tp2dp2": rf"par_(v01\d_)?do_adam_llama_{_OF_GPT}",
    f"{ZERO1}_moe_dp_reshardable_ep2dp2": rf"par_do_adam_moe_{_OF_GPT}",
    f"{ZERO1}_moef_fully_reshardable_ep2dp2": rf"par_(v01\d_)?do_adam_moef_{_OF_GPT}",
    f"{ZERO1}_fp16_dp_reshardable_tp2dp2": rf"par_do_adam_fp16_{_OF_GPT}",
}


def step_from(source: str) -> str:
    """A set of equal state that recorded the next step."""
    return next((name for name, of in NEXT_STEPS.items() if re.match(of, source)), "")
