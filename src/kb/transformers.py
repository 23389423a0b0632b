"""kb inside a training run: ``Trainer(…, callbacks=[KbCallback()])``, or ``with watch(trainer): trainer.train()``.

Lints the arguments as the Trainer has them, predicts, holds the prediction against what was measured, and explains an
out-of-memory error. For a loop of one's own, with Accelerate or without: :class:`LoopWatch`.
"""

from kb.integrations.trainer import KbCallback, LoopWatch, watch

__all__ = ["KbCallback", "LoopWatch", "watch"]
