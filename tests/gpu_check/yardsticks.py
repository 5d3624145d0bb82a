"""What the kernels' times are compared with: the same work as a row of torch's operations."""
import torch
from kernels import QUINTIC


def torch_adam(tensors, grad, states):
    torch._fused_adamw_([tensors.main], [grad], [states[0]], [states[1]], [], [tensors.step_count],
                        lr=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.1, eps=1e-8, amsgrad=False,
                        maximize=False)


def torch_newton_schulz(x):
    """The reference's steps, tall matrices transposed; x is normalised bf16, 2-D."""
    is_tall = x.size(0) > x.size(1)
    x = x.mT if is_tall else x
    for a, b, c in QUINTIC:
        gram = x @ x.mT
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x


def torch_batched_newton_schulz(x):
    for a, b, c in QUINTIC:
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x


def torch_muon(many, shapes):
    """A step of torch.optim.Muon on fp32 parameters, clipped by the norm, and their bf16 copies."""
    params = [torch.nn.Parameter(tensors.main.view(shape).clone())
              for tensors, shape in zip(many, shapes)]
    copies = [tensors.model.view(shape) for tensors, shape in zip(many, shapes)]
    optimizer = torch.optim.Muon(params, lr=1e-3, weight_decay=0.1, momentum=0.95)

    def step():
        for param, tensors in zip(params, many):
            param.grad = tensors.grad.view(param.shape).float()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        torch._foreach_copy_(copies, [param.detach() for param in params])

    return step
