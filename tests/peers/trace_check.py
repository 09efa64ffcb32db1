"""Reads a trace with perfetto's own definitions, and checks that it hangs together.

Usage: trace_check.py TRACE [calls]. Needs the package perfetto. Calls of real ranks have no counters.
"""

import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


def main(path):
    trace = perfetto_trace_pb2.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    tracks, processes, open_slices, last = {}, [], {}, {}
    counts = {BEGIN: 0, END: 0, INSTANT: 0, COUNTER: 0}
    begun, ended = set(), set()
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks, f"track {track.uuid} is described twice"
            tracks[track.uuid] = track
            if track.HasField("process"):
                processes.append(track.process.process_name)
            else:
                assert track.parent_uuid in tracks, f"{track.name} belongs to nobody"
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in tracks, "an event of a track that was not described"
        counts[event.type] += 1
        # Within a track, in the order of time, and slices one after the other.
        assert last.get(event.track_uuid, 0) <= packet.timestamp, tracks[event.track_uuid].name
        last[event.track_uuid] = packet.timestamp
        depth = open_slices.get(event.track_uuid, 0) + {BEGIN: 1, END: -1}.get(event.type, 0)
        assert depth in (0, 1), f"slices of {tracks[event.track_uuid].name} lie across each other"
        open_slices[event.track_uuid] = depth
        begun |= set(event.flow_ids)
        ended |= set(event.terminating_flow_ids)
    assert not any(open_slices.values()), "a slice has no end"
    assert begun == ended, "an arrow has one end only"
    assert processes and counts[BEGIN] == counts[END] > 0
    assert counts[COUNTER] > 0 or "calls" in sys.argv[2:]
    print(
        f"{path}: {len(processes)} processes, {len(tracks)} tracks, {counts[BEGIN]} slices, "
        f"{counts[COUNTER]} points of counters, {len(begun)} arrows"
    )


main(sys.argv[1])
