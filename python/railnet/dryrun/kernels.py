"""What operators of PyTorch are to a GPU: a matrix product of a shape, attention, or bytes that stream through memory."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

#: Numbers of these many bytes are in these formats of matrix units.
_EIGHT = {getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz") if hasattr(torch, name)}


def _format(dtype: torch.dtype) -> str:
    if dtype in (torch.bfloat16, torch.float16):
        return "half"
    if dtype in _EIGHT:
        return "eight"
    if dtype is torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    if dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return "single"


Kernel = tuple[Any, ...]


def _product(m: int, n: int, k: int, count: int, one: torch.Tensor, out: torch.Tensor) -> Kernel:
    return ("p", m, n, k, count, _format(one.dtype), one.element_size(), out.element_size())


def _mm(args: Any, out: Any) -> list[Kernel]:
    a, b = args[-2:] if len(args) == 2 else args[:2]
    return [_product(a.shape[0], b.shape[1], a.shape[1], 1, a, out)]


def _addmm(args: Any, out: Any) -> list[Kernel]:
    return _mm(args[1:3], out)


def _bmm(args: Any, out: Any) -> list[Kernel]:
    a, b = args[:2]
    return [_product(a.shape[1], b.shape[2], a.shape[2], a.shape[0], a, out)]


def _baddbmm(args: Any, out: Any) -> list[Kernel]:
    return _bmm(args[1:3], out)


def _scaled_mm(args: Any, out: Any) -> list[Kernel]:
    return _mm(args[:2], out)


def _grouped_mm(args: Any, out: Any) -> list[Kernel]:
    a, b = args[:2]
    groups = b.shape[0] if b.dim() == 3 else (a.shape[0] if a.dim() == 3 else int(args[2].shape[0]))
    if a.dim() == 2 and b.dim() == 3:
        return [_product(-(-a.shape[0] // groups), b.shape[2], a.shape[1], groups, a, out)]
    if a.dim() == 2 and b.dim() == 2:
        return [_product(a.shape[0], b.shape[1], -(-a.shape[1] // groups), groups, a, out)]
    return [_product(a.shape[-2], b.shape[-1], a.shape[-1], groups, a, out)]


def _convolution(args: Any, out: Any) -> list[Kernel]:
    x, weight, groups = args[0], args[1], args[8]
    spatial = out.shape[0]
    for size in out.shape[2:]:
        spatial *= size
    inner = weight.shape[1]
    for size in weight.shape[2:]:
        inner *= size
    return [_product(spatial, weight.shape[0] // groups, inner, groups, x, out)]


def _convolution_backward(args: Any, out: Any) -> list[Kernel]:
    grad, x, weight, groups, mask = args[0], args[1], args[2], args[9], args[10]
    spatial = grad.shape[0]
    for size in grad.shape[2:]:
        spatial *= size
    inner = weight.shape[1]
    for size in weight.shape[2:]:
        inner *= size
    columns = weight.shape[0] // groups
    found = []
    if mask[0]:
        found.append(_product(spatial, inner, columns, groups, grad, x))
    if mask[1]:
        found.append(_product(columns, inner, spatial, groups, grad, weight))
    return found


def _attention(query: Any, key: Any, value: Any, causal: bool, backward: bool) -> list[Kernel]:
    # Batch, heads, rows and width: the order that all kernels but those for sequences of unlike lengths have.
    batch, heads, rows, width = query.shape
    pairs = batch * heads * rows * key.shape[2]
    flops = 2 * pairs * (width + value.shape[3])
    if causal:
        flops //= 2
    return [("a", flops * 5 // 2 if backward else flops, backward)]


def _flash(args: Any, out: Any) -> list[Kernel]:
    return _attention(args[0], args[1], args[2], bool(args[4]) if len(args) > 4 else False, False)


def _flash_backward(args: Any, out: Any) -> list[Kernel]:
    # grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, ...
    return _attention(args[1], args[2], args[3], bool(args[11]), True)


def _named(operators: dict[str, Any]) -> dict[Any, Any]:
    found = {}
    for name, made in operators.items():
        packet = getattr(aten, name.split(".")[0], None)
        if packet is not None:
            for overload in packet.overloads():
                found[getattr(packet, overload)] = made
    return found


_PRODUCTS = _named(
    {
        "mm": _mm,
        "addmm": _addmm,
        "bmm": _bmm,
        "baddbmm": _baddbmm,
        "_scaled_mm": _scaled_mm,
        "_grouped_mm": _grouped_mm,
        "convolution": _convolution,
        "convolution_backward": _convolution_backward,
        "_scaled_dot_product_flash_attention": _flash,
        "_scaled_dot_product_flash_attention_backward": _flash_backward,
    }
)

#: They start nothing on the GPU.
_NOTHING = _named(
    dict.fromkeys(
        (
            "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "detach", "detach_",
            "_unsafe_view", "_reshape_alias", "lift_fresh", "lift", "alias", "set_", "resize_", "_local_scalar_dense", "item",
            "requires_grad_", "is_pinned", "_has_compatible_shallow_copy_type", "sym_size", "sym_stride", "sym_numel",
            "record_stream", "_nested_tensor_from_mask", "resize_as_",
        ),
        None,
    )
)  # fmt: skip

#: Of a large tensor they read what they take.
_GATHERS = _named(dict.fromkeys(("embedding", "index", "index_select", "gather"), None))
#: They write where they are told, and the rest stays.
_SCATTERS = _named(dict.fromkeys(("index_put", "index_put_", "_index_put_impl_", "scatter_", "scatter_add_", "index_add_", "index_copy_"), None))
#: They only write.
_FILLS = _named(dict.fromkeys(("fill_", "zero_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros",
                               "new_ones", "new_full", "_foreach_zero_", "arange", "rand", "randn", "normal_", "uniform_",
                               "bernoulli_", "randint", "random_", "scalar_tensor", "eye"), None))  # fmt: skip
#: What they change is not read.
_COPIES = _named(dict.fromkeys(("copy_", "_foreach_copy_"), None))


def _bytes(tensor: torch.Tensor) -> int:
    # What is expanded is in memory once.
    return int(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def is_view(func: Any) -> bool:
    if func.namespace in ("prim", "profiler", "inductor_prims"):
        return True
    returns = func._schema.returns
    infos = [one.alias_info for one in returns]
    return bool(infos) and all(info is not None and not info.is_write for info in infos)


def of(func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> list[Kernel]:
    """The kernels that an operator starts."""
    if func in _NOTHING or is_view(func):
        return []
    made = _PRODUCTS.get(func)
    if made is not None:
        first = out[0] if isinstance(out, (tuple, list)) else out
        return list(made(args, first))
    if func.namespace == "fsdp" and func._opname == "all_gather_copy_in":
        # It fills this rank's part of the output.
        return [("m", 2 * _bytes(out[0]))]
    outs = [one for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
    ins = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    if func in _FILLS:
        amount = sum(_bytes(one) for one in (outs or ins))
    elif func in _GATHERS:
        amount = 2 * sum(_bytes(one) for one in outs) + sum(_bytes(one) for one in ins[1:])
    elif func in _SCATTERS:
        amount = 2 * sum(_bytes(one) for one in ins[1:])
    elif func in _COPIES:
        half = len(ins) // 2
        amount = sum(_bytes(one) for one in ins[half:]) + sum(_bytes(one) for one in ins[:half])
    else:
        amount = sum(_bytes(one) for one in ins)
        written = outs
        if not outs:
            # What has no result changes what it was given.
            arguments = func._schema.arguments
            changed = [value for value, argument in zip(args, arguments) if argument.alias_info and argument.alias_info.is_write]
            written = [one for one in tree_leaves(changed) if isinstance(one, torch.Tensor)]
        amount += sum(_bytes(one) for one in written)
    return [("m", amount)] if amount else []


def seconds(kernel: Kernel, gpu: dict[str, Any]) -> float:
    """About how long it takes, for events: the simulator has the whole model."""
    if kernel[0] == "p":
        share = {"half": 1.0, "eight": 2.0, "tf32": 0.5, "single": 0.0625}[kernel[5]]
        return float(2 * kernel[1] * kernel[2] * kernel[3] * kernel[4] / (gpu["flops"] * share))
    return float(kernel[1] / (gpu["flops"] if kernel[0] == "a" else gpu["bandwidth"]))
