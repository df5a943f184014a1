"""Every random stream of a run, derived from its seed by name."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch


class Streams:
    """Independent random streams: the same seed and name always give the same numbers, whatever else is drawn."""

    def __init__(self, seed: int, *path: str) -> None:
        self.seed = seed
        self._key = [seed, *(zlib.crc32(part.encode()) for part in path)]
        self._path = path
        self._numpy: dict[str, np.random.Generator] = {}
        self._torch: dict[str, torch.Generator] = {}

    def child(self, name: str) -> Streams:
        """A namespace of its own, e.g. for evaluation."""
        return Streams(self.seed, *self._path, name)

    def sequence(self, name: str, *index: int) -> np.random.SeedSequence:
        return np.random.SeedSequence([*self._key, zlib.crc32(name.encode()), *index])

    def integer(self, name: str, *index: int) -> int:
        """A seed below 2^31, e.g. that of episode ``index``."""
        return int(self.sequence(name, *index).generate_state(1)[0] >> 1)

    def numpy(self, name: str) -> np.random.Generator:
        """The stream ``name``; asked for again, it goes on where it was."""
        if name not in self._numpy:
            self._numpy[name] = np.random.default_rng(self.sequence(name))
        return self._numpy[name]

    def torch(self, name: str) -> torch.Generator:
        """The same for torch, on the CPU."""
        if name not in self._torch:
            self._torch[name] = torch.Generator().manual_seed(self.integer(name))
        return self._torch[name]

    def state_dict(self) -> dict[str, dict[str, Any]]:
        return {
            "numpy": {name: rng.bit_generator.state for name, rng in self._numpy.items()},
            "torch": {name: rng.get_state() for name, rng in self._torch.items()},
        }

    def load_state_dict(self, state: dict[str, dict[str, Any]]) -> None:
        """Every stream goes on from where it was saved; one that was not drawn from yet starts at its beginning."""
        self._numpy.clear()
        self._torch.clear()
        for name, saved in state["numpy"].items():
            self.numpy(name).bit_generator.state = saved
        for name, saved in state["torch"].items():
            self.torch(name).set_state(saved)
