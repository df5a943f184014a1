"""One thread a test process and no network; every test seeds what it draws from."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

torch.set_num_threads(1)
