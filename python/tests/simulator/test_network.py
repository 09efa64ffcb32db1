"""A network that another simulator drives."""

import pytest
import railnet

SWITCH = {"fabric": {"topology": {"kind": "single-switch", "hosts": 4}, "link": {"rate": "100Gbps", "delay": "1us"}}}


def test_a_transfer_takes_as_long_as_in_a_run():
    alone = railnet.simulate({**SWITCH, "traffic": [{"kind": "flow", "from": 0, "to": 1, "bytes": "1MB"}]})
    network = railnet.Network(SWITCH)
    number = network.start(src=0, dst=1, bytes=1_000_000, at=0.0)
    (ended,) = network.advance()
    assert (ended.id, ended.src, ended.dst, ended.bytes) == (number, 0, 1, 1_000_000)
    assert ended.end == pytest.approx(alone.value["flows"][0]["finish_us"] * 1e-6, abs=1e-12)
    assert network.now == ended.end and network.in_flight == 0


def test_what_follows_from_an_end_starts_at_that_moment():
    network = railnet.Network(SWITCH)
    network.start(0, 1, 1 << 20)
    first = network.advance()[0]
    network.start(1, 2, 1 << 20)
    second = network.advance()[0]
    assert second.start == first.end
    assert second.end - second.start == pytest.approx(first.end, rel=0.01)


def test_transfers_that_share_a_link_take_turns():
    network = railnet.Network(SWITCH)
    numbers = {network.start(0, 2, 1 << 20), network.start(1, 2, 1 << 20)}
    ended = []
    while network.in_flight:
        ended += network.advance()
    assert {one.id for one in ended} == numbers
    alone = 8 * (1 << 20) / 100e9
    assert max(one.end for one in ended) > 2 * alone


def test_time_passes_where_nothing_happens():
    network = railnet.Network(SWITCH)
    assert network.advance() == [] and network.now == 0
    assert network.advance(until=0.5) == [] and network.now == 0.5
    network.start(0, 1, 1000, at=0.75)
    assert network.advance(until=0.6) == [] and network.now == 0.6
    (ended,) = network.advance()
    assert ended.start == 0.75 and 0 < ended.end - 0.75 < 1e-5


def test_the_present_is_never_before_the_moment_that_was_awaited():
    network = railnet.Network(SWITCH)
    for moment in (1 / 3, 0.7000000000000001, 2.0000000000000004, 3.3333333333333335, 20_000.1):
        network.advance(until=moment)
        assert moment <= network.now < moment + 2e-12 + 1e-15 * moment
        number = network.start(0, 1, 1000, at=network.now)
        (ended,) = network.advance()
        assert ended.id == number and ended.start >= moment


def test_it_repeats():
    def ends():
        network = railnet.Network("leaf-spine", {"seed": 3, "traffic": []})
        for host in range(8):
            network.start(host, 15 - host, 200_000, at=host * 1e-6)
        found = []
        while network.in_flight:
            found += network.advance()
        return found

    assert ends() == ends() and len(ends()) == 8


def test_traffic_of_the_scenario_runs_beside():
    busy = {**SWITCH, "traffic": [{"kind": "flow", "from": 3, "to": 1, "bytes": "4MB"}]}
    network = railnet.Network(busy)
    number = network.start(0, 1, 1_000_000)
    ends = {}
    while network.in_flight:
        ends.update({one.id: one for one in network.advance()})
    assert set(ends) == {0, number}
    alone = railnet.Network(SWITCH)
    alone.start(0, 1, 1_000_000)
    assert ends[number].end > 1.5 * alone.advance()[0].end


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ((0, 4, 8), "there is no host 4: the network has 4"),
        ((0, 0, 8), "itself crosses no network"),
        ((0, 1, 0), "1 to"),
        ((0, 1, 8, 0.1), "cannot start at 100 ms: the network is at 200 ms already"),
    ],
)
def test_what_cannot_start_is_refused(start, message):
    network = railnet.Network(SWITCH)
    network.advance(until=0.2)
    with pytest.raises(railnet.UsageError, match=message):
        network.start(*start)


def test_only_networks_are_networks():
    with pytest.raises(railnet.ScenarioError, match="runs no jobs"):
        railnet.Network("llama-70b")
    with pytest.raises(ValueError, match="no time of a run"):
        railnet.Network(SWITCH).advance(until=-1.0)
