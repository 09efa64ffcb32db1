//! Ranks that meet over real sockets, in threads: together, with something wrong, and among unauthenticated peers.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use railnet_core::Rank;
use railnet_live::control::{Absence, NoticeKind};
use railnet_live::launch::{Launch, Launcher, RendezvousAddress};
use railnet_live::message::{Message, Trouble, TroubleKind, preamble, preamble_of};
use railnet_live::rendezvous::{Config, MeetError, Reminders, meet};
use railnet_live::{Control, Secret};

/// Longer than anything takes that goes well.
const LONG: Duration = Duration::from_secs(20);
/// For what shall not come.
const SHORT: Duration = Duration::from_millis(300);
/// For what shall not come, where the others have to come first.
const AFTER_OTHERS: Duration = Duration::from_secs(4);

/// A port that was free a moment ago.
fn free_port() -> u16 {
    railnet_live::launch::free_port().unwrap()
}

fn config(rank: u32, world_size: u32, port: u16) -> Config {
    let launch = Launch {
        launcher: Launcher::Torchrun,
        rank: Rank(rank),
        world_size,
        rendezvous: Some(RendezvousAddress::new("127.0.0.1", port)),
        job: "test".to_owned(),
        ..Launch::alone()
    };
    Config { limit: LONG, ..Config::new(&launch) }
}

fn configs(world_size: u32) -> Vec<Config> {
    let port = free_port();
    (0..world_size).map(|rank| config(rank, world_size, port)).collect()
}

