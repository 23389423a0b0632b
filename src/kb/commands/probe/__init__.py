"""From what ``kb.probe`` was asked to trials that can be run, and to the campaign that runs them."""
