//! What the facts mean: a function of them, so that other machines than this one can be tried.

use std::fmt::Write as _;

use railnet_live::host::Interface;
use railnet_live::launch::{Launch, Launcher};

use super::facts::Facts;
use crate::words;

/// What a socket should be able to buffer: two windows of 2 MiB.
const SOCKET_BUFFER: u64 = 4 << 20;
/// Open files for the control channel and conduits of some hundred ranks.
const OPEN_FILES: u64 = 4096;
/// Less than this in `/dev/shm` and other programs, such as data loaders, die of it.
const SHM: u64 = 1 << 30;
/// Processes that are named.
const OWNERS_MAX: usize = 4;
/// Interfaces that are shown.
const INTERFACES_MAX: usize = 4;

/// How something stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Ok,
    Warn,
    Bad,
}

impl State {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// One line of the report.
pub(super) struct Check {
    pub(super) area: &'static str,
    pub(super) name: &'static str,
    pub(super) state: State,
    pub(super) finding: String,
    /// What to change.
    pub(super) advice: Vec<String>,
}

pub(super) fn of(facts: &Facts) -> Vec<Check> {
    let mut checks = launch(facts);
    checks.extend([shared_memory(facts), tcp(facts), roce(facts)]);
    checks.extend([buffers(facts), files(facts), locked(facts), cores(facts), memory(facts)]);
    checks
}

fn check(area: &'static str, name: &'static str, finding: String, advice: Vec<String>) -> Check {
    let state = if advice.is_empty() { State::Ok } else { State::Warn };
    Check { area, name, state, finding, advice }
}

fn launch(facts: &Facts) -> Vec<Check> {
    const AREA: &str = "Launch";
    let launch = match &facts.launch {
        Ok(launch) => launch,
        Err(error) => {
            let state = State::Bad;
            return vec![Check {
                area: AREA,
                name: "launcher",
                state,
                finding: error.to_string(),
                advice: Vec::new(),
            }];
        }
    };
    if launch.launcher == Launcher::Alone {
        let finding = "none: this process is by itself (railnet run -n 4 -- PROGRAM starts four)".to_owned();
        return vec![check(AREA, "launcher", finding, Vec::new())];
    }
    vec![
        check(AREA, "launcher", launch.launcher.to_string(), Vec::new()),
        check(AREA, "rank", rank(launch), Vec::new()),
        rendezvous(AREA, launch),
    ]
}

fn rank(launch: &Launch) -> String {
    let mut text = format!("{} of {}", launch.rank.0, launch.world_size);
    if let Some(local) = launch.local_rank {
        let _ = write!(text, " · {local} on its node");
        if let Some(size) = launch.local_size {
            let _ = write!(text, " of {size}");
        }
    }
    if let Some(node) = launch.node {
        let _ = write!(text, " · node {node}");
    }
    if let Some(group) = &launch.host_group {
        let _ = write!(text, " · host group {group}");
    }
    text
}

fn rendezvous(area: &'static str, launch: &Launch) -> Check {
    match &launch.rendezvous {
        Some(meeting) => check(area, "rendezvous", meeting.to_string(), Vec::new()),
        None if launch.world_size == 1 => check(area, "rendezvous", "not needed".to_owned(), Vec::new()),
        None => {
            let finding = format!("{} does not say where rank 0 is", launch.launcher);
            let advice = vec!["set RAILNET_RENDEZVOUS=host:port on every rank".to_owned()];
            Check { state: State::Bad, ..check(area, "rendezvous", finding, advice) }
        }
    }
}

fn shared_memory(facts: &Facts) -> Check {
    const NAME: &str = "shared memory";
    let room = match facts.shm {
        Some((free, total)) => {
            format!("/dev/shm has {} of {} free", words::bytes(free), words::bytes(total))
        }
        None => "there is no /dev/shm".to_owned(),
    };
    if let Err(error) = &facts.memfd {
        let advice = vec!["allow memfd_create; without it ranks of one host use TCP".to_owned()];
        return check("Transports", NAME, format!("memfd_create fails: {error}; {room}"), advice);
    }
    let mut advice = Vec::new();
    if facts.shm.is_some_and(|(_, total)| total < SHM) {
        advice
            .push("Railnet does not need it, PyTorch's data loaders do: docker run --shm-size=8g".to_owned());
    }
    check("Transports", NAME, format!("memfd works; {room}"), advice)
}

fn tcp(facts: &Facts) -> Check {
    let (area, name) = ("Transports", "TCP");
    let mut texts: Vec<String> = facts.interfaces.iter().take(INTERFACES_MAX).map(interface).collect();
    if facts.interfaces.len() > INTERFACES_MAX {
        texts.push(format!("{} more", facts.interfaces.len() - INTERFACES_MAX));
    }
    if facts.interfaces.is_empty() {
        let advice = vec!["bring one up: ip link set lo up".to_owned()];
        let finding = "no interface has an address".to_owned();
        return Check { state: State::Bad, ..check(area, name, finding, advice) };
    }
    let mut advice = Vec::new();
    if facts.interfaces.iter().all(|one| one.is_loopback) {
        advice.push("only this host can be reached: other nodes need another interface".to_owned());
    }
    check(area, name, texts.join(" · "), advice)
}

fn interface(one: &Interface) -> String {
    // Link-local addresses are of use only together with an interface, and so not shown.
    let is_shown = |address: &&std::net::IpAddr| match address {
        std::net::IpAddr::V4(_) => true,
        std::net::IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let addresses: Vec<String> = one.addresses.iter().filter(is_shown).map(ToString::to_string).collect();
    let mut text = format!("{} {}", one.name, addresses.join(", "));
    if let Some(mtu) = one.mtu.filter(|_| !one.is_loopback) {
        let _ = write!(text, " (MTU {mtu})");
    }
    text
}

fn roce(facts: &Facts) -> Check {
    let mut advice = Vec::new();
    let port = match &facts.roce_port {
        Ok(()) => "port 4791 is free".to_owned(),
        Err(error) => {
            let owners = &facts.roce_owners;
            let names: Vec<String> =
                owners.iter().take(OWNERS_MAX).map(|one| format!("{} (pid {})", one.name, one.pid)).collect();
            let more = if owners.len() > names.len() {
                format!(" and {} more", owners.len() - names.len())
            } else {
                String::new()
            };
            let all = names.join(", ") + &more;
            if owners.is_empty() {
                advice.push(
                    "something has port 4791: foreign peers cannot call, ranks use ports of their own"
                        .to_owned(),
                );
                format!("port 4791 cannot be bound ({error})")
            } else if owners.iter().all(|one| one.is_railnet) {
                format!("port 4791 is in use by Railnet: {all}")
            } else {
                advice.push(format!(
                    "{all} has port 4791: foreign peers cannot call, ranks use ports of their own"
                ));
                format!("port 4791 cannot be bound ({error})")
            }
        }
    };
    let ability = |name: &str, segments: usize| match segments {
        0 | 1 => format!("no {name}"),
        some => format!("{name} {some} packets"),
    };
    if facts.segments_sent <= 1 || facts.segments_received <= 1 {
        advice.push(
            "GSO and GRO for UDP need Linux 5.0 or newer; without them large messages are slow".to_owned(),
        );
    }
    let finding = format!(
        "{port}; {}, {}; ranks use it with RAILNET_CONDUIT=roce",
        ability("GSO", facts.segments_sent),
        ability("GRO", facts.segments_received)
    );
    check("Transports", "RoCEv2 over UDP", finding, advice)
}

fn buffers(facts: &Facts) -> Check {
    let text = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), words::bytes);
    let (receive, send) = (facts.limits.receive_buffer, facts.limits.send_buffer);
    let mut advice = Vec::new();
    for (name, size) in [("rmem_max", receive), ("wmem_max", send)] {
        if size.is_some_and(|size| size < SOCKET_BUFFER) {
            advice.push(format!("sysctl -w net.core.{name}={SOCKET_BUFFER}"));
        }
    }
    let finding = format!("at most {} to receive, {} to send", text(receive), text(send));
    check("Limits", "socket buffers", finding, advice)
}

