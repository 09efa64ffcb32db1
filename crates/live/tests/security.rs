//! What ranks of a job promise against those that do not belong to it (docs/security.md), attacked from outside.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stderr, reason = "a test that is left out says so")]

mod world;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use railnet_core::ReduceOp;
use railnet_live::communicator::{Options, RoceOptions};
use railnet_live::{Authentication, Conduit, Secret};
use world::{LONG, configs, world, world_of, world_with};

fn options(conduit: Conduit) -> Options {
    Options {
        limit: LONG,
        conduit: Some(conduit),
        authentication: Authentication::Always,
        ..Options::default()
    }
}

fn secret(text: &[u8], ranks: u32) -> Vec<railnet_live::rendezvous::Config> {
    let mut configs = configs(ranks);
    for config in &mut configs {
        config.secret = Secret::new(text);
    }
    configs
}

#[test]
fn authenticated_ranks_get_right_results_over_every_conduit() {
    for conduit in [Conduit::SharedMemory, Conduit::Tcp, Conduit::Roce] {
        let refused = world_of(&secret(b"apple", 3), &options(conduit), |world| {
            for count in [0, 1, 13, 1000, 50_000, 300_000] {
                let mut data: Vec<u64> = (0..count).map(|index| index + world.rank() as u64).collect();
                world.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
                assert!(
                    (0..count).zip(&data).all(|(index, found)| *found == 3 * index + 3),
                    "{conduit}, {count}"
                );
                let mut all = vec![0; 3 * data.len()];
                world.all_gather(&data, &mut all).unwrap();
                assert!(all.chunks(data.len().max(1)).all(|part| part == data), "{conduit}, {count}");
            }
            let window = world.window::<u32>(100_000).unwrap();
            let next = (world.rank() + 1) % 3;
            let data: Vec<u32> = (0..100_000).map(|index| index + world.rank() as u32).collect();
            window.put_signal(next, 0, &data).unwrap();
            let before = (world.rank() + 2) % 3;
            window.wait_signal(before, 1).unwrap();
            let mut found = vec![0; 100_000];
            window.read(0, &mut found).unwrap();
            assert!(
                (0..100_000).zip(&found).all(|(index, found)| *found == index + before as u32),
                "{conduit}"
            );
            world.barrier().unwrap();
            let mut fetched = vec![0; 100_000];
            window.get(next, 0, &mut fetched).unwrap();
            assert!(fetched == data, "{conduit}");
            world.barrier().unwrap();
            window.close().unwrap();
            world.unauthenticated_refused()
        });
        assert_eq!(refused, [0, 0, 0], "{conduit}");
    }
}

#[test]
fn what_is_lost_or_doubled_on_the_way_changes_nothing_for_authenticated_ranks() {
    let faults = "drop=0.05,reorder=0.05,corrupt=0.05,duplicate=0.05,seed=7".parse().unwrap();
    let roce = RoceOptions { faults, ..RoceOptions::default() };
    world_of(&secret(b"apple", 2), &Options { roce, ..options(Conduit::Roce) }, |world| {
        for count in [1, 13, 1000, 50_000] {
            let mut data = vec![1_u32; count];
            world.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
            assert!(data.iter().all(|one| *one == 2), "{count}");
        }
    });
}

/// All that goes along the control connection of two ranks, which meet through this test.
fn overheard(configs: &mut [railnet_live::rendezvous::Config]) -> (TcpListener, SocketAddr) {
    let meeting = configs[1].rendezvous.clone().unwrap();
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    configs[1].rendezvous =
        Some(railnet_live::launch::RendezvousAddress::new("127.0.0.1", between.local_addr().unwrap().port()));
    (between, SocketAddr::from(([127, 0, 0, 1], meeting.port)))
}

