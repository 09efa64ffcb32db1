//! The figures as JSON: every pass of everyone, and what it comes to.

use serde_json::{Map, Value, json};

use super::contestant::Family;
use super::figures::{Group, Row, Spread};

pub(crate) fn of(groups: &[Group], nice: i32) -> Value {
    json!({
        "host": railnet_live::host::host_name(),
        "system": railnet_live::host::system(),
        "cores": railnet_live::host::cores().usable,
        "session_nice": nice,
        "places": groups.iter().map(place).collect::<Vec<_>>(),
    })
}

fn place(group: &Group) -> Value {
    let contestants = group.members.iter().map(|member| {
        json!({
            "contestant": member.who.id(),
            "name": member.name,
            "trouble": member.trouble,
            "loopback_bytes_per_byte": member.carried.ratio(),
            "busy_process_cores": member.left_over.ratio(),
            "waiting_cores": member.waiting.ratio(),
        })
    });
    json!({
        "ranks": group.place.ranks,
        "transport": group.place.transport.name(),
        "loaded": group.is_loaded,
        "cache_line_ns": group.probes,
        "contestants": contestants.collect::<Vec<_>>(),
        "rows": group.rows.iter().map(|one| row(group, one)).collect::<Vec<_>>(),
    })
}

fn row(group: &Group, row: &Row) -> Value {
    let mut times = Map::new();
    for (member, cell) in group.members.iter().zip(&row.cells) {
        let median = group.spread(cell).map(|spread| spread.median);
        times.insert(
            member.who.id().to_owned(),
            json!({
                "us": median,
                "bus_gb_s": median.map(|median| group.bus(row.point, median)),
                "passes": cell.passes,
                "wrong": cell.wrong(),
                "unsupported": cell.unsupported,
            }),
        );
    }
    let verdicts = group.rivals().into_iter().map(|family| {
        let verdict = group.verdict(row, family);
        json!({
            "against": match family { Family::Gloo => "gloo", _ => "best_mpi" },
            "ratio": verdict.ratio.map(|Spread { median, min, max }| {
                json!({ "median": median, "min": min, "max": max })
            }),
            "goal": verdict.goal,
            "met": verdict.is_met(),
        })
    });
    json!({
        "collective": row.point.collective.test_name(),
        "bytes": row.point.bytes,
        "times": times,
        "ratios": verdicts.collect::<Vec<_>>(),
    })
}
