"""Training goes on from a converted torch.save file as from the file itself, bit for bit."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

from comparing import exact
from programs import succeed
from reading import load


class Adafactorish(torch.optim.Optimizer):
    """Row and column statistics, nested state, a string step."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["factors"] = {0: torch.zeros(parameter.shape[0]), 1: [torch.zeros(1)]}
                state["step"] += 1
                rows = parameter.grad.reshape(parameter.shape[0], -1).square().mean(1)
                state["factors"][0].mul_(0.9).add_(rows, alpha=0.1)
                scale = state["factors"][0].sqrt().add(1e-8)
                scale = scale.reshape(-1, *[1] * (parameter.dim() - 1))
                parameter.sub_(parameter.grad / scale, alpha=group["lr"])


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adafactor": Adafactorish,
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}


class Run:
    def __init__(self, make_optimizer) -> None:
        torch.manual_seed(5)
        layers = torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = make_optimizer(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.ema = torch.optim.swa_utils.AveragedModel(self.model)
        self.scaler = torch.amp.GradScaler("cpu")

    def step(self) -> None:
        inputs = torch.randn(6, 4)

        def closure():
            self.optimizer.zero_grad()
            loss = self.model(inputs).square().mean()
            loss.backward()
            return loss

        closure()
        takes_closure = isinstance(self.optimizer, torch.optim.LBFGS)
        self.optimizer.step(*([closure] if takes_closure else []))
        self.scheduler.step()
        self.ema.update_parameters(self.model)

    def state(self) -> dict:
        return {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(), "ema": self.ema.state_dict(),
            "scaler": self.scaler.state_dict(), "rng": torch.get_rng_state(),
            "seen": Counter({3: 2, "x": 1}),
            "losses": defaultdict(list, {0: [1.5], 1: [torch.ones(1)]}),
        }  # fmt: skip

    def load(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.ema.load_state_dict(state["ema"])
        self.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"])


@pytest.mark.parametrize("way", ("torch", "renamed", "torch_dist"))
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_from_the_result(name: str, way: str, tmp_path: Path) -> None:
    trained = Run(OPTIMIZERS[name])
    for _ in range(3):
        trained.step()
    source, made = tmp_path / "source.pt", tmp_path / "made.pt"
    torch.save(trained.state(), source)
    if way == "torch_dist":
        succeed("ckpt-convert", source, tmp_path / "dcp", "--to", "torch_dist", "--verify")
        succeed("ckpt-convert", tmp_path / "dcp", made, "--to", "torch", "--verify")
    else:
        options = ("--rename", "optimizer=opt", "--rename", "model=net") if way == "renamed" else ()
        succeed("ckpt-convert", source, made, "--to", "torch", "--verify", *options)
    state = load(made)
    if way == "renamed":
        state["optimizer"], state["model"] = state.pop("opt"), state.pop("net")
    went_on = []
    for loaded in (load(source), state):
        run_again = Run(OPTIMIZERS[name])
        run_again.load(loaded)
        run_again.step()
        went_on.append(run_again.state())
    assert exact(went_on[0]) == exact(went_on[1])
    assert went_on[0]["optimizer"]["state"]
