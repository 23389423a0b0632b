"""Whole runs of the linter: files in, results out; fixes, suppressions, baselines and the rules' own examples."""
