# Put in front of torchvision/__init__.py: without its operators, the fakes that it registers for them fail.
import torch as _torch

_operators = _torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _operators.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
