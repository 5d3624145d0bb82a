"""Training programs on a CPU: what each saves, and what it trains to when it resumes from that.

A program trains three steps, saves, and takes a fourth one. `resume` starts it anew from a folder
and takes the fourth step: the parameters have to be the same to the bit.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEPS = 3  # before the checkpoint


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)  # buffers, one of them an integer
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict:
        out = self.last(self.drop(torch.relu(self.norm(self.first(x)))))
        loss = out.square().mean() if labels is None else (out - labels).square().mean()
        return {"loss": loss, "logits": out}


def batch_of(step: int) -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(step))


def copied(state: dict) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def warm_up(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)


class Ddp:
    """torch.save of DDP, AdamW with two groups, GradScaler, a schedule and random states."""

    needs: tuple[str, ...] = ()
    files = ("all.pt",)

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.net = nn.parallel.DistributedDataParallel(Net())
        matrices = [each for each in self.net.parameters() if each.ndim > 1]
        others = [each for each in self.net.parameters() if each.ndim == 1]
        groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-2)
        self.schedule = warm_up(self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def step(self, number: int) -> None:
        self.scaler.scale(self.net(batch_of(number))["loss"]).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.schedule.step()

    @classmethod
    def save(cls, folder: Path) -> dict[str, torch.Tensor]:
        run = cls()
        for number in range(STEPS):
            run.step(number)
        state = {
            "model": run.net.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "schedule": run.schedule.state_dict(),
            "scaler": run.scaler.state_dict(),
            "rng": torch.get_rng_state(),
            "epoch": 1,
        }
        torch.save(state, folder / "all.pt")
        run.step(STEPS)
        return copied(run.net.state_dict())

    @classmethod
    def resume(cls, folder: Path) -> dict[str, torch.Tensor]:
        run = cls()
        run.step(99)  # makes state that loading has to replace
        state = torch.load(folder / "all.pt", weights_only=True)
        run.net.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.schedule.load_state_dict(state["schedule"])
        run.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"])
        run.step(STEPS)
        return copied(run.net.state_dict())


class HfTrainer:
    """A folder of the Trainer of Hugging Face's transformers."""

    needs = ("transformers", "accelerate")
    files = ("optimizer.pt", "scheduler.pt", "rng_state.pth")
    weights = "model.safetensors"

    @staticmethod
    def trainer(out: Path, steps: int):
        from transformers import Trainer, TrainingArguments

        data = [{"x": batch_of(i)[0], "labels": torch.zeros(2)} for i in range(32)]
        arguments = TrainingArguments(
            output_dir=str(out),
            max_steps=steps,
            per_device_train_batch_size=4,
            save_steps=STEPS,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            seed=1,
            dataloader_pin_memory=False,
        )
        torch.manual_seed(0)
        return Trainer(model=Net(), args=arguments, train_dataset=data)

    @classmethod
    def save(cls, folder: Path) -> dict[str, torch.Tensor]:
        run = folder.parent / f"{folder.name}_run"
        trainer = cls.trainer(run, STEPS + 1)
        trainer.train()
        (run / f"checkpoint-{STEPS}").rename(folder)
        return copied(trainer.model.state_dict())

    @classmethod
    def resume(cls, folder: Path) -> dict[str, torch.Tensor]:
        trainer = cls.trainer(folder.parent / f"{folder.name}_again", STEPS + 1)
        trainer.train(resume_from_checkpoint=str(folder))
        return copied(trainer.model.state_dict())


class Accelerate:
    """save_state of Hugging Face's accelerate."""

    needs = ("accelerate",)
    files = ("optimizer.bin", "scheduler.bin", "random_states_0.pkl")
    weights = "model.safetensors"

    def __init__(self) -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator(cpu=True)
        torch.manual_seed(3)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9, nesterov=True)
        prepared = self.accelerator.prepare(net, optimizer, warm_up(optimizer))
        self.net, self.optimizer, self.schedule = prepared

    def step(self, number: int) -> None:
        self.accelerator.backward(self.net(batch_of(number))["loss"])
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()

    def end(self) -> dict[str, torch.Tensor]:
        return copied(self.accelerator.unwrap_model(self.net).state_dict())

    @classmethod
    def save(cls, folder: Path) -> dict[str, torch.Tensor]:
        run = cls()
        for number in range(STEPS):
            run.step(number)
        run.accelerator.save_state(str(folder))
        run.step(STEPS)
        return run.end()

    @classmethod
    def resume(cls, folder: Path) -> dict[str, torch.Tensor]:
        run = cls()
        run.step(99)
        run.accelerator.load_state(str(folder))
        run.step(STEPS)
        return run.end()


