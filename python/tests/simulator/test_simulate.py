"""One run: what it is asked, what it answers, and what is wrong with it."""

import json
import pickle
import subprocess
import sys
import threading
import time

import pytest
import railnet

JOB = "life-of-a-job-small"


def test_a_dict_a_text_and_a_file_are_the_same_scenario(incast, tmp_path):
    text = """
        seed = 1
        [fabric]
        topology = { kind = "single-switch", hosts = 17 }
        link = { rate = "100Gbps", delay = "1us" }
        [nic]
        control = "dcqcn"
        [[traffic]]
        kind = "incast"
        from = "0..15"
        to = 16
        bytes = "256KB"
        """
    path = tmp_path / "incast.toml"
    path.write_text(text)
    digests = {railnet.simulate(one).digest for one in (incast, text, path, str(path))}
    assert len(digests) == 1


def test_the_command_comes_to_the_same(incast, tmp_path, command):
    path = tmp_path / "incast.toml"
    path.write_text('[fabric]\ntopology = { kind = "single-switch", hosts = 9 }\n'
                    '[[traffic]]\nkind = "incast"\nfrom = "0..7"\nto = 8\nbytes = "64KB"\n')
    printed = subprocess.run([command, "sim", path, "--json", "-"], check=True, stdout=subprocess.PIPE).stdout
    theirs, ours = json.loads(printed), railnet.simulate(path)
    assert ours.digest == theirs["digest"]
    assert {key: value for key, value in ours.value.items() if key != "wall_s"} == {
        key: value for key, value in theirs.items() if key != "wall_s"
    }


def test_changes_change_the_run_and_are_named_where_they_do_nothing(incast):
    plain = railnet.simulate(incast)
    changed = railnet.simulate(incast, {"nic.control": "swift", "fabric.link.rate": "200Gbps"})
    assert changed.completion < plain.completion * 0.6
    assert railnet.simulate(incast, {"traffic.0.bytes": "512KB"}).completion > plain.completion * 1.8
    inert = railnet.simulate("llama-70b", {"nic.control": "swift"})
    assert "nic.control" in inert.without_effect


def test_numbers_know_their_unit(incast):
    run = railnet.simulate(incast)
    assert run.completion == pytest.approx(run.value["completion_us"] * 1e-6)
    assert run.completion.us == pytest.approx(run.value["completion_us"])
    # 4 MB through 100 Gb/s are 328 µs at least.
    assert 328 < run.completion.us < 500
    assert str(railnet.Time(0.0125)) == "12.5 ms"


def test_tables_have_columns(incast):
    run = railnet.simulate(incast, sample="10us")
    assert len(run.flows) == 16 and run.flows["bytes"] == [256_000] * 16
    links = run.links
    into = [row for row in links if row["to"] == "host16"]
    assert into and max(links["max_queue_bytes"]) == run.value["max_queue_bytes"]
    queue = run.series("queue")
    assert max(queue["queue_bytes"]) > 0 and len(queue) == len(queue["time_us"])
    with pytest.raises(KeyError, match="there is no column 'size': there are source"):
        run.flows["size"]
    with pytest.raises(railnet.UsageError, match="queue, throughput, paused"):
        run.series("length")
    with pytest.raises(railnet.UsageError, match='sample="10us"'):
        railnet.simulate(incast).series("queue")


def test_tables_become_those_of_other_libraries(incast):
    flows = railnet.simulate(incast).flows
    numpy = pytest.importorskip("numpy")
    assert flows.to_numpy()["bytes"].sum() == 16 * 256_000
    assert numpy.all(flows.to_numpy()["finish_us"] > 0)
    pytest.importorskip("pandas")
    assert flows.to_pandas().groupby("target")["bytes"].sum()[16] == 16 * 256_000
    pytest.importorskip("pyarrow")
    assert flows.to_arrow().num_rows == 16


def test_a_job_has_steps_and_a_critical_path():
    run = railnet.simulate(JOB)
    assert 0 < run.exposed < run.step_time
    assert sum(run.breakdown.values()) == pytest.approx(run.step_time, rel=0.01)
    assert sum(run.critical_path.values()) == pytest.approx(run.step_time, rel=0.01)
    assert 0 < run.busy < 1 and run.job["ranks"] == 16
    with pytest.raises(railnet.UsageError, match="run.links"):
        run.flows
    with pytest.raises(railnet.UsageError, match="formulas send no packets"):
        railnet.simulate(JOB, fidelity="analytic").links


def test_a_run_is_plain_data(incast):
    run = railnet.simulate(incast)
    again = pickle.loads(pickle.dumps(run))
    assert again.value == run.value and str(again) == str(run)


