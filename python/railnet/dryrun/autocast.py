"""Automatic mixed precision on the pretended GPU.

PyTorch's own kernels of autocast ask tensors for their device, and its C++ knows the pretended GPU by another name (`gpu`). These do
the same for each operator of its lists (aten/src/ATen/autocast_mode.h).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

_LOWER = """_convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu addmm addmv addr matmul
einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot scaled_dot_product_attention""".split()
_FULL = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm native_layer_norm
group_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp prod softmax log_softmax cumprod cumsum sum""".split()
_WIDEST = "addcdiv addcmul atan2 bilinear cross dot index_put tensordot scatter_add vdot cat stack".split()

_library: Any = None
#: Casts of leaves, which are made once inside the outermost region.
_casts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.dtype in (dtype, torch.float64) or not tensor.is_cuda:
        return tensor
    keeps = tensor.requires_grad and tensor.is_leaf and torch.is_autocast_cache_enabled()
    if keeps and id(tensor) in _casts and _casts[id(tensor)][0] is tensor:
        return _casts[id(tensor)][1]
    cast = tensor.to(dtype)
    if keeps:
        _casts[id(tensor)] = (tensor, cast)
    return cast


def _kernel(operator: Any, kind: str) -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor) and one.is_floating_point()]
            if kind == "lower":
                dtype = torch.get_autocast_dtype("cuda")
            elif kind == "full":
                half = any(one.dtype in (torch.float16, torch.bfloat16) for one in tensors)
                if not half or kwargs.get("dtype") is not None:
                    return operator(*args, **kwargs)
                dtype = torch.float32
            else:
                dtypes = {one.dtype for one in tensors}
                if len(dtypes) < 2:
                    return operator(*args, **kwargs)
                dtype = torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cuda")

            def cast(one: torch.Tensor) -> torch.Tensor:
                return _cast(one, dtype)

            args, kwargs = tree_map_only(torch.Tensor, cast, args), tree_map_only(torch.Tensor, cast, kwargs)
            return operator(*args, **kwargs)

    return run


def _has_kernel(name: str) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA"))
    except RuntimeError:
        # Overloads of TorchScript alone.
        return False


def install() -> None:
    global _library
    import warnings

    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, names in (("lower", _LOWER), ("full", _FULL), ("widest", _WIDEST)):
            for name in names:
                packet = getattr(torch.ops.aten, name, None)
                for overload in packet.overloads() if packet is not None else ():
                    full = f"aten::{name}" + ("" if overload == "default" else f".{overload}")
                    if _has_kernel(full):
                        operator = getattr(packet, overload)
                        _library.impl(full.removeprefix("aten::"), _kernel(operator, kind), "AutocastCUDA", allow_override=True)
    clear = torch.clear_autocast_cache

    def cleared() -> None:
        _casts.clear()
        clear()

    torch.clear_autocast_cache = cleared
