"""Tensors of the GPU have shapes and no data; those of the host are what they are. What runs on the GPU is recorded."""

from __future__ import annotations

import copyreg
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from . import gpu, group, kernels

if TYPE_CHECKING:
    from .recorder import Recorder

aten = torch.ops.aten
_OWN = (torch.Tensor, FakeTensor, torch.nn.Parameter, torch.nn.Buffer)

_ALL = {getattr(aten.all, name) for name in aten.all.overloads()}

#: Numbers of a tensor whose values are followed.
_SMALL = 1 << 16


class NoData(RuntimeError):
    """The script asks for data that a dry run does not have."""


class _Fakes(FakeTensorMode):
    #: There is no driver, whatever `torch.cuda.is_available` says.
    avoid_device_init = True  # type: ignore[assignment]


class Mode(TorchDispatchMode):
    """Runs what concerns the GPU with fake tensors, and all else as it is."""

    def __init__(self, record: Recorder) -> None:
        super().__init__()
        self.record = record
        self.fakes = _Fakes(allow_non_fake_inputs=True)
        self.inner = torch.device(gpu.NAME, 0)
        self.reads: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            device = args[0].fake_device if isinstance(args[0], FakeTensor) else args[0].device
            return self.inner if device.type == "cuda" else device
        if any(kind not in _OWN for kind in types):
            # Tensors of tensors take themselves apart first.
            return NotImplemented
        device = kwargs.get("device")
        if device is not None and device.type in (gpu.NAME, "cuda") and device.index != gpu.current_device():
            if device.type == gpu.NAME or device.index is None:
                device = kwargs["device"] = torch.device("cuda", gpu.current_device())
        elif device is not None and device.type == gpu.NAME:
            device = kwargs["device"] = torch.device("cuda", gpu.current_device())
        fakes = FakeTensor in types or (device is not None and device.type == "cuda")
        if not fakes and FakeTensor not in types:
            fakes = any(isinstance(one, FakeTensor) for one in tree_leaves((args, kwargs)))
        if not fakes:
            return func(*args, **kwargs)
        return self.on_gpu(func, args, kwargs)

    def on_gpu(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func in (aten._local_scalar_dense.default, aten.item.default):
            return self.read(args[0])
        if func in (aten.equal.default, aten.is_nonzero.default):
            return self.decide(func, args)
        if func.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional"):
            known = group.functional(func, args, kwargs)
            if known is not None:
                return known[0]
        generator = kwargs.pop("generator", None)
        if generator is not None and "generator" in kwargs:
            kwargs["generator"] = None
        group.settle(func, args)
        # All at once: PyTorch would compute with small numbers of the host, on a GPU that is not there.
        args, kwargs = tree_map_only(torch.Tensor, self.fake, (args, kwargs))
        try:
            with self.fakes:
                out = func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise NoData(
                f"{self.record.script_line()}: {func} has a result whose shape depends on data, which a dry run does not have. "
                "What to do: give it a size that is known, such as the most there can be, or leave it out of the dry run "
                "(if not os.environ.get('RAILNET_DRYRUN'))"
            ) from error
        self.follow(func, args, kwargs, out)
        if func in (aten._to_copy.default, aten.copy_.default) and self.moves(func, args, out):
            return out
        ours = False
        for one in tree_leaves(out):
            if isinstance(one, FakeTensor) and one.fake_device.type == "cuda":
                ours = True
                if not kernels.is_view(func):
                    self.record.memory.add(one.untyped_storage())
        ours = ours or any(isinstance(one, FakeTensor) and one.fake_device.type == "cuda" for one in tree_leaves(args))
        if ours:
            for kernel in kernels.of(func, args, kwargs, out):
                self.record.kernel(kernel, kernels.seconds(kernel, self.record.gpu))
        return out

    def fake(self, one: torch.Tensor) -> torch.Tensor:
        if isinstance(one, FakeTensor):
            return one
        # Not `from_tensor`, which keeps a weak reference: parameters that have one cannot change places.
        with self.fakes:
            known = torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=one.device)
        if one.numel() <= _SMALL:
            # It is new: what the host changes later is not in it.
            known._railnet_value = one.detach().clone()  # type: ignore[attr-defined]
        return known

    def moves(self, func: Any, args: Any, out: Any) -> bool:
        """Whether it copies between host and GPU."""
        source = args[0] if func is aten._to_copy.default else args[1]
        kinds = [(one.fake_device if isinstance(one, FakeTensor) else one.device).type for one in (source, out)]
        if "cuda" not in kinds or kinds[0] == kinds[1]:
            return False
        if kinds[1] == "cuda" and func is aten._to_copy.default:
            self.record.memory.add(out.untyped_storage())
        self.record.host_bytes += out.numel() * out.element_size()
        return True

    # Data that fake tensors do not have.

    def read(self, tensor: Any) -> Any:
        record = self.record
        known = getattr(tensor, "_railnet_value", None)
        if tensor.fake_device.type == "cuda" if isinstance(tensor, FakeTensor) else False:
            record.synchronise()
        if known is not None:
            return known.reshape(()).item()
        line = record.script_line()
        if tensor.dtype is torch.bool and record.item is not None:
            decided = bool(getattr(tensor, "_railnet_all", False))
            if line not in self.reads:
                self.reads.add(line)
                record.note(f"{line} asks the GPU whether something holds: it is told {decided}, and the CPU waits there")
            return decided
        if record.item is None or not tensor.dtype.is_floating_point:
            raise NoData(
                f"{line}: a number of type {tensor.dtype} is read from the GPU (.item(), .tolist(), if tensor:), and a dry run has no "
                "data there. What to do: leave it out of the dry run (if not os.environ.get('RAILNET_DRYRUN')), or compute it on "
                "the host" + ("; --item 1.0 gives every floating-point number this value" if record.item is None else "")
            )
        if line not in self.reads:
            self.reads.add(line)
            record.note(f"{line} reads a number from the GPU: it gets {record.item:g} (--item), and the CPU waits there")
        return record.item

    def decide(self, func: Any, args: Any) -> bool:
        if func is aten.is_nonzero.default:
            return bool(self.read(args[0]))
        self.record.note(f"{self.record.script_line()} compares tensors of the GPU: they are taken for equal")
        return True

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        """Small tensors whose values are known keep them: counters, masks, shares of tokens."""
        outs = [one for one in tree_leaves(out) if isinstance(one, FakeTensor)]
        for one in outs:
            # PyTorch's own constants would be computed on the GPU.
            one.constant = None
        if not outs or any(one.numel() > _SMALL for one in outs):
            return
        ins = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if func in (aten.histc.default, aten.bincount.default):
            # Tokens go to all experts alike.
            each, rest = divmod(ins[0].numel(), outs[0].numel())
            even = [each + (place < rest) for place in range(outs[0].numel())]
            outs[0]._railnet_value = torch.tensor(even, dtype=outs[0].dtype)
            self.record.note(f"{self.record.script_line()} counts what data decide: even shares are assumed")
            return
        if func is aten._amp_foreach_non_finite_check_and_unscale_.default:
            return
        if func in _ALL:
            # What all have to be, such as finite, they are.
            outs[0]._railnet_all = True  # type: ignore[attr-defined]
        random = torch.Tag.nondeterministic_seeded in func.tags
        values = [getattr(one, "_railnet_value", None) if isinstance(one, FakeTensor) else one for one in ins]
        if random or any(one is None or one.numel() > _SMALL for one in values):
            for one in outs:
                one._railnet_value = None  # type: ignore[attr-defined]
            return
        if not ins and func in kernels._NOTHING:
            return

        def known(one: Any) -> Any:
            return one._railnet_value if isinstance(one, FakeTensor) else one

        plain = {name: torch.device("cpu") if name == "device" else value for name, value in kwargs.items()}
        try:
            found = func(*tree_map_only(torch.Tensor, known, args), **tree_map_only(torch.Tensor, known, plain))
        except Exception:
            return
        for one, value in zip(outs, (one for one in tree_leaves(found) if isinstance(one, torch.Tensor))):
            if one.shape == value.shape:
                one._railnet_value = value


