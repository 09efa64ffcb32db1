"""What a GPU reaches: matrix products of the shapes that training makes, attention, memory, and whole transformer layers.

python3 testdata/gpu/measure.py > testdata/gpu/NAME.csv     needs PyTorch and a GPU

Each row is measured for a while on end, so that clocks settle where power allows, with random data.
"""

import time

import torch
import torch.nn.functional as F

torch.manual_seed(1)
DEVICE = "cuda"
SECONDS = 1.0


def timed(work):
    """Seconds of one call, over as many as fill SECONDS after a warm-up of half of that."""
    for limit in (SECONDS / 2, SECONDS):
        torch.cuda.synchronize()
        start, calls = time.perf_counter(), 0
        while time.perf_counter() - start < limit:
            for _ in range(4):
                work()
            calls += 4
            torch.cuda.synchronize()
        taken = (time.perf_counter() - start) / calls
    return taken


def row(kind, shape, seconds, flops=0, moved=0):
    print(f"{kind},{shape},{seconds * 1e6:.2f},{flops / seconds / 1e12:.1f},{moved / seconds / 1e9:.0f}", flush=True)


def matmul(m, n, k):
    a = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    b = torch.randn(k, n, device=DEVICE, dtype=torch.bfloat16)
    row("matmul", f"{m}x{n}x{k}", timed(lambda: torch.matmul(a, b)), 2 * m * n * k)


def copy(bytes_):
    a = torch.randn(bytes_ // 2, device=DEVICE, dtype=torch.bfloat16)
    b = torch.empty_like(a)
    row("copy", bytes_, timed(lambda: b.copy_(a)), moved=2 * bytes_)


def norm(tokens, hidden):
    x = torch.randn(tokens, hidden, device=DEVICE, dtype=torch.bfloat16)
    w = torch.ones(hidden, device=DEVICE, dtype=torch.bfloat16)
    row("rms_norm", f"{tokens}x{hidden}", timed(lambda: F.rms_norm(x, (hidden,), w)), moved=4 * tokens * hidden)


def attention(batch, heads, tokens, size):
    q, k, v = (torch.randn(batch, heads, tokens, size, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    grad = torch.randn_like(q)
    # The causal half, as FlashAttention's papers count: 4 b h s^2 d / 2 forward, 2.5 times that backward.
    flops = 2 * batch * heads * tokens * tokens * size
    forward = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    with torch.no_grad():
        row("attention_forward", f"{batch}x{heads}x{tokens}x{size}", timed(forward), flops)
    out = forward()
    backward = lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    row("attention_backward", f"{batch}x{heads}x{tokens}x{size}", timed(backward), 2.5 * flops)


class Layer(torch.nn.Module):
    """A Llama layer, or the part of one that a tensor-parallel rank has, without its communication."""

    def __init__(self, hidden, heads, kv_heads, ffn, size=128):
        super().__init__()
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False, device=DEVICE, dtype=torch.bfloat16)
        self.heads, self.kv_heads, self.size = heads, kv_heads, size
        self.qkv = linear(hidden, (heads + 2 * kv_heads) * size)
        self.out = linear(heads * size, hidden)
        self.up, self.down = linear(hidden, 2 * ffn), linear(ffn, hidden)
        self.norms = [torch.ones(hidden, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(2)]

    def forward(self, x):
        b, s, h = x.shape
        qkv = self.qkv(F.rms_norm(x, (h,), self.norms[0])).view(b, s, -1, self.size).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, s, -1))
        gate, up = self.up(F.rms_norm(x, (h,), self.norms[1])).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def layer(batch, tokens, hidden, heads, kv_heads, ffn):
    module = Layer(hidden, heads, kv_heads, ffn)
    run = torch.compile(module)
    x = torch.randn(batch, tokens, hidden, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn_like(x)
    weights = sum(p.numel() for p in module.parameters())
    flops = 2 * batch * tokens * weights + 2 * batch * heads * tokens * tokens * 128
    shape = f"{batch}x{tokens}x{hidden}/{heads}/{kv_heads}/{ffn}"
    with torch.no_grad():
        row("layer_forward", shape, timed(lambda: run(x)), flops)
    inputs = (x, *module.parameters())
    both = lambda: torch.autograd.grad(run(x), inputs, grad)
    row("layer_both", shape, timed(both), 3 * flops + batch * heads * tokens * tokens * 128)


print("kind,shape,microseconds,tflops,gigabytes_per_second")
print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
for shape in [(8192, 8192, 8192), (16384, 16384, 8192),
              (8192, 6144, 4096), (8192, 4096, 4096), (8192, 28672, 4096), (8192, 4096, 14336),
              (8192, 1280, 8192), (8192, 8192, 1024), (8192, 7168, 8192), (8192, 8192, 3584),
              (8192, 2304, 16384), (8192, 16384, 2048), (8192, 13312, 16384), (8192, 16384, 6656),
              (1280, 8192, 8192), (8192, 7168, 8192), (2304, 16384, 8192), (13312, 16384, 8192),
              (4096, 15360, 5120), (2048, 4608, 12288), (2048, 12288, 1536), (2048, 1024, 1024), (8192, 1024, 1024)]:
    matmul(*shape)
for size in (1 << 28, 1 << 31):
    copy(size)
norm(8192, 8192)
norm(2048, 4096)
for shape in [(1, 32, 8192, 128), (4, 32, 2048, 128), (1, 8, 8192, 128), (1, 16, 8192, 128), (2, 40, 2048, 128)]:
    attention(*shape)
for shape in [(1, 8192, 4096, 32, 8, 14336), (1, 8192, 8192, 8, 1, 3584), (1, 8192, 16384, 16, 1, 6656),
              (4, 2048, 4096, 32, 32, 11008), (1, 2048, 4096, 32, 8, 14336)]:
    layer(*shape)
