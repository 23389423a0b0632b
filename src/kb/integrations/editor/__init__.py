"""kb in an editor: the findings of a text while it is written, what stands behind them, and their fixes."""