#[test]
fn no_secret_and_no_key_travels_at_the_rendezvous() {
    let text = b"a secret that is long enough to be found";
    let mut configs = secret(text, 2);
    let (between, hub) = overheard(&mut configs);
    let seen = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let seen = &seen;
        scope.spawn(move || {
            let near = between.accept().unwrap().0;
            // Rank 0 may not listen yet.
            let far = loop {
                match TcpStream::connect(hub) {
                    Ok(stream) => break stream,
                    Err(_) => std::thread::yield_now(),
                }
            };
            let pump = move |mut from: TcpStream, mut to: TcpStream| {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = from.read(&mut buffer) {
                    seen.lock().unwrap().extend_from_slice(&buffer[..count]);
                    if to.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Both);
            };
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            scope.spawn(move || pump(near, far_too));
            pump(far, near_too);
        });
        world_of(&configs, &options(Conduit::Tcp), |world| world.barrier().unwrap());
    });
    let seen = seen.into_inner().unwrap();
    assert!(seen.len() > 500, "{} bytes", seen.len());
    assert!(!seen.windows(8).any(|window| text.windows(8).any(|part| part == window)));
}

/// A socket at which this process listens.
#[derive(Debug)]
struct Listening {
    address: SocketAddr,
    /// The address that it is bound to, as the kernel writes it.
    bound: String,
    /// Whether it takes connections from all networks.
    is_open: bool,
    /// Connections that wait to be taken.
    waiting: u32,
}

fn listeners() -> Vec<Listening> {
    let own: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| Some(std::fs::read_link(entry.ok()?.path()).ok()?.to_string_lossy().into_owned()))
        .collect();
    let mut found = Vec::new();
    for path in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for row in std::fs::read_to_string(path).unwrap_or_default().lines().skip(1) {
            let words: Vec<&str> = row.split_whitespace().collect();
            if words[3] == "0A" && own.contains(&format!("socket:[{}]", words[9])) {
                let (address, port) = words[1].rsplit_once(':').unwrap();
                let port = u16::from_str_radix(port, 16).unwrap();
                let is_open = address.bytes().all(|byte| byte == b'0');
                let waiting = u32::from_str_radix(words[4].rsplit_once(':').unwrap().1, 16).unwrap();
                let (address, bound) = (SocketAddr::from(([127, 0, 0, 1], port)), address.to_owned());
                found.push(Listening { address, bound, is_open, waiting });
            }
        }
    }
    found
}

#[test]
fn ranks_that_meet_at_the_loopback_address_listen_nowhere_else() {
    let attempt = |world: railnet_live::Communicator| {
        world.barrier().unwrap();
        let listeners = listeners();
        assert!(listeners.len() >= 4, "{listeners:?}");
        assert!(listeners.iter().all(|one| !one.is_open), "{listeners:?}");
        world.barrier().unwrap();
    };
    world(2, Conduit::Tcp, LONG, attempt);
    world_with(2, &Options { conduit: None, ..options_off(Conduit::Tcp) }, attempt);
}

/// What leads to the rendezvous is one network of several; connections of the others find no listener.
#[test]
fn ranks_listen_at_the_address_that_leads_to_the_rendezvous_alone() {
    let interfaces = railnet_live::host::interfaces().unwrap();
    let mut own = interfaces.into_iter().filter(|one| !one.is_loopback).flat_map(|one| one.addresses);
    let Some(IpAddr::V4(address)) = own.find(IpAddr::is_ipv4) else {
        eprintln!("left out: this host has no address but loopback ones");
        return;
    };
    let bound = format!("{:08X}", u32::from_ne_bytes(address.octets()));
    let attempt = |world: railnet_live::Communicator| {
        world.barrier().unwrap();
        let listeners = listeners();
        assert!(listeners.len() >= 4, "{listeners:?}");
        assert!(listeners.iter().all(|one| one.bound == bound), "{bound}: {listeners:?}");
        world.barrier().unwrap();
        // Ranks that meet again do so at the same address.
        let again = world.rebuild_without(&[]).unwrap();
        again.barrier().unwrap();
        assert!(self::listeners().iter().all(|one| one.bound == bound), "{bound}: {:?}", self::listeners());
        again.barrier().unwrap();
    };
    let at = |bind: Option<IpAddr>| {
        let mut configs = secret(b"apple", 3);
        for config in &mut configs {
            let port = config.rendezvous.as_ref().unwrap().port;
            config.rendezvous =
                Some(railnet_live::launch::RendezvousAddress::new(&address.to_string(), port));
            config.bind = bind;
        }
        configs
    };
    for conduit in [Conduit::Tcp, Conduit::SharedMemory, Conduit::Roce] {
        world_of(&at(None), &options_off(conduit), attempt);
    }
    world_of(&at(Some(Ipv4Addr::UNSPECIFIED.into())), &options_off(Conduit::Tcp), |world| {
        world.barrier().unwrap();
        assert!(listeners().iter().any(|one| one.is_open), "RAILNET_BIND=0.0.0.0 means all addresses");
        world.barrier().unwrap();
    });
}

