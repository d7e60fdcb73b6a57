"""The largest tensor that anything allocates, as a context."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Records the size, in entries, of the largest storage that any operation returns, backward passes included."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0
        self.operations: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.operations[name] = self.operations.get(name, 0) + 1
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                # The storage, not the shape: an expanded tensor takes no room.
                self.entries = max(self.entries, x.untyped_storage().nbytes() // x.element_size())
        return out