/// Lets every rank meet and then do something, each in a thread of its own.
fn all<T: Send>(configs: &[Config], work: impl Fn(Result<Control, MeetError>, u32) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let start = |config: &Config| {
            let (config, work) = (config.clone(), &work);
            scope.spawn(move || work(meet(&config, &[config.rank.0 as u8; 3]), config.rank.0))
        };
        let ranks: Vec<_> = configs.iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn trouble(outcome: Result<Control, MeetError>) -> Trouble {
    match outcome.map(|control| control.leave(LONG)) {
        Err(MeetError::Trouble(trouble)) => trouble,
        other => panic!("{other:?}"),
    }
}

#[test]
fn everybody_gets_everybodys_blob_and_exchanges_work() {
    let outcomes = all(&configs(5), |control, rank| {
        let control = control.unwrap();
        let blobs: Vec<u8> = control.members().iter().map(|member| member.blob[0]).collect();
        assert_eq!((control.rank().0, blobs), (rank, vec![0, 1, 2, 3, 4]));
        assert_eq!(control.members()[rank as usize].pid, std::process::id());
        for round in 0..10_u8 {
            let gathered = control.all_gather("round", &[rank as u8 * 10, round], LONG).unwrap();
            assert_eq!(gathered, (0..5).map(|rank| vec![rank * 10, round]).collect::<Vec<_>>());
            control.barrier(LONG).unwrap();
        }
        if rank == 3 {
            control.put("where", b"here").unwrap();
        }
        assert_eq!(control.get("where", LONG).unwrap(), b"here");
        control.barrier(LONG).unwrap();
        control.leave(LONG);
    });
    assert_eq!(outcomes.len(), 5);
}

#[test]
fn one_rank_meets_itself() {
    let control = meet(&Config::new(&Launch::alone()), b"me").unwrap();
    assert_eq!(control.all_gather("x", b"y", LONG).unwrap(), [b"y"]);
    control.put("a", b"b").unwrap();
    assert_eq!(control.get("a", LONG).unwrap(), b"b");
    assert!(control.get("c", SHORT).unwrap_err().to_string().contains("nobody has put a value under \"c\""));
    control.leave(LONG);
}

#[test]
fn missing_ranks_are_listed_on_every_rank() {
    let mut configs: Vec<Config> =
        configs(5).into_iter().filter(|config| config.rank.0 != 2 && config.rank.0 != 4).collect();
    // One has less patience than the others, which all end with it.
    configs[1].limit = AFTER_OTHERS;
    for trouble in all(&configs, |control, _| trouble(control)) {
        assert_eq!((trouble.kind, &trouble.ranks[..]), (TroubleKind::Missing, &[2, 4][..]));
        assert!(trouble.text.starts_with("ranks 2 and 4 of 5 are missing after"), "{}", trouble.text);
    }
}

/// Reminders that come at once, and what they said.
fn collected() -> (Reminders, Arc<Mutex<Vec<String>>>) {
    let said = Arc::new(Mutex::new(Vec::new()));
    let into = Arc::clone(&said);
    let mut reminders = Reminders::new(move |text| into.lock().unwrap().push(text.to_owned()));
    (reminders.first, reminders.every) = (Duration::ZERO, LONG);
    (reminders, said)
}

#[test]
fn a_rank_that_waits_says_for_whom_and_what_sets_the_limit() {
    let (reminders, said) = collected();
    let mut configs = configs(4);
    configs.retain(|config| [0, 1].contains(&config.rank.0));
    for config in &mut configs {
        (config.limit, config.reminders) = (AFTER_OTHERS, reminders.clone());
    }
    for text in all(&configs, |outcome, _| trouble(outcome).text) {
        assert!(text.contains("(RAILNET_TIMEOUT or RAILNET_RENDEZVOUS_LIMIT sets the limit)"), "{text}");
    }
    let said = said.lock().unwrap();
    // Rank 1 may have called before rank 0 listened, and says so then.
    let of_rank_0: Vec<&String> = said.iter().filter(|text| text.starts_with("ranks ")).collect();
    assert_eq!(of_rank_0.len(), 1, "{said:?}");
    assert!(of_rank_0[0].contains("2 and 3 of 4 are missing after "), "{said:?}");
    assert!(of_rank_0[0].contains("RAILNET_TIMEOUT"), "{said:?}");

    let (reminders, said) = collected();
    let config = Config { limit: SHORT, reminders, ..config(1, 2, free_port()) };
    assert!(matches!(meet(&config, &[]), Err(MeetError::Unreachable { .. })));
    let said = said.lock().unwrap();
    assert_eq!(said.len(), 1);
    assert!(said[0].starts_with("rank 1 has found no rank 0 at 127.0.0.1:"), "{said:?}");
}

#[test]
fn the_time_limit_of_calls_is_that_of_the_rendezvous_unless_that_has_its_own() {
    let limit = |all: &[(&str, &str)]| {
        let of = |name: &str| all.iter().find(|(one, _)| *one == name).map(|(_, text)| (*text).to_owned());
        Config::from_variables(&Launch::alone(), &of).unwrap().limit
    };
    assert_eq!(limit(&[]), Duration::from_mins(5));
    assert_eq!(limit(&[("RAILNET_TIMEOUT", "20s")]), Duration::from_secs(20));
    let both = [("RAILNET_TIMEOUT", "20s"), ("RAILNET_RENDEZVOUS_LIMIT", "7s")];
    assert_eq!(limit(&both), Duration::from_secs(7));
}

#[test]
fn a_rank_that_is_there_twice_is_named_on_every_rank() {
    let mut configs = configs(4);
    configs[3].rank = Rank(2);
    for trouble in all(&configs, |control, _| trouble(control)) {
        assert_eq!((trouble.kind, &trouble.ranks[..]), (TroubleKind::Twice, &[2][..]));
        assert!(trouble.text.contains("rank 2 is there twice: pid "), "{}", trouble.text);
    }
}

#[test]
fn a_rank_that_counts_differently_is_named_on_every_rank() {
    let mut configs = configs(3);
    configs[2].world_size = 4;
    for trouble in all(&configs, |control, _| trouble(control)) {
        assert_eq!((trouble.kind, &trouble.ranks[..]), (TroubleKind::WorldSize, &[2][..]));
        assert!(
            trouble.text.contains("was told that there are 4 ranks, rank 0 that there are 3"),
            "{}",
            trouble.text
        );
    }
}

#[test]
fn a_second_rank_0_cannot_listen() {
    let mut configs = configs(2);
    configs[1].rank = Rank(0);
    for config in &mut configs {
        config.limit = SHORT;
    }
    for is_port_held in [false, true] {
        for config in &mut configs {
            config.is_port_held = is_port_held;
        }
        let outcomes = all(&configs, |control, _| control.unwrap_err().to_string());
        let cannot =
            outcomes.iter().filter(|text| text.contains("rank 0 cannot listen at 127.0.0.1:")).count();
        assert_eq!(cannot, 1, "{outcomes:?}");
    }
}

#[test]
fn with_the_right_secret_all_meet() {
    let mut configs = configs(3);
    for config in &mut configs {
        config.secret = Secret::new(b"plum");
    }
    all(&configs, |control, _| control.unwrap().leave(LONG));
}

#[test]
fn a_wrong_secret_keeps_a_rank_out_and_is_never_printed() {
    let mut configs = configs(3);
    for config in &mut configs {
        config.secret = Secret::new(b"plum");
        config.limit = AFTER_OTHERS;
    }
    for wrong in [Secret::new(b"prune"), Secret::default()] {
        configs[1].secret = wrong;
        let troubles = all(&configs, |control, _| trouble(control));
        assert_eq!((troubles[1].kind, &troubles[1].ranks[..]), (TroubleKind::Secret, &[1][..]));
        for rank in [0, 2] {
            assert_eq!((troubles[rank].kind, &troubles[rank].ranks[..]), (TroubleKind::Missing, &[1][..]));
            assert!(troubles[rank].text.contains("has it another secret?"), "{}", troubles[rank].text);
        }
        assert!(!format!("{troubles:?} {configs:?}").contains("plum"));
    }
}

#[test]
fn another_version_is_refused_in_words_and_named() {
    let configs = configs(2);
    let port = configs[0].rendezvous.as_ref().unwrap().port;
    let troubles = thread::scope(|scope| {
        let hub = scope.spawn(|| all(&configs[..1], |control, _| trouble(control)));
        let mut stream = call(port);
        let other = railnet_live::message::VERSION + 1;
        stream.write_all(&preamble_of(other)).unwrap();
        let mut hello = Vec::new();
        hello.extend([1, 0, 0, 0, 2, 0, 0, 0]);
        let mut frame = vec![9, 0, 0, 0, 1];
        frame.extend(hello);
        stream.write_all(&frame).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let words = format!("rank 1 speaks version {other}");
        assert!(String::from_utf8_lossy(&answer).contains(&words), "{answer:?}");
        hub.join().unwrap()
    });
    assert_eq!((troubles[0].kind, &troubles[0].ranks[..]), (TroubleKind::Version, &[1][..]));
}

/// Connects as soon as somebody listens.
fn call(port: u16) -> TcpStream {
    let deadline = Instant::now() + LONG;
    loop {
        match TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))) {
            Ok(stream) => {
                stream.set_read_timeout(Some(LONG)).unwrap();
                return stream;
            }
            Err(_) if Instant::now() < deadline => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn unauthenticated_peers_and_garbage_are_counted_and_change_nothing() {
    let configs = configs(3);
    let port = configs[0].rendezvous.as_ref().unwrap().port;
    thread::scope(|scope| {
        let hub = scope.spawn(|| all(&configs[..1], |control, _| control.map(|control| control.leave(LONG))));
        let silent = call(port);
        let mut web = call(port);
        web.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(web.read(&mut [0; 100]).unwrap_or(0), preamble().len());
        // Begins well, and then claims a frame of 4 GB.
        let mut liar = call(port);
        liar.write_all(&preamble()).unwrap();
        liar.write_all(&[0xff; 40]).unwrap();
        let mut bytes = Vec::new();
        let _ = liar.read_to_end(&mut bytes);
        // Another job's rank is told so.
        let mut lost = configs[1].clone();
        lost.job = "another".to_owned();
        let refused = trouble(meet(&lost, b""));
        assert_eq!(refused.kind, TroubleKind::Job);
        drop(call(port));
        all(&configs[1..], |control, _| control.unwrap().leave(LONG));
        for outcome in hub.join().unwrap() {
            outcome.unwrap();
        }
        drop(silent);
    });
}

#[test]
fn all_kinds_of_addresses_will_do() {
    // By a name, rank 0 listens on all addresses, in both versions of IP.
    for (here, there) in
        [("::1", "::1"), ("localhost", "localhost"), ("some-name", "127.0.0.1"), ("some-name", "::1")]
    {
        if there == "::1" && TcpListener::bind("[::1]:0").is_err() {
            continue;
        }
        let mut configs = configs(2);
        configs[0].rendezvous.as_mut().unwrap().hosts = vec![here.to_owned()];
        configs[1].rendezvous.as_mut().unwrap().hosts = vec![there.to_owned()];
        all(&configs, |control, _| control.unwrap().leave(LONG));
    }
}

#[test]
fn a_rank_finds_rank_0_behind_a_name_that_means_nothing_and_a_late_start() {
    let mut configs = configs(2);
    for config in &mut configs {
        config.rendezvous.as_mut().unwrap().hosts.insert(0, "no-such-host.invalid".to_owned());
    }
    thread::scope(|scope| {
        let early = scope.spawn(|| meet(&configs[1], b"").unwrap().leave(LONG));
        // It calls in vain at first: nobody listens yet.
        thread::yield_now();
        meet(&configs[0], b"").unwrap().leave(LONG);
        early.join().unwrap();
    });
}

#[test]
fn nobody_there_is_an_error_that_says_where() {
    let config = Config { limit: SHORT, ..config(1, 2, free_port()) };
    let text = meet(&config, b"").unwrap_err().to_string();
    assert!(text.starts_with("rank 1 found nobody at 127.0.0.1:"), "{text}");
    let config = Config { rendezvous: None, ..config };
    assert!(meet(&config, b"").unwrap_err().to_string().contains("set RAILNET_RENDEZVOUS=host:port"));
}

#[test]
fn a_lost_rank_is_named_to_all_others_and_ends_what_waits_for_it() {
    let outcomes = all(&configs(4), |control, rank| {
        let control = control.unwrap();
        if rank == 2 {
            // Its process would end here: nothing is said.
            drop(control);
            return String::new();
        }
        let error = control.barrier(LONG).unwrap_err().to_string();
        let notice = control.wait_notice(LONG).unwrap();
        assert_eq!((notice.rank, notice.kind), (Rank(2), NoticeKind::Lost));
        let cause = "its connection was closed".to_owned();
        assert!(control.absent().contains(&(Rank(2), Absence::Lost(cause))));
        control.leave(LONG);
        error
    });
    for error in [&outcomes[0], &outcomes[1], &outcomes[3]] {
        assert_eq!(error, "exchange \"barrier\": rank 2 is gone (rank 2: its connection was closed)");
    }
}

#[test]
fn the_end_of_rank_0_is_noticed_by_all() {
    let outcomes = all(&configs(3), |control, rank| {
        let control = control.unwrap();
        if rank == 0 {
            drop(control);
            return String::new();
        }
        let notice = control.wait_notice(LONG).unwrap();
        assert_eq!((notice.rank, notice.kind), (Rank(0), NoticeKind::Lost));
        control.barrier(LONG).unwrap_err().to_string()
    });
    assert!(outcomes[1].contains("rank 0 is gone"), "{outcomes:?}");
}

#[test]
fn an_exchange_that_waits_too_long_lists_who_is_missing() {
    let outcomes = all(&configs(4), |control, rank| {
        let control = control.unwrap();
        let first = match rank {
            1 | 3 => Ok(()),
            _ => control.barrier(SHORT),
        };
        // Those who come late hear the same.
        let late = match rank {
            1 | 3 => control.get("over", LONG).map(|_| ()).and_then(|()| control.barrier(LONG)),
            0 => control.put("over", b"").map(|()| first.as_ref().err().map(|_| ()).unwrap()),
            _ => Ok(()),
        };
        let text = first.err().or(late.err()).map(|error| error.to_string()).unwrap_or_default();
        control.leave(LONG);
        text
    });
    for text in &outcomes {
        assert!(text.starts_with("exchange \"barrier\": ranks 1 and 3 are missing after "), "{outcomes:?}");
    }
}

#[test]
fn ranks_that_call_for_different_things_are_named() {
    let outcomes = all(&configs(2), |control, rank| {
        let control = control.unwrap();
        let outcome = control.all_gather(if rank == 0 { "split" } else { "barrier" }, b"", LONG);
        control.leave(LONG);
        outcome.unwrap_err().to_string()
    });
    assert_eq!(outcomes[0].split_once(": ").unwrap().1, outcomes[1].split_once(": ").unwrap().1);
    assert!(outcomes[0].contains("\"split\"") && outcomes[0].contains("\"barrier\""), "{outcomes:?}");
}

#[test]
fn a_notice_reaches_all_others_once() {
    all(&configs(4), |control, rank| {
        let control = control.unwrap();
        if rank == 1 {
            control.notify(NoticeKind::Abort, b"out of memory");
        } else {
            let notice = control.wait_notice(LONG).unwrap();
            assert_eq!(notice.to_string(), "rank 1 aborts: out of memory");
        }
        // Nobody leaves before all have looked.
        control.barrier(LONG).unwrap();
        assert_eq!((control.has_notice(), control.try_notice()), (false, None));
        control.barrier(LONG).unwrap();
        control.leave(LONG);
    });
}

/// Two ranks, of which rank 1 calls through a go-between: `work` gets both, a gate that holds back what rank 1 says while
/// it is locked, and the connection that rank 0 takes for rank 1's.
fn with_a_go_between(mut configs: Vec<Config>, work: impl Fn(Control, Control, &Mutex<()>, &TcpStream)) {
    let port = configs[0].rendezvous.as_ref().unwrap().port;
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    configs[1].rendezvous = Some(RendezvousAddress::new("127.0.0.1", between.local_addr().unwrap().port()));
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let ranks: Vec<_> = configs.iter().map(|config| scope.spawn(|| meet(config, b"").unwrap())).collect();
        let (near, _) = between.accept().unwrap();
        let far = call(port);
        far.set_read_timeout(None).unwrap();
        let pump = |mut from: TcpStream, mut to: TcpStream, gate: Option<&Mutex<()>>| {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                drop(gate.map(|gate| gate.lock().unwrap()));
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        };
        let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        scope.spawn(move || pump(far_too, near_too, None));
        let (far_too, gate) = (far.try_clone().unwrap(), &gate);
        scope.spawn(move || pump(near, far_too, Some(gate)));
        let mut ranks = ranks.into_iter().map(|rank| rank.join().unwrap());
        work(ranks.next().unwrap(), ranks.next().unwrap(), gate, &far);
    });
}

