"""Forwards that look suspicious and can be captured."""

import torch


def store_of_number_by_mask(device):
    x = torch.ones(4, device=device)

    def forward():
        y = x + 1
        y[y > 1] = 0.0
        return y

    return forward


def number_on_host(device):
    x = torch.ones(4, device=device)

    def forward():
        y = x * torch.tensor(2.0)
        y[1:] = 3.0
        y[:1] = torch.tensor(4.0)
        return torch.where(y > 2, y, 0.0)

    return forward


def number_read_on_host(device):
    x = torch.ones(4, device=device)

    def forward():
        limit = torch.tensor([1, 2, 3]).max().item()
        return x[:limit] + 1

    return forward


def made_on_device(device):
    x = torch.ones(4, device=device)

    def forward():
        rows = torch.arange(4, device=x.device)
        return x[rows] + torch.full((4,), 2.0, device=device) + x.new_zeros(4) + torch.ones_like(x)

    return forward


def inside_device_context(device):
    x = torch.ones(4, device=device)

    def forward():
        with torch.device(device):
            return x + torch.arange(4)

    return forward


def one_hot(device):
    x = torch.tensor([1, 2], device=device)

    def forward():
        return torch.nn.functional.one_hot(x, num_classes=4) + 1

    return forward


def repeat_interleave(device):
    x = torch.ones(4, device=device)
    counts = torch.tensor([1, 2, 0, 1], device=device)

    def forward():
        return torch.repeat_interleave(x, counts, output_size=4) + torch.repeat_interleave(x[:2], 2)

    return forward


def moved_within_device(device):
    x = torch.ones(4, device=device)

    def forward():
        return x.to(device).to(x.device, torch.float64).to(x) + x.to(torch.float32)

    return forward


def made_by_the_first_call(device):
    x = torch.ones(4, device=device)
    state = {}

    def forward():
        if "table" not in state:
            state["table"] = torch.tensor([1.0, 2.0, 3.0, 4.0]).to(device)
            state["size"] = int(x.sum().item())
        return x * state["table"] * state["size"]

    return forward


def cache_written_in_place(device):
    x = torch.ones(1, 4, device=device)
    cache = torch.zeros(8, 4, device=device)
    slot = torch.tensor([3], device=device)

    def forward():
        cache.index_copy_(0, slot, x)
        slot.add_(1).remainder_(8)
        return cache.sum(0)

    return forward


def attention(device):
    q = torch.ones(1, 2, 3, 4, device=device)

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    return forward


def empty_tensor_of_values(device):
    x = torch.ones(4, device=device)

    def forward():
        return torch.cat([torch.tensor([], device=device), x])

    return forward