fn options_off(conduit: Conduit) -> Options {
    Options { authentication: Authentication::Off, ..options(conduit) }
}

/// Connections that say nothing (slow loris) and a flood of others: a rank that waits takes them in, so that they do not wake it
/// again and again, and its calls go on.
#[test]
fn a_rank_that_waits_takes_in_connections_of_others_and_its_calls_go_on() {
    world_of(&secret(b"apple", 2), &options(Conduit::SharedMemory), |world| {
        world.barrier().unwrap();
        if world.rank() == 1 {
            let mut others = Vec::new();
            for (index, one) in listeners().iter().cycle().take(400).enumerate() {
                let Ok(mut stream) = TcpStream::connect(one.address) else { continue };
                if index % 2 == 0 {
                    let _ = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
                }
                others.push(stream);
            }
            assert!(others.len() > 200, "{}", others.len());
            // Rank 0 waits in a call.
            let deadline = Instant::now() + LONG;
            while listeners().iter().all(|one| one.waiting > 0) {
                assert!(Instant::now() < deadline, "the connections were not accepted: {:?}", listeners());
                std::thread::yield_now();
            }
        }
        // The listener that was emptied first may be rank 1's own.
        let deadline = Instant::now() + LONG;
        loop {
            let has_refused = u32::from(world.rank() == 0 && world.unauthenticated_refused() > 0);
            let mut data = [1, has_refused];
            world.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
            assert_eq!(data[0], 2);
            if data[1] > 0 {
                return;
            }
            assert!(Instant::now() < deadline, "rank 0 refused no connection: {:?}", listeners());
        }
    });
}

/// The program of another user: what it can do with addresses and sockets of a job, which it finds in `/proc/net`.
#[test]
#[ignore = "the test below starts it as another user"]
fn another_user() {
    let Ok(address) = std::env::var("VICTIM") else { return };
    let address: SocketAddr = address.parse().unwrap();
    assert!(UdpSocket::bind(address).is_err(), "another user has the address of the rank's NIC");
    // It sends from the NIC's address, and from another port: all it can have.
    let attacker = UdpSocket::bind((address.ip(), 0)).unwrap();
    for number in 0..2000_u32 {
        let mut packet = [0_u8; 48];
        packet[..4].copy_from_slice(&[0x04, 0x40, 0xff, 0xff]);
        packet[5..8].copy_from_slice(&number.wrapping_mul(8191).to_be_bytes()[1..]);
        attacker.send_to(&packet, address).unwrap();
    }
    let mut asked = 0;
    for _ in 0..PASSES {
        let names = std::fs::read_to_string("/proc/net/unix").unwrap();
        let names =
            names.lines().filter_map(|line| line.split_once("@railnet-").map(|(_, name)| name.trim()));
        for name in names {
            use std::os::linux::net::SocketAddrExt as _;
            let name = std::os::unix::net::SocketAddr::from_abstract_name(format!("railnet-{name}")).unwrap();
            let Ok(mut stream) = std::os::unix::net::UnixStream::connect_addr(&name) else { continue };
            stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            // The end of the stream, or a reset: no descriptor, and no status.
            let _ = stream.write_all(&[0; 16]);
            let mut byte = [0];
            assert!(!matches!(stream.read(&mut byte), Ok(1)), "a rank handed something over");
            asked += 1;
        }
    }
    assert!(asked > 0, "there were sockets to ask");
}