def test_a_notebook_shows_the_summary(incast):
    shown = railnet.simulate(JOB)._repr_html_()
    assert "waiting for data_parallel traffic" in shown and "<details>" in shown
    assert "completion" in railnet.simulate(incast)._repr_html_()


def test_a_report_is_the_page_of_the_same_run(incast, tmp_path):
    page = tmp_path / "run.html"
    run = railnet.simulate(incast)
    run.report(page)
    assert run.digest in page.read_text()
    with pytest.raises(railnet.UsageError, match="run.html"):
        run.report(page)
    run.report(page, force=True)
    recorded = railnet.simulate(incast, record=True)
    recorded.report(tmp_path / "run.rail")
    assert (tmp_path / "run.rail").stat().st_size > 1000 and recorded.digest == run.digest


def test_what_is_wrong_with_a_scenario_is_told_with_its_place(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text('[fabric]\ntopology = { kind = "single-switch", hosts = 2 }\n[nic]\ncontrol   = "dcqnc"\n')
    with pytest.raises(railnet.ScenarioError) as caught:
        railnet.simulate(path)
    error = caught.value
    assert (error.line, error.column, error.key, error.file) == (4, 14, "control", str(path))
    assert 'did you mean "dcqcn"?' in error.advice
    assert "^^^^^" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.line, again.advice) == (str(error), 4, error.advice)


@pytest.mark.parametrize(
    ("scenario", "options", "message"),
    [
        ("no-such.toml", {}, "no file no-such.toml"),
        (42, {}, "a path, a text or a dict"),
        ({"fabric": {"topology": None}}, {}, "table of keys"),
        ({"fabric": object()}, {}, "cannot be written"),
        (JOB, {"fidelity": "exact"}, "write packet, flow or analytic"),
        (JOB, {"sample": "10"}, "sample"),
        (JOB, {"changes": {"nic.contol": "swift"}}, "contol"),
        (JOB, {"changes": {"fidelity": "packet", "fidelity.x": 1}}, "single value"),
        (JOB, {"changes": {"": 1}}, "missing"),
        (JOB, {"seed": -1}, "seed"),
    ],
)
def test_wrong_questions_are_refused(scenario, options, message):
    with pytest.raises(railnet.UsageError, match=message):
        railnet.simulate(scenario, **options)


def test_a_failed_run_has_what_was_known_by_then(incast):
    incast["limit"] = "20us"
    with pytest.raises(railnet.RunError) as caught:
        railnet.simulate(incast)
    assert caught.value.run is not None and caught.value.run.is_partial
    assert caught.value.run.value["error"]["kind"] == "unfinished"


def test_progress_is_told_and_may_stop_a_run():
    long = {"fabric": {"topology": {"kind": "single-switch", "hosts": 32}},
            "traffic": [{"kind": "all-to-all", "bytes": "32MB"}]}
    heard = []

    def watch(part):
        heard.append(part)
        return len(heard) < 3

    run = railnet.simulate(long, progress=watch)
    assert len(heard) == 3 and heard == sorted(heard) and all(0 <= part < 1 for part in heard)
    assert run.is_partial and run.completion > 0
    with pytest.raises(ZeroDivisionError):
        railnet.simulate(long, progress=lambda part: 1 / 0)
    with pytest.raises(railnet.UsageError, match="record=True"):
        run.report("never-written.html")


def test_ctrl_c_gives_what_there_is():
    program = """
import _thread, signal, threading, time, warnings, railnet
warnings.simplefilter("ignore")
# A shell that starts programs in the background has them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
heard = threading.Event()
threading.Thread(target=lambda: (heard.wait(60), _thread.interrupt_main()), daemon=True).start()
long = {"fabric": {"topology": {"kind": "single-switch", "hosts": 64}}, "traffic": [{"kind": "all-to-all", "bytes": "64MB"}]}
run = railnet.simulate(long, progress=lambda part: heard.set())
print(run.is_interrupted, run.is_partial, run.completion > 0)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["True", "True", "True"]


def test_python_goes_on_while_rust_works():
    long = {"fabric": {"topology": {"kind": "single-switch", "hosts": 32}},
            "traffic": [{"kind": "all-to-all", "bytes": "4MB"}]}
    ticks, over = [], threading.Event()

    def tick():
        while not over.wait(0.005):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    began = time.monotonic()
    railnet.simulate(long)
    ended = time.monotonic()
    over.set()
    thread.join()
    assert sum(began < at < ended for at in ticks) >= 3
