"""What runs take, found by running them: trials in processes of their own, their journal, the watch over a run."""
