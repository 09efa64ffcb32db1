"""plan and tune: the command's answers as values."""

import re

import pytest
import railnet


def test_plan_answers_options():
    plan = railnet.plan(model="llama-3-70b", gpus=64)
    assert "llama-3-70b, 70.6 B parameters" in str(plan)
    assert plan.value and list(plan) == list(plan.value)


def test_plan_answers_for_a_file(scenarios):
    assert railnet.plan(scenarios / "llama-70b.toml").value == railnet.plan(str(scenarios / "llama-70b.toml")).value


def test_plan_answers_for_a_text(scenarios):
    text = (scenarios / "llama-70b.toml").read_text()
    plan = railnet.plan(text)
    there = railnet.plan(scenarios / "llama-70b.toml")
    assert plan["step_us"] == there["step_us"] and plan["layouts"] == there["layouts"]
    assert "plan · scenario\n" in str(plan)


def test_tune_names_the_winner_and_takes_options():
    chosen = railnet.tune("allreduce", "64MiB", cluster="dgx-h100x8")["chosen"]
    assert chosen["algorithm"] and chosen["time_us"] > 0
    ring = railnet.tune("allreduce", 64 << 20, cluster="dgx-h100x8", algo="ring")["chosen"]
    assert ring["algorithm"] == "Ring" and ring["time_us"] >= chosen["time_us"]
    assert len(railnet.tune("allreduce", cluster="dgx-h100", sweep=True).sweep) > 10


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: railnet.tune("allreduc", "64MiB"), 'did you mean "allreduce"'),
        (lambda: railnet.tune("allreduce", "64MiB", cluster="dgx-h100x8", alog="ring"), "alog"),
        (lambda: railnet.plan(model="llama-3-70b", gpus=-1), "gpus"),
        (lambda: railnet.plan({"model": {}}), "there is no network: .*--> scenario"),
    ],
)
def test_wrong_questions_have_the_commands_words(ask, message):
    with pytest.raises(railnet.UsageError, match=re.compile(message, re.DOTALL)):
        ask()


def test_an_answer_names_what_it_has():
    with pytest.raises(AttributeError, match="it has"):
        railnet.tune("allreduce", "64MiB", cluster="dgx-h100x8").winner