#[test]
fn a_rank_that_stands_still_is_reported_and_so_is_its_return() {
    let mut configs = configs(2);
    configs[0].silence = Duration::from_millis(100);
    configs[1].silence = Duration::from_millis(100);
    with_a_go_between(configs, |hub, rank, gate, _| {
        let held = gate.lock().unwrap();
        let notice = hub.wait_notice(LONG).unwrap();
        assert_eq!((notice.rank, notice.kind), (Rank(1), NoticeKind::Silent));
        assert!(hub.barrier(SHORT).unwrap_err().to_string().ends_with("no sign of life from rank 1"));
        assert_eq!(hub.absent(), [(Rank(1), Absence::Silent)]);
        drop(held);
        let notice = hub.wait_notice(LONG).unwrap();
        assert_eq!((notice.rank, notice.kind), (Rank(1), NoticeKind::Heard));
        rank.leave(LONG);
        hub.leave(LONG);
    });
}

/// Somebody between two ranks who knows the protocol and not the secret puts in what a rank could say.
#[test]
fn a_message_that_was_put_in_is_recognized_where_there_is_a_secret() {
    let mut abort = Vec::new();
    let body = b"forged".to_vec();
    Message::Notice { from: 1, kind: 0, body }.write(&mut abort);
    for secret in [&b""[..], b"apple"] {
        let mut configs = configs(2);
        for config in &mut configs {
            config.secret = Secret::new(secret);
        }
        with_a_go_between(configs, |hub, rank, _, mut far| {
            far.write_all(&abort).unwrap();
            let notice = hub.wait_notice(LONG).unwrap();
            if secret.is_empty() {
                assert_eq!(
                    (notice.rank, &notice.body[..]),
                    (Rank(1), &b"forged"[..]),
                    "the attack is a real one"
                );
            } else {
                let text = "rank 1 is lost: it sent a message that was forged or changed on its way";
                assert_eq!(notice.to_string(), text);
            }
            rank.leave(LONG);
            hub.leave(LONG);
        });
    }
}