fn files(facts: &Facts) -> Check {
    let (soft, hard) = (facts.limits.open_files, facts.limits.open_files_hard);
    let text = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), words::grouped);
    let mut advice = Vec::new();
    if soft.is_some_and(|soft| soft < OPEN_FILES) {
        let is_enough = hard.is_none_or(|hard| hard >= OPEN_FILES);
        advice.push(if is_enough {
            format!("more than a few hundred ranks need more: ulimit -n {OPEN_FILES}")
        } else {
            format!("more than a few hundred ranks need more: raise nofile in limits.conf to {OPEN_FILES}")
        });
    }
    check("Limits", "open files", format!("{} (up to {})", text(soft), text(hard)), advice)
}

fn locked(facts: &Facts) -> Check {
    let limit = facts.limits.locked_memory;
    let text = limit.map_or_else(|| "unlimited".to_owned(), words::bytes);
    check("Limits", "locked memory", format!("{text}; Railnet locks none"), Vec::new())
}

fn cores(facts: &Facts) -> Check {
    let cores = facts.cores;
    let mut finding = format!("{} of {} may be used", cores.usable, cores.online);
    let mut advice = Vec::new();
    if let Ok(launch) = &facts.launch
        && let Some(local) = launch.local_size.filter(|local| *local as usize > cores.usable)
    {
        let _ = write!(finding, ", by {local} ranks");
        advice.push("ranks that wait give up their core, but fewer ranks would be faster".to_owned());
    }
    check("Limits", "cores", finding, advice)
}

fn memory(facts: &Facts) -> Check {
    let text = |bytes: u64| words::bytes(bytes);
    let total = facts.memory.total.map_or_else(|| "unknown".to_owned(), text);
    let finding = match facts.memory.limit {
        Some(limit) => format!("{total}, of which this control group may use {}", text(limit)),
        None => format!("{total}, no limit for this control group"),
    };
    check("Limits", "memory", finding, Vec::new())
}

