"""Training as people do it: the losses are those of one process, or Gloo's."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

STEPS = 4


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, _ = x.shape
        normed = self.norm1(x)
        q, k, v = (f(normed).view(batch, length, -1, x.shape[-1] // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A small GPT."""

    def __init__(self, words=61, width=32, heads=4, layers=2, length=16):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def made():
    torch.manual_seed(1)
    return Gpt()


def batches(ranks):
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, 61, (2 * ranks, 16), generator=generator) for _ in range(STEPS)]


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(model, batch_of, own_optimiser=None):
    optimiser = own_optimiser or torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for tokens in batch_of:
        optimiser.zero_grad()
        loss = loss_of(model, tokens)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def alone(ranks):
    """The losses of one process that has the whole batch."""
    return train(made(), batches(ranks))


def mean_over_ranks(losses):
    mean = torch.tensor(losses)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean.tolist()


def share(rank, ranks):
    return [tokens[2 * rank : 2 * rank + 2] for tokens in batches(ranks)]


@pytest.mark.parametrize("count", [2, 4])
def test_ddp(ranks, count):
    def body(rank):
        model = nn.parallel.DistributedDataParallel(made(), bucket_cap_mb=0.02)
        return mean_over_ranks(train(model, share(rank, count)))

    for losses in ranks(count, body):
        assert losses == pytest.approx(alone(count), rel=1e-4)


def test_fsdp2(ranks):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard") or not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("this PyTorch has no fully_shard for CPUs")

    def body(rank):
        mesh = dist.init_device_mesh("cpu", (2,))
        model = made()
        for block in model.blocks:
            fsdp.fully_shard(block, mesh=mesh)
        fsdp.fully_shard(model, mesh=mesh)
        return mean_over_ranks(train(model, share(rank, 2)))

    for losses in ranks(2, body):
        assert losses == pytest.approx(alone(2), rel=1e-4)


def test_hybrid_sharding_over_a_mesh_of_two_dimensions(ranks):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard") or not hasattr(torch.cpu.Stream, "record_event"):
        pytest.skip("this PyTorch has no fully_shard for CPUs")

    def body(rank):
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        model = made()
        for block in model.blocks:
            fsdp.fully_shard(block, mesh=mesh)
        fsdp.fully_shard(model, mesh=mesh)
        return mean_over_ranks(train(model, share(rank, 4)))

    for losses in ranks(4, body):
        assert losses == pytest.approx(alone(4), rel=1e-4)


def needs_mesh():
    if not hasattr(dist, "init_device_mesh"):
        pytest.skip("init_device_mesh came with PyTorch 2.2")


def test_tensor_parallel(ranks):
    parallel = pytest.importorskip("torch.distributed.tensor.parallel")
    needs_mesh()

    def body(rank):
        mesh = dist.init_device_mesh("cpu", (2,))
        model = made()
        column, row = parallel.ColwiseParallel, parallel.RowwiseParallel
        for block in model.blocks:
            plan = {"q": column(), "k": column(), "v": column(), "out": row(), "up": column(), "down": row()}
            parallel.parallelize_module(block, mesh, plan)
        return train(model, batches(2))

    for losses in ranks(2, body):
        assert losses == pytest.approx(alone(2), rel=1e-4)


def test_pipeline(ranks):
    pipelining = pytest.importorskip("torch.distributed.pipelining")

    def body(rank):
        model = made()

        class First(nn.Module):
            def forward(self, tokens):
                x = model.words(tokens) + model.places(torch.arange(tokens.shape[1]))
                return model.blocks[0](x)

        class Second(nn.Module):
            def forward(self, x):
                # Older versions of PyTorch take no view for what a stage gives.
                return model.head(model.norm(model.blocks[1](x))).clone()

        part = (First if rank == 0 else Second)()
        part.own = nn.ModuleList([model.words, model.places, model.blocks[0]] if rank == 0 else [model.blocks[1], model.norm, model.head])
        stage = pipelining.PipelineStage(part, rank, 2, torch.device("cpu"))
        score = lambda out, want: nn.functional.cross_entropy(out.flatten(0, 1), want.flatten())  # noqa: E731
        schedule = pipelining.Schedule1F1B(stage, 4, loss_fn=score)
        optimiser = torch.optim.AdamW(part.parameters(), lr=1e-2)
        results = []
        for tokens in batches(2):
            optimiser.zero_grad()
            if rank == 0:
                schedule.step(tokens[:, :-1])
            else:
                losses = []
                schedule.step(target=tokens[:, 1:], losses=losses)
                results.append(torch.stack(losses).mean().item())
            optimiser.step()
        return results

    assert ranks(2, body)[1] == pytest.approx(alone(2), rel=1e-4)


def test_checkpoint(ranks, tmp_path):
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    needs_mesh()

    def body(rank):
        mesh = dist.init_device_mesh("cpu", (2,))
        from torch.distributed.tensor import Shard, distribute_tensor

        whole = torch.arange(24.0).reshape(6, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint.save({"weight": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=str(tmp_path / "saved"))
            # Split another way when it is loaded.
            again = {"weight": distribute_tensor(torch.zeros(6, 4), mesh, [Shard(1)])}
            checkpoint.load(again, checkpoint_id=str(tmp_path / "saved"))
        assert torch.equal(again["weight"].full_tensor(), whole)

    ranks(2, body)


@pytest.mark.full
def test_functional_collectives_under_compile(ranks):
    def body(rank):
        import torch.distributed._functional_collectives as functional

        @torch.compile(fullgraph=True, backend="aot_eager")
        def step(x):
            summed = functional.all_reduce(x, "sum", dist.group.WORLD)
            gathered = functional.all_gather_tensor(summed * 2, 0, dist.group.WORLD)
            part = functional.reduce_scatter_tensor(gathered, "sum", 0, dist.group.WORLD)
            return functional.all_to_all_single(part, None, None, dist.group.WORLD)

        return step(torch.arange(4.0) + rank).tolist()

    results = ranks(2, body, limit=300)
    # 2 * (x0 + x1), twice over.
    whole = [4.0 * (2 * k + 1) for k in range(4)]
    assert results[0] == whole[:2] * 2 and results[1] == whole[2:] * 2