/// Greetings of all kinds that are none, to a rendezvous without a secret, which goes on.
#[test]
fn malformed_greetings_do_not_end_a_rendezvous_without_a_secret() {
    let configs = configs(2);
    let port = configs[0].rendezvous.as_ref().unwrap().port;
    thread::scope(|scope| {
        let hub = scope.spawn(|| meet(&configs[0], b"hub").unwrap());
        let mut random = railnet_core::Random::from_seed(9);
        let mut hello = preamble().to_vec();
        Message::Ping.write(&mut hello);
        let mut other = preamble_of(99).to_vec();
        other.extend([20, 0, 0, 0, 1, 7, 0, 0, 0, 200, 0, 0, 0]);
        let mut greetings = vec![hello, other];
        for length in 0..200 {
            let mut bytes = preamble().to_vec();
            bytes.extend((0..length).map(|_| random.next_u32() as u8));
            greetings.push(bytes);
        }
        // Some say nothing and stay.
        let idle: Vec<_> = (0..60).map(|_| call(port)).collect();
        for bytes in &greetings {
            // One that was not taken for a rank may be closed already.
            let _ = call(port).write_all(bytes);
        }
        let rank = meet(&configs[1], b"rank").unwrap();
        let hub = hub.join().unwrap();
        rank.leave(LONG);
        hub.leave(LONG);
        drop(idle);
    });
}

#[test]
fn a_rank_that_begins_to_talk_nonsense_is_lost() {
    with_a_go_between(configs(2), |hub, rank, _, mut far| {
        // A whole frame of a kind that nobody knows.
        far.write_all(&[1, 0, 0, 0, 99]).unwrap();
        let notice = hub.wait_notice(LONG).unwrap();
        assert_eq!(notice.to_string(), "rank 1 is lost: it sent a message of unknown kind 99");
        let notice = rank.wait_notice(LONG).unwrap();
        assert_eq!((notice.rank, notice.kind), (Rank(0), NoticeKind::Lost));
        hub.leave(LONG);
    });
}
