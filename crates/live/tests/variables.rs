//! NCCL's variables between real ranks: those that mean something there do it, and wrong ones are named.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod world;

use std::thread;

use railnet_core::ReduceOp;
use railnet_live::communicator::Options;
use railnet_live::{Communicator, Conduit};
use world::{LONG, configs, world, world_with};

fn options(pairs: &[(&str, &str)]) -> Options {
    let read = Options::from_variables(&|name| {
        let found = pairs.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    });
    Options { limit: LONG, ..read.unwrap() }
}

fn refused(pairs: &[(&str, &str)]) -> String {
    let read = Options::from_variables(&|name| {
        let found = pairs.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    });
    read.unwrap_err().to_string()
}

/// Sums, gathers and scatters of a few lengths.
fn try_out(world: &Communicator) {
    let (rank, size) = (world.rank(), world.size());
    for count in [1, 1000, 100_000] {
        let mut sums = vec![rank as u64; count];
        world.all_reduce_in_place(&mut sums, ReduceOp::Sum).unwrap();
        assert!(sums.iter().all(|sum| *sum == (size * (size - 1) / 2) as u64), "sum of {count}");
        let mut all = vec![0; size * count];
        world.all_gather(&vec![rank as u64; count], &mut all).unwrap();
        let is_right = |(index, value): (usize, &u64)| *value == (index / count) as u64;
        assert!(all.iter().enumerate().all(is_right), "gather of {count}");
        let mut own = vec![0; count];
        world.reduce_scatter(&all, &mut own, ReduceOp::Max).unwrap();
        assert!(own.iter().all(|value| *value == rank as u64), "scatter of {count}");
        let mut told = vec![rank as u64; count];
        world.broadcast(&mut told, size - 1).unwrap();
        assert!(told.iter().all(|value| *value == size as u64 - 1), "broadcast of {count}");
    }
}

#[test]
fn algorithms_channels_and_buffers_are_what_was_asked_for_and_results_are_right() {
    let cases: [(&[(&str, &str)], Conduit); 8] = [
        (&[("NCCL_ALGO", "ring")], Conduit::SharedMemory),
        (&[("NCCL_ALGO", "ring;allreduce:tree")], Conduit::SharedMemory),
        (&[("NCCL_ALGO", "^ring,tree")], Conduit::Tcp),
        (&[("NCCL_NCHANNELS", "3")], Conduit::SharedMemory),
        (&[("NCCL_MIN_NCHANNELS", "4"), ("NCCL_ALGO", "ring")], Conduit::Tcp),
        (&[("NCCL_BUFFSIZE", "4096")], Conduit::SharedMemory),
        (&[("NCCL_BUFFSIZE", "100000000"), ("NCCL_IB_QPS_PER_CONNECTION", "2")], Conduit::Roce),
        (
            &[
                ("NCCL_IB_QPS_PER_CONNECTION", "4"),
                ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
                ("NCCL_IB_TC", "106"),
                ("NCCL_IB_TIMEOUT", "14"),
            ],
            Conduit::Roce,
        ),
    ];
    world(3, Conduit::SharedMemory, LONG, |world| try_out(&world));
    for (pairs, conduit) in cases {
        let options = Options { conduit: Some(conduit), ..options(pairs) };
        world_with(3, &options, |world| {
            assert_eq!(world.conduit((world.rank() + 1) % 3), conduit);
            try_out(&world);
        });
    }
}

#[test]
fn aggregated_trees_run_between_hosts_of_one_rank() {
    let options = options(&[("NCCL_ALGO", "ring;allgather:pat;reducescatter:pat")]);
    let configs = configs(3);
    thread::scope(|scope| {
        for mut config in configs {
            config.host_group = Some(format!("host{}", config.rank.0));
            let options = &options;
            scope.spawn(move || try_out(&Communicator::meet(&config, options).unwrap()));
        }
    });
}

#[test]
fn shared_memory_may_be_switched_off() {
    world_with(2, &options(&[("NCCL_SHM_DISABLE", "1")]), |world| {
        assert_eq!(world.conduit(1 - world.rank()), Conduit::Tcp);
        try_out(&world);
    });
}

#[test]
fn an_interface_is_chosen_by_its_name() {
    let options = Options { conduit: Some(Conduit::Tcp), ..options(&[("NCCL_SOCKET_IFNAME", "=lo")]) };
    world_with(2, &options, |world| try_out(&world));
    let options =
        Options { conduit: Some(Conduit::Tcp), ..self::options(&[("NCCL_SOCKET_IFNAME", "=nosuch")]) };
    let error = Communicator::meet(&configs(1)[0], &options).unwrap_err().to_string();
    assert!(error.starts_with("NCCL_SOCKET_IFNAME is \"=nosuch\": no interface with an address"), "{error}");
}

#[test]
fn what_nothing_can_do_is_an_error_and_the_communicator_goes_on() {
    world_with(2, &options(&[("NCCL_ALGO", "^ring,tree;allreduce:nvls")]), |world| {
        let error = world.all_reduce_in_place(&mut [1.0_f32], ReduceOp::Sum).unwrap_err().to_string();
        let expected = "Ring/Simple: NCCL_ALGO=^ring,tree;allreduce:nvls leaves it out";
        assert!(error.contains("can run AllReduce") && error.contains(expected), "{error}");
        world.barrier().unwrap();
        let mut all = [0; 2];
        world.all_gather(&[world.rank() as u8], &mut all).unwrap();
        assert_eq!(all, [0, 1]);
    });
}

#[test]
fn ranks_that_were_told_differently_find_out() {
    let configs = configs(2);
    thread::scope(|scope| {
        for (config, algorithm) in configs.into_iter().zip(["ring", "tree"]) {
            scope.spawn(move || {
                let options = options(&[("NCCL_ALGO", algorithm), ("RAILNET_CONDUIT", "shm")]);
                let world = Communicator::meet(&config, &options).unwrap();
                let error = world.all_reduce_in_place(&mut vec![1_u8; 1000], ReduceOp::Sum).unwrap_err();
                assert!(error.to_string().contains("ranks disagree about collective #0"), "{error}");
            });
        }
    });
}

#[test]
fn values_that_make_no_sense_are_refused_by_name() {
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[("NCCL_ALGO", "rign")], "NCCL_ALGO is \"rign\": unknown algorithm"),
        (&[("NCCL_IB_QPS_PER_CONNECTION", "9")], "processes have 8 queue pairs for a connection at most"),
        (&[("NCCL_NCHANNELS", "0")], "NCCL_NCHANNELS is \"0\": a whole number from 1 to 64 is wanted"),
        (&[("NCCL_MIN_CTAS", "5"), ("NCCL_MAX_CTAS", "4")], "NCCL_MIN_CTAS=5 is more than NCCL_MAX_CTAS=4"),
        (
            &[("NCCL_SHM_DISABLE", "1"), ("RAILNET_CONDUIT", "shm")],
            "NCCL_SHM_DISABLE is \"1\": RAILNET_CONDUIT",
        ),
        (
            &[("NCCL_IB_DISABLE", "1"), ("RAILNET_CONDUIT", "roce")],
            "NCCL_IB_DISABLE is \"1\": RAILNET_CONDUIT",
        ),
    ];
    for (pairs, expected) in cases {
        let error = refused(pairs);
        assert!(error.contains(expected), "{error}");
    }
}
