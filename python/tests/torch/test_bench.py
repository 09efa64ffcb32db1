"""`python -m railnet.bench`: what it measures, and what it says to options that make no sense."""

import json
import subprocess
import sys

import pytest


def bench(folder, *words, limit=180):
    command = [sys.executable, "-m", "railnet.bench", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--sizes", "1KiB,3xyz"], '"3xyz" is no size of a buffer'),
        (["--sizes", "0B"], '"0B" is no size'),
        (["--types", "nope"], 'there is no "nope": use f32, bf16'),
        (["--ranks", "2,0"], '"0" is no number of ranks: use 1 or more'),
        (["--calls", "all_reduce,all_gossip"], 'there is no "all_gossip": use all_reduce,'),
        (["--rounds", "-1"], '"-1" is no number of rounds'),
    ],
)
def test_options_that_make_no_sense_are_refused(capsys, words, says):
    from railnet import bench

    with pytest.raises(SystemExit) as left:
        bench.main(words)
    assert left.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.full
def test_every_call_is_measured_with_both_backends(tmp_path):
    done = bench(tmp_path, "--ranks", "2,3", "--sizes", "1KiB,100B", "--rounds", "1", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["ranks"] for row in rows} == {2, 3}
    assert {row["call"] for row in rows} == {
        "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "ddp step of a small GPT",
    }  # fmt: skip
    assert all(row["railnet_us"] > 0 and row["gloo_us"] > 0 for row in rows)
