"""A watch put together: who reads, who records, who shows it."""
