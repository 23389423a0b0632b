"""kb inside a training run: ``Trainer(…, callbacks=[KbCallback()])``, or ``with watch(trainer): trainer.train()``.

Lints the arguments as the Trainer has them, predicts, holds the prediction against what was measured, and explains an
out-of-memory error. For a loop of one's own, with Accelerate or without: :class:`LoopWatch`.
"""

try:
    from kb.integrations.trainer.callback import KbCallback, LoopWatch, watch
except ModuleNotFoundError as missing:
    if missing.name not in ("torch", "transformers"):
        raise
    import os

    from kb.session import cli

    words = cli.load_words_or_none(cli.language_of((), os.environ))
    raise ModuleNotFoundError(cli.said(words, "callback.needs"), name=missing.name) from None

__all__ = ["KbCallback", "LoopWatch", "watch"]
