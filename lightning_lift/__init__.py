"""Training input-convex neural networks in PyTorch Lightning, with the parameterization of the weights as a plug."""

__version__ = "0.1.0"
