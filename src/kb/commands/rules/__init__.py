"""`kb rules`: the knowledge itself: explained, checked, tried, compared."""