class Lightning:
    """A .ckpt of PyTorch Lightning."""

    needs = ("pytorch_lightning",)
    files = ("run.ckpt",)

    @staticmethod
    def fit(steps: int, resumed: Path | None = None):
        import pytorch_lightning

        logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

        class Module(pytorch_lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = Net()

            def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
                return self.net(batch[0])["loss"]

            def configure_optimizers(self) -> dict:
                optimizer = torch.optim.Adam(self.parameters(), lr=1e-2, amsgrad=True)
                schedule = {"scheduler": warm_up(optimizer), "interval": "step"}
                return {"optimizer": optimizer, "lr_scheduler": schedule}

        pytorch_lightning.seed_everything(7, verbose=False)
        trainer = pytorch_lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module = Module()
        module.net.drop.p = 0.0  # Lightning saves no random states
        rows = batch_of(0).repeat(8, 1)  # and starts an epoch anew: all its batches are the same
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=8)
        options = {} if resumed is None else {"ckpt_path": str(resumed), "weights_only": False}
        trainer.fit(module, loader, **options)
        return trainer, module

    @classmethod
    def save(cls, folder: Path) -> dict[str, torch.Tensor]:
        folder.mkdir(exist_ok=True)
        cls.fit(STEPS)[0].save_checkpoint(folder / "run.ckpt")
        return copied(cls.fit(STEPS + 1)[1].state_dict())

    @classmethod
    def resume(cls, folder: Path) -> dict[str, torch.Tensor]:
        return copied(cls.fit(STEPS + 1, folder / "run.ckpt")[1].state_dict())


PROGRAMS = {each.__name__: each for each in (Ddp, HfTrainer, Accelerate, Lightning)}


def is_installed(program: type) -> bool:
    return all(importlib.util.find_spec(name) for name in program.needs)


# --- two ranks of FSDP2, their state in a DCP folder ---


def sharded_run() -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(11)
    net = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))
    fully_shard(net[1])
    fully_shard(net)
    return net, torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)


def sharded_step(net: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    seed = 10 * number + dist.get_rank()
    rows = torch.randint(0, 10, (4,), generator=torch.Generator().manual_seed(seed))
    net(rows).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def local_parts(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    tensors = [value.to_local() for value in net.state_dict().values()]
    for state in optimizer.state_dict()["state"].values():
        tensors += [getattr(each, "to_local", lambda each=each: each)() for each in state.values()]
    return [tensor.detach().clone() for tensor in tensors]


def load_and_step(folder: Path) -> list[torch.Tensor]:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    net, optimizer = sharded_run()
    sharded_step(net, optimizer, 99)
    model, state = get_state_dict(net, optimizer)
    loaded = {"model": model, "optimizer": state}
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(
        net, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
    sharded_step(net, optimizer, STEPS)
    return local_parts(net, optimizer)


def run_of_fsdp2(rank: int, folder: Path, converter: str) -> None:
    """Saves `dcp` and the ranks' files, lets rank 0 convert, and resumes from what came back.

    Leaves `equal_RANK.json`: for each folder that was loaded, whether the next step was the same.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    net, optimizer = sharded_run()
    for number in range(STEPS):
        sharded_step(net, optimizer, number)
    model, state = get_state_dict(net, optimizer)
    dcp.save({"model": model, "optimizer": state}, checkpoint_id=folder / "dcp")
    torch.save(net.state_dict(), folder / f"model_world_size_2_rank_{rank}.pt")
    torch.save(optimizer.state_dict(), folder / f"optim_world_size_2_rank_{rank}.pt")
    sharded_step(net, optimizer, STEPS)
    wanted = local_parts(net, optimizer)
    if rank == 0:
        for source, target, to in (("dcp", "file.pt", "torch"), ("file.pt", "back", "torch_dist")):
            command = [converter, folder / source, folder / target, "--to", to, "--verify"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    dist.barrier()
    equal = {}
    for name in ("dcp", "back"):
        found = load_and_step(folder / name)
        equal[name] = len(found) == len(wanted) and all(map(torch.equal, found, wanted))
    (folder / f"equal_{rank}.json").write_text(json.dumps(equal))
    dist.destroy_process_group()


def quiet() -> None:
    """Programs that would ask the network, or print."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", TQDM_DISABLE="1")
