"""Forwards that make the host wait, or move memory between host and device.

A line with a fault ends in a comment that names its code.
"""

import numpy as np
import torch


def item(device):
    x = torch.ones(4, device=device)

    def forward():
        return x * x.sum().item()  # FAULT: host-sync

    return forward


def branch_on_tensor(device):
    x = torch.ones(4, device=device)

    def forward():
        y = x + 1
        if y.sum() > 0:  # FAULT: host-sync
            y = y * 2
        return y

    return forward


def integer_of_tensor(device):
    x = torch.ones(4, device=device)
    length = torch.tensor(3, device=device)

    def forward():
        return x[: int(length)] + 1  # FAULT: host-sync

    return forward


def index_by_number_on_device(device):
    x = torch.ones(4, 4, device=device)
    row = torch.tensor(2, device=device)

    def forward():
        return x[row] + 1  # FAULT: host-sync

    return forward


def tolist(device):
    lengths = torch.tensor([1, 3], device=device)
    x = torch.ones(4, device=device)

    def forward():
        parts = lengths.tolist()  # FAULT: host-sync
        return torch.split(x, parts)

    return forward


def copy_to_host(device):
    x = torch.ones(4, device=device)

    def forward():
        y = x * 2
        y.cpu()  # FAULT: host-sync
        return y

    return forward


def copy_to_named_host(device):
    x = torch.ones(4, device=device)

    def forward():
        y = x * 2
        y.to("cpu")  # FAULT: host-sync
        return y

    return forward


def through_numpy(device):
    x = torch.ones(4, device=device)

    def forward():
        order = np.argsort(x.cpu().numpy())  # FAULT: host-sync
        return x + torch.from_numpy(order).to(device)  # FAULT: host-to-device

    return forward


def equal(device):
    x = torch.ones(4, device=device)

    def forward():
        return x + 1 if torch.equal(x, x * 1) else x  # FAULT: host-sync

    return forward


def printed(device):
    x = torch.ones(4, device=device)

    def forward():
        y = x * 2
        f"{y}"  # FAULT: host-sync
        return y

    return forward


def synchronize(device):
    x = torch.ones(4, device=device)

    def forward():
        y = x * 2
        torch.cuda.synchronize()  # FAULT: host-sync
        return y

    return forward


def tensor_of_tensors(device):
    x = torch.ones(4, device=device)

    def forward():
        return x + torch.tensor([x[0], x[1], x[2], x[3]], device=device)  # FAULT: host-sync host-to-device

    return forward


def nonzero(device):
    x = torch.ones(4, device=device)

    def forward():
        return x.nonzero()  # FAULT: data-dependent-shape

    return forward


def where_of_condition(device):
    x = torch.ones(4, device=device)

    def forward():
        return torch.where(x > 0)[0]  # FAULT: data-dependent-shape

    return forward


def masked_select(device):
    x = torch.ones(4, device=device)

    def forward():
        return torch.masked_select(x, x > 0)  # FAULT: data-dependent-shape

    return forward


def read_by_mask(device):
    x = torch.ones(4, device=device)

    def forward():
        return x[x > 0].sum()  # FAULT: data-dependent-shape

    return forward


def store_by_mask(device):
    x = torch.ones(4, device=device)
    row = torch.zeros(1, device=device)

    def forward():
        y = x + 1
        y[y > 1] = row  # FAULT: data-dependent-shape
        return y

    return forward


def store_by_mask_of_host(device):
    x = torch.ones(4, device=device)
    row = torch.zeros(1, device=device)

    def forward():
        y = x + 1
        mask = torch.tensor([True, False, True, False])
        y[mask] = row  # FAULT: data-dependent-shape host-to-device
        return y

    return forward


def unique(device):
    x = torch.ones(4, device=device)

    def forward():
        return torch.unique(x)  # FAULT: data-dependent-shape

    return forward


def repeat_interleave(device):
    x = torch.ones(4, device=device)
    counts = torch.tensor([1, 2, 0, 1], device=device)

    def forward():
        return torch.repeat_interleave(x, counts)  # FAULT: data-dependent-shape

    return forward


def one_hot_without_classes(device):
    x = torch.tensor([1, 2], device=device)

    def forward():
        return torch.nn.functional.one_hot(x) + 1  # FAULT: host-sync

    return forward


def tensor_of_values(device):
    x = torch.ones(3, device=device)

    def forward():
        return x + torch.tensor([1.0, 2.0, 3.0], device=x.device)  # FAULT: host-to-device

    return forward


def moved_to_device(device):
    x = torch.ones(3, device=device)

    def forward():
        scale = torch.tensor([1.0, 2.0, 3.0])
        return x * scale.to(x.device)  # FAULT: host-to-device

    return forward


def copied_into(device):
    x = torch.ones(3, device=device)

    def forward():
        x.copy_(torch.tensor([1.0, 2.0, 3.0]))  # FAULT: host-to-device
        return x + 1

    return forward


def index_by_list(device):
    x = torch.ones(4, 2, device=device)

    def forward():
        return x[[0, 2]] + 1  # FAULT: host-to-device

    return forward


def number_stored_at_indices(device):
    x = torch.ones(4, device=device)
    rows = torch.tensor([0, 2], device=device)

    def forward():
        y = x + 1
        y[rows] = 0.0  # FAULT: host-to-device
        return y

    return forward


def number_stored_in_one_element(device):
    x = torch.ones(4, device=device)

    def forward():
        y = x + 1
        y[0] = 4.0  # FAULT: host-to-device
        return y

    return forward


def factory_without_device(device):
    x = torch.ones(4, device=device)

    def forward():
        return x + torch.arange(4)  # FAULT: host-tensor

    return forward


def pinned(device):
    x = torch.ones(4, device=device)

    def forward():
        torch.empty(4, pin_memory=True)  # FAULT: host-allocation
        return x + 1

    return forward