/// How often the other user looks for sockets.
const PASSES: usize = 200;

#[test]
fn another_user_of_the_host_gets_nothing() {
    if !rustix::process::geteuid().is_root() {
        // Only root can start a program as another user.
        return;
    }
    // Where another user may start it: directories of the build may be closed to it.
    let program = std::env::temp_dir().join(format!("railnet-another-user-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let roce = RoceOptions { port: Some(port), ..RoceOptions::default() };
    let options = Options { roce, authentication: Authentication::Auto, ..options(Conduit::Roce) };
    let near = world_of(&secret(b"apple", 2), &options_off(Conduit::SharedMemory), |world| world);
    world_of(&secret(b"apple", 2), &options, |world| {
        world.barrier().unwrap();
        // While the ranks hand each other memory: over RoCE none, but windows of another communicator do.
        let mut attack = (world.rank() == 0).then(|| {
            let mut command = Command::new(&program);
            command.args(["--ignored", "--exact", "another_user"]).env("VICTIM", format!("127.0.0.1:{port}"));
            command.current_dir("/").uid(65_534).gid(65_534).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        });
        loop {
            let mut is_over =
                [u32::from(attack.as_mut().is_none_or(|child| child.try_wait().unwrap().is_some()))];
            world.all_reduce_in_place(&mut is_over, ReduceOp::Min).unwrap();
            let mut data = vec![1_u32; 100];
            world.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
            assert!(data.iter().all(|one| *one == 2));
            if is_over[0] == 1 {
                break;
            }
            near[world.rank()].window::<u64>(100).unwrap().close().unwrap();
        }
        if let Some(child) = attack {
            let done = child.wait_with_output().unwrap();
            let (out, errors) =
                (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
            assert!(done.status.success(), "{out}{errors}");
            assert!(world.unauthenticated_refused() > 0, "what it sent was thrown away, and counted");
        }
        world.barrier().unwrap();
    });
    std::fs::remove_file(&program).unwrap();
}

/// Under srun, mpirun or torchrun without a secret: one line of rank 0, where others than this host's processes may call.
#[test]
fn a_job_without_a_secret_says_so_once() {
    let Some(address) = own_address() else { return };
    for (host, expected) in [(address.as_str(), 1), ("127.0.0.1", 0)] {
        let said = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut configs = configs(2);
        for config in &mut configs {
            let port = config.rendezvous.as_ref().unwrap().port;
            config.rendezvous = Some(railnet_live::launch::RendezvousAddress::new(host, port));
            let said = std::sync::Arc::clone(&said);
            config.reminders = railnet_live::rendezvous::Reminders::new(move |text| {
                said.lock().unwrap().push(text.to_owned());
            });
        }
        world_of(&configs, &options_off(Conduit::Tcp), |world| world.barrier().unwrap());
        let said = said.lock().unwrap();
        assert_eq!(
            said.iter().filter(|text| text.contains("no secret (RAILNET_SECRET)")).count(),
            expected,
            "{said:?}"
        );
    }
}

/// An address of this host that is not the loopback interface's.
fn own_address() -> Option<String> {
    let interfaces = railnet_live::host::interfaces().ok()?;
    let addresses = interfaces.into_iter().filter(|one| !one.is_loopback).flat_map(|one| one.addresses);
    addresses.into_iter().find(std::net::IpAddr::is_ipv4).map(|address| address.to_string())
}
