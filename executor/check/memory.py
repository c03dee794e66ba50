"""Which memory was made by which call, and whether it would lie on the host."""

from __future__ import annotations

import weakref

import torch
from attrs import define, field, frozen

from executor.check.places import Place


@frozen
class Birth:
    """One allocation of a forward: the ``number``-th of call ``run``, at ``place``."""

    run: int
    number: int
    place: Place
    what: str
    on_host: bool = False


def address_of(tensor: torch.Tensor) -> int:
    """The address of the tensor's storage; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors, tensors of other subsystems
        return 0


@define
class Memory:
    """The storages that were made while the check looked on.

    Memory that existed before belongs to the device. An address that is handed out again belongs to
    what was made there last.
    """

    _births: dict[int, Birth] = field(factory=dict)
    _views: dict[int, weakref.ref[torch.Tensor]] = field(factory=dict)
    _seen: list[tuple[weakref.ref[torch.Tensor], Birth]] = field(factory=list)

    def born(self, tensor: torch.Tensor) -> Birth | None:
        """How the tensor's memory came about; ``None`` where it existed before."""
        return self._births.get(address_of(tensor))

    def add(self, tensor: torch.Tensor, birth: Birth) -> None:
        """Remembers that the tensor's memory is new."""
        if address := address_of(tensor):
            self._births[address] = birth

    def add_view(self, tensor: torch.Tensor) -> None:
        """Remembers that the tensor is a view that this call made of older memory."""
        self._views[id(tensor)] = weakref.ref(tensor)

    def is_view(self, tensor: torch.Tensor) -> bool:
        """Whether this call made the tensor as a view."""
        view = self._views.get(id(tensor))
        return view is not None and view() is tensor

    def watch(self, tensor: torch.Tensor) -> None:
        """Remembers the tensor itself, so that ``kept`` can tell whether it is still in use."""
        if birth := self.born(tensor):
            self._seen.append((weakref.ref(tensor), birth))

    def on_host(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor would lie on the host if the forward ran on a GPU."""
        birth = self.born(tensor)
        return birth is not None and birth.on_host and tensor.device.type == "cpu"

    def kept(self) -> list[Birth]:
        """What was made on the device and is still in use."""
        return [birth for tensor, birth in self._seen if tensor() is not None and not birth.on_host]

    def next_run(self) -> None:
        """Tensors of the call before are no longer watched, and its views count as from outside."""
        self._views.clear()
        self._seen.clear()
