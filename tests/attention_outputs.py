"""The attention output of a model of one layer: read, and moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch

from olmo_sparsity.measure.visible.losses import divergence


class OutputsOfAttention:
    """Reads and moves the attention output of the last token, in a model of one layer, where nothing before it moves."""

    def __init__(
        self, projection: torch.nn.Module, log_probs: Callable[[list[int]], torch.Tensor], *, log_p_all_V: torch.Tensor
    ) -> None:
        """Keep what is run.

        Args:
            projection: the layer behind the attention of the only layer; its input is the attention output.
            log_probs: returns the prediction with some long-range tokens visible, [V].
            log_p_all_V: the prediction under full context.
        """
        self._projection, self._log_probs, self._log_p_all_V = projection, log_probs, log_p_all_V

    def run(self, visible: list[int], move_D: Optional[torch.Tensor] = None) -> tuple[torch.Tensor, float]:
        """Return (output of the last token [D]; KL(p_all, prediction)) with some tokens visible."""
        read: list[torch.Tensor] = []

        def hook(_: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            out_BYD = args[0].clone()
            if move_D is not None:
                out_BYD[:, -1] += move_D
            read.append(out_BYD[0, -1])
            return (out_BYD,)

        with self._projection.register_forward_pre_hook(hook), torch.no_grad():
            log_p_V = self._log_probs(visible)
        return read[-1], float(divergence(self._log_p_all_V.double(), log_p_V.double()))

    def slope(self, visible: list[int], moved_by: list[int], *, step: float = 0.02) -> float:
        """Return the derivative of KL(p_all, prediction) along what other visible tokens move the output by.

        It is extrapolated from two steps, since models have norms and logits in fp32, which rules out small ones.
        """
        out_D, _ = self.run(visible)
        move_D = self.run(moved_by)[0] - out_D
        short, long = (
            (self.run(visible, h * move_D)[1] - self.run(visible, -h * move_D)[1]) / (2 * h) for h in (step, 2 * step)
        )
        return (4 * short - long) / 3
