"""What a trainer does with a model, in its order."""
