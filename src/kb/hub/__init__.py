"""The Hugging Face hub: its cache on this machine, read only, and the hub itself where the user asks for it."""