_current: list[Mode] = []


def current() -> Mode:
    return _current[0]


def install(record: Recorder) -> None:
    _current.append(Mode(record))
    _functions(record)
    _current[0].__enter__()


def _swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """What PyTorch has under this name, also where something refers to a tensor weakly: its own modes do."""
    names = [name for kind in (type(one), type(other)) for name in copyreg._slotnames(kind)]  # type: ignore[attr-defined]
    for name in ("__class__", "__dict__", *dict.fromkeys(names)):
        values = [getattr(each, name, None) for each in (one, other)]
        if hasattr(one, name) or hasattr(other, name):
            setattr(one, name, values[1])
            setattr(other, name, values[0])
    torch._C._swap_tensor_impl(one, other)


def _heads(query: Any, key: Any, value: Any) -> tuple[Any, Any]:
    """Keys and values for every head: the kernel reads those that heads share as they are."""
    times = query.shape[1] // key.shape[1]
    if times == 1:
        return key, value
    return tuple(one.unsqueeze(2).expand(-1, -1, times, -1, -1).flatten(1, 2) for one in (key, value))  # type: ignore[return-value]


def _flex(record: Recorder) -> None:
    """FlexAttention, which PyTorch would compile."""
    try:
        import torch.nn.attention.flex_attention as module
    except ImportError:
        return
    inner = module.flex_attention

    def flex_attention(query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, scale: float | None = None,
                       enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None, **kwargs: Any) -> Any:  # fmt: skip
        wanted = kwargs.get("return_aux")
        if query.device.type != "cuda":
            return inner(query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, **kwargs)
        if block_mask is not None or score_mod is not None:
            record.note(f"{record.script_line()}: FlexAttention is priced as causal FlashAttention, whatever its mask and its scores")
        key, value = _heads(query, key, value)
        causal = block_mask is not None
        out = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scale)
        if wanted is not None:
            return out[0], module.AuxOutput(lse=out[1] if wanted.lse else None)
        return (out[0], out[1]) if return_lse else out[0]

    module.flex_attention = flex_attention  # type: ignore[assignment]


