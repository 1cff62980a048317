"""Image embeddings learned by letting all images of a mini-batch exchange messages."""
