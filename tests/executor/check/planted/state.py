"""Forwards that a graph would record without complaint and replay wrongly.

A line with a fault ends in a comment that names its code.
"""

import torch


def own_generator(device):
    x = torch.ones(4, device=device)
    generator = torch.Generator(device=device)

    def forward():
        return x + torch.rand(4, device=device, generator=generator)  # FAULT: own-generator

    return forward


def default_generator(device):
    x = torch.ones(4, device=device)

    def forward():
        return torch.nn.functional.dropout(x, 0.5)  # FAULT: random

    return forward


def seeded(device):
    x = torch.ones(4, device=device)

    def forward():
        torch.manual_seed(1)  # FAULT: seeded
        return x + 1

    return forward


def baked_scalar(device):
    x = torch.ones(4, device=device)
    state = {"step": 0}

    def forward():
        state["step"] += 1
        return x * state["step"]  # FAULT: baked-value

    return forward


def baked_tensor_of_host(device):
    x = torch.ones(4, device=device)
    state = {"step": 0}

    def forward():
        state["step"] += 1
        return x * torch.tensor(float(state["step"]))  # FAULT: baked-value

    return forward


def growing_slice(device):
    x = torch.ones(8, device=device)
    state = {"step": 0}

    def forward():
        state["step"] += 1
        y = x[: state["step"]]  # FAULT: baked-value
        return (y + 1).view(1, -1)

    return forward


def counter_decides(device):
    x = torch.ones(4, device=device)
    state = {"step": 0}

    def forward():
        state["step"] += 1
        if state["step"] % 2:
            return x + 1  # FAULT-ANY: changing-operations
        return x * 2  # FAULT-ANY: changing-operations

    return forward


def sometimes_more(device):
    x = torch.ones(4, device=device)
    state = {"step": 0}

    def forward():
        state["step"] += 1
        y = x + 1
        if state["step"] % 2:
            y = y * 2  # FAULT: changing-operations
        return y

    return forward


def other_intermediate(device):
    x = torch.ones(4, device=device)
    state = {"step": 0}

    def forward():
        state["step"] += 1
        pair = x + 1, x + 2
        return pair[state["step"] % 2] * 3  # FAULT: changing-operations

    return forward


def rebound_cache(device):
    x = torch.ones(1, 4, device=device)
    state = {"cache": torch.zeros(8, 4, device=device)}

    def forward():
        state["cache"] = torch.cat([state["cache"][1:], x])  # FAULT: rebound-tensor
        return state["cache"].sum(0)

    return forward


def growing_cache(device):
    x = torch.ones(1, 4, device=device)
    state = {"cache": torch.zeros(8, 4, device=device)}

    def forward():
        state["cache"] = torch.cat([state["cache"], x])  # FAULT: rebound-tensor changing-shape
        return state["cache"].sum(0)

    return forward


def double_buffer(device):
    buffers = [torch.ones(4, device=device), torch.ones(4, device=device)]
    state = {"step": 0}

    def forward():
        state["step"] += 1
        x = buffers[state["step"] % 2]
        return x + 1  # FAULT: moved-tensor

    return forward


def swapped_data(device):
    x = torch.ones(4, device=device)

    def forward():
        y = x + 1  # FAULT-ANY: moved-tensor
        x.data = y * 2  # FAULT-ANY: moved-tensor rebound-tensor
        return y

    return forward


def kept(device):
    x = torch.ones(4, device=device)
    state = {}

    def forward():
        state["hidden"] = x + 1  # FAULT: kept-tensor
        return state["hidden"] * 2

    return forward


def autograd(device):
    layer = torch.nn.Linear(4, 4, device=device)
    x = torch.ones(2, 4, device=device)

    def forward():
        with torch.enable_grad():
            return layer(x) + 1  # FAULT: autograd

    return forward


def raises(device):
    x = torch.ones(4, device=device)

    def forward():
        return x.view(3)  # FAULT: raises

    return forward