def _functions(record: Recorder) -> None:
    """Functions that choose a kernel by the GPU that is there."""
    functional = torch.nn.functional
    inner = functional.scaled_dot_product_attention

    def attention(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
                  scale: float | None = None, enable_gqa: bool = False) -> Any:  # fmt: skip
        if query.device.type != "cuda" or query.dim() != 4:
            return inner(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        from torch.nn.attention import SDPBackend, _cur_sdpa_kernel_backends

        allowed = _cur_sdpa_kernel_backends()
        if allowed == [SDPBackend.MATH]:
            return inner(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if torch.is_autocast_enabled("cuda"):
            kind = torch.get_autocast_dtype("cuda")
            query, key, value = (one.to(kind) for one in (query, key, value))
        causal = is_causal
        if attn_mask is not None:
            record.note(f"{record.script_line()} gives attention a mask: it is priced as causal FlashAttention, without what the mask reads")
            causal = True
        if query.dtype == torch.float32:
            record.note(f"{record.script_line()} computes attention in float32: it is priced as at half precision")
        key, value = _heads(query, key, value)
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, causal, scale=scale)[0]

    _flex(record)
    functional.scaled_dot_product_attention = attention
    torch._C._nn.scaled_dot_product_attention = attention

    def not_compiled(model: Any = None, *_: Any, **__: Any) -> Any:
        record.note(f"{record.script_line()}: torch.compile is left out; kernels are priced as PyTorch starts them without it, unfused")
        return model if model is not None else (lambda one: one)

    torch.compile = not_compiled  # type: ignore[assignment]
    torch.nn.Module.compile = lambda self, *_, **__: not_compiled(self) and None  # type: ignore[method-assign]
    # Modules keep their parameters where they are moved to the GPU: those that are tied stay so.
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.utils.swap_tensors = _swap
    # Optimisers and clipping choose kernels for many tensors at once by the types of these.
    import importlib

    for name in ("torch.utils._foreach_utils", "torch.optim.optimizer"):
        module = importlib.import_module(name)
        known = getattr(module, "_foreach_supported_types", None)
        if known is not None and FakeTensor not in known:
            known.append(FakeTensor)
    save = torch.save

    def saved(thing: Any, file: Any, *args: Any, **kwargs: Any) -> None:
        if any(isinstance(one, FakeTensor) for one in tree_leaves(thing)):
            record.note(f"{record.script_line()} saves tensors of the GPU: nothing is written")
            return
        save(thing, file, *args, **kwargs)

    torch.save = saved
