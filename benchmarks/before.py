"""What ``ICNN`` and the modules took before the defaults of today: for scripts whose published figures rest on it."""

import torch

START = {"weight_init": "folded_normal", "divide_by_fan_in": False}
NETWORK = {**START, "strong_convexity": 0.02}
TRAINING = {"optimizer": torch.optim.Adam, "lr_scheduler": None}
