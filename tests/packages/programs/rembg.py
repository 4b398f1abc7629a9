# /// script
# dependencies = ["rembg", "torch==2.13.*"]
# ///
"""A background taken away by a network of one's own, through the session for such networks."""

import os

import numpy as np
import torch
from PIL import Image
from rembg import new_session, remove

torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, 1, 1),
                              torch.nn.Upsample(scale_factor=2), torch.nn.Conv2d(8, 1, 1), torch.nn.Sigmoid())
os.environ["U2NET_HOME"] = os.getcwd()
torch.onnx.export(network.eval(), (torch.zeros(1, 3, 320, 320),), "mask.onnx", dynamo=False)
picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (120, 160, 3), np.uint8))
session = new_session("u2net_custom", model_path="mask.onnx")
mask = np.array(remove(picture, session=session, only_mask=True)).astype(np.float32)
results = {"mask": mask / 255}