#[cfg(test)]
mod tests {
    use railnet_core::Rank;
    use railnet_live::host::{Cores, Limits, Memory};
    use railnet_live::launch::LaunchError;

    use super::super::owner::Owner;
    use super::*;

    fn good() -> Facts {
        let interface = |name: &str, address: &str| Interface {
            name: name.to_owned(),
            addresses: vec![address.parse().unwrap()],
            mtu: Some(1500),
            rate_mbps: None,
            is_loopback: name == "lo",
        };
        Facts {
            host: "here".to_owned(),
            system: "Linux".to_owned(),
            launch: Ok(Launch::alone()),
            memfd: Ok(()),
            shm: Some((8 << 30, 8 << 30)),
            interfaces: vec![interface("lo", "127.0.0.1"), interface("eth0", "10.0.0.1")],
            roce_port: Ok(()),
            roce_owners: Vec::new(),
            segments_sent: 64,
            segments_received: 64,
            limits: Limits {
                receive_buffer: Some(16 << 20),
                send_buffer: Some(16 << 20),
                backlog: Some(4096),
                locked_memory: None,
                open_files: Some(1 << 20),
                open_files_hard: Some(1 << 20),
            },
            cores: Cores { online: 8, usable: 8 },
            memory: Memory { total: Some(32 << 30), limit: None },
        }
    }

    /// What is not in order: names, states, and all advice in one text.
    fn trouble(change: impl FnOnce(&mut Facts)) -> (Vec<(&'static str, State)>, String) {
        let mut facts = good();
        change(&mut facts);
        let found: Vec<Check> = of(&facts).into_iter().filter(|check| check.state != State::Ok).collect();
        let texts: Vec<String> =
            found.iter().map(|check| format!("{}: {}", check.finding, check.advice.join("; "))).collect();
        (found.iter().map(|check| (check.name, check.state)).collect(), texts.join("\n"))
    }

    #[test]
    fn a_good_machine_needs_nothing() {
        assert_eq!(trouble(|_| ()).0, []);
    }

    #[test]
    fn each_trouble_has_its_line_and_its_remedy() {
        let (names, text) = trouble(|facts| facts.limits.receive_buffer = Some(212_992));
        assert_eq!(names, [("socket buffers", State::Warn)]);
        assert!(
            text.contains("213 KB to receive") && text.contains("sysctl -w net.core.rmem_max=4194304"),
            "{text}"
        );
        let (names, text) = trouble(|facts| facts.shm = Some((64 << 20, 64 << 20)));
        assert_eq!(names, [("shared memory", State::Warn)]);
        assert!(text.contains("--shm-size"), "{text}");
        let (names, _) = trouble(|facts| facts.memfd = Err("Function not implemented".to_owned()));
        assert_eq!(names, [("shared memory", State::Warn)]);
        let (names, text) = trouble(|facts| facts.segments_received = 1);
        assert_eq!(names, [("RoCEv2 over UDP", State::Warn)]);
        assert!(text.contains("GSO 64 packets, no GRO"), "{text}");
        let (names, _) = trouble(|facts| facts.roce_port = Err("in use".to_owned()));
        assert_eq!(names, [("RoCEv2 over UDP", State::Warn)]);
        let owned = |is_railnet: bool| {
            trouble(|facts| {
                facts.roce_port = Err("in use".to_owned());
                facts.roce_owners = vec![Owner { pid: 7, name: "rank".to_owned(), is_railnet }];
            })
        };
        assert_eq!(owned(true).0, []);
        let (names, text) = owned(false);
        assert_eq!(names, [("RoCEv2 over UDP", State::Warn)]);
        assert!(text.contains("rank (pid 7) has port 4791"), "{text}");
        let (names, _) = trouble(|facts| facts.interfaces.truncate(1));
        assert_eq!(names, [("TCP", State::Warn)]);
        let (names, _) = trouble(|facts| facts.interfaces.clear());
        assert_eq!(names, [("TCP", State::Bad)]);
        let (_, text) = trouble(|facts| facts.limits.open_files = Some(1024));
        assert!(text.contains("ulimit -n 4096"), "{text}");
    }

    #[test]
    fn a_launch_that_cannot_work_is_bad() {
        let incomplete = LaunchError::UnknownLauncher("x".to_owned());
        assert_eq!(trouble(|facts| facts.launch = Err(incomplete)).0, [("launcher", State::Bad)]);
        let nowhere = Launch { launcher: Launcher::OpenMpi, world_size: 2, rank: Rank(1), ..Launch::alone() };
        let (names, text) = trouble(|facts| facts.launch = Ok(nowhere));
        assert_eq!(names, [("rendezvous", State::Bad)]);
        assert!(text.contains("RAILNET_RENDEZVOUS"), "{text}");
        let many =
            Launch { launcher: Launcher::Mpich, world_size: 9, local_size: Some(9), ..Launch::alone() };
        assert_eq!(trouble(|facts| facts.launch = Ok(many)).0.last(), Some(&("cores", State::Warn)));
    }
}
