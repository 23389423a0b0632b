"""What a check found: the text a person reads and the JSON contract."""
