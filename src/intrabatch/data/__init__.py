"""Images and how they reach the network."""
