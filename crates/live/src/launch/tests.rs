//! Launchers by the variables that they set. Those of Slurm 22.05 and Open MPI 4.1 were recorded from real runs.

use super::*;

fn launch(variables: &[(&str, &str)]) -> Result<Launch, LaunchError> {
    let find = |name: &str| {
        let found = variables.iter().find(|(other, _)| *other == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    detect(&find, 77)
}

const TORCHRUN: [(&str, &str); 10] = [
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("GROUP_RANK", "1"),
    ("MASTER_ADDR", "node01"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "none"),
    ("TORCHELASTIC_RESTART_COUNT", "0"),
    ("OMP_NUM_THREADS", "1"),
];

// Task 2 of `srun -N2 -n3`: two tasks on the first node, one on the second.
const SLURM: [(&str, &str); 12] = [
    ("SLURM_PROCID", "2"),
    ("SLURM_NTASKS", "3"),
    ("SLURM_STEP_NUM_TASKS", "3"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "1"),
    ("SLURMD_NODENAME", "n2"),
    ("SLURM_STEP_TASKS_PER_NODE", "2,1"),
    ("SLURM_STEP_NODELIST", "n[1-2]"),
    ("SLURM_JOB_NODELIST", "n[1-2]"),
    ("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"),
    ("SLURM_JOB_ID", "1"),
    ("SLURM_STEP_ID", "0"),
];

const OPEN_MPI: [(&str, &str); 6] = [
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "1906966529"),
    ("PMIX_RANK", "1"),
];

const RAILNET: [(&str, &str); 7] = [
    ("RAILNET_RANK", "3"),
    ("RAILNET_WORLD_SIZE", "4"),
    ("RAILNET_LOCAL_RANK", "1"),
    ("RAILNET_LOCAL_SIZE", "2"),
    ("RAILNET_NODE", "1"),
    ("RAILNET_RENDEZVOUS", "[::1]:4000"),
    ("RAILNET_JOB", "abc"),
];

#[test]
fn each_launcher_is_read_by_its_own_variables() {
    let numbers = |one: &Launch| (one.rank.0, one.world_size, one.local_rank, one.local_size, one.node);
    let found = launch(&RAILNET).unwrap();
    assert_eq!((found.launcher, numbers(&found)), (Launcher::Railnet, (3, 4, Some(1), Some(2), Some(1))));
    assert_eq!(found.rendezvous, Some(RendezvousAddress::new("::1", 4000)));
    assert_eq!((found.host_group.as_deref(), found.job.as_str()), (Some("node1"), "abc"));

    let found = launch(&TORCHRUN).unwrap();
    assert_eq!((found.launcher, numbers(&found)), (Launcher::Torchrun, (5, 8, Some(1), Some(4), Some(1))));
    let meeting = found.rendezvous.unwrap();
    assert_eq!(meeting.hosts, ["node01"]);
    assert_ne!(meeting.port, 29500, "PyTorch's own store listens there");

    let found = launch(&SLURM).unwrap();
    assert_eq!((found.launcher, numbers(&found)), (Launcher::Slurm, (2, 3, Some(0), Some(1), Some(1))));
    assert_eq!(found.rendezvous.unwrap().hosts, ["n1", "127.0.0.1"]);
    assert_eq!(found.host_group.as_deref(), Some("n2"));

    let found = launch(&OPEN_MPI).unwrap();
    assert_eq!((found.launcher, numbers(&found)), (Launcher::OpenMpi, (1, 2, Some(1), Some(2), None)));
    assert_eq!(found.rendezvous.unwrap().hosts, ["127.0.0.1"]);

    let mpich = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")];
    let found = launch(&mpich).unwrap();
    assert_eq!((found.launcher, numbers(&found)), (Launcher::Mpich, (0, 2, Some(0), Some(2), None)));
    assert_eq!(found.job, "pmi below 77");

    for (names, launcher) in [
        (["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"], Launcher::Mvapich),
        (["PALS_RANKID", "PALS_SIZE"], Launcher::Pals),
        (["JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"], Launcher::Jsrun),
        (["FLUX_TASK_RANK", "FLUX_JOB_SIZE"], Launcher::Flux),
    ] {
        let found = launch(&[(names[0], "1"), (names[1], "2")]).unwrap();
        assert_eq!((found.launcher, found.rank.0, found.world_size), (launcher, 1, 2));
        // Without a word about hosts, there is no place to meet.
        assert_eq!(found.rendezvous, None);
    }
}

#[test]
fn the_first_complete_launcher_wins_and_a_name_overrides() {
    let all = [&RAILNET[..], &TORCHRUN, &SLURM, &OPEN_MPI].concat();
    assert_eq!(launch(&all).unwrap().launcher, Launcher::Railnet);
    assert_eq!(launch(&[&OPEN_MPI[..], &SLURM, &TORCHRUN].concat()).unwrap().launcher, Launcher::Torchrun);
    // A lonely RANK from somewhere does not hide Slurm.
    assert_eq!(launch(&[&[("RANK", "0")][..], &SLURM].concat()).unwrap().launcher, Launcher::Slurm);
    for (name, launcher) in
        [("slurm", Launcher::Slurm), ("openmpi", Launcher::OpenMpi), ("alone", Launcher::Alone)]
    {
        let named = [&all[..], &[("RAILNET_LAUNCHER", name)]].concat();
        assert_eq!(launch(&named).unwrap().launcher, launcher);
    }
    // A port of one's own, a place of one's own.
    let moved = launch(&[&SLURM[..], &[("RAILNET_PORT", "999")]].concat()).unwrap();
    assert_eq!(moved.rendezvous.unwrap().port, 999);
    let moved = launch(&[&SLURM[..], &[("RAILNET_RENDEZVOUS", "head:999")]].concat()).unwrap();
    assert_eq!(moved.rendezvous, Some(RendezvousAddress::new("head", 999)));
}

#[test]
fn without_a_launcher_a_process_is_alone() {
    assert_eq!(launch(&[]).unwrap(), Launch::alone());
    assert_eq!(launch(&[("RANK", "")]).unwrap(), Launch::alone());
    // A batch script: Slurm's variables, but no step.
    let batch: Vec<_> = SLURM.into_iter().filter(|(name, _)| !name.starts_with("SLURM_STEP")).collect();
    assert_eq!(launch(&batch).unwrap(), Launch::alone());
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let text = |variables: &[(&str, &str)]| launch(variables).unwrap_err().to_string();
    let cases: [(&[(&str, &str)], &str); 10] = [
        (&[("RANK", "0"), ("LOCAL_RANK", "0")], "RANK is set but WORLD_SIZE is not: torchrun sets both"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], "RANK is set but LOCAL_RANK is not: Kubernetes' PyTorchJob"),
        (&[("PMI_RANK", "0")], "PMI_RANK is set but PMI_SIZE is not"),
        (
            &[("OMPI_COMM_WORLD_RANK", "x"), ("OMPI_COMM_WORLD_SIZE", "2")],
            "OMPI_COMM_WORLD_RANK is \"x\": a whole number is needed",
        ),
        (&[("PMI_RANK", "2"), ("PMI_SIZE", "2")], "PMI_RANK is 2, but PMI_SIZE is 2: 0 to 1 fit"),
        (&[("PMI_RANK", "0"), ("PMI_SIZE", "0")], "PMI_SIZE is 0: a world has 1 to 65536 ranks"),
        (&[("PMI_RANK", "0"), ("PMI_SIZE", "70000")], "PMI_SIZE is 70000: a world has"),
        (&[("RAILNET_LAUNCHER", "mpi")], "RAILNET_LAUNCHER is \"mpi\": one of railnet, torchrun"),
        (&[("RAILNET_LAUNCHER", "slurm")], "RAILNET_LAUNCHER is set but SLURM_PROCID is not"),
        (
            &[("RAILNET_RANK", "0"), ("RAILNET_WORLD_SIZE", "2"), ("RAILNET_RENDEZVOUS", "here")],
            "RAILNET_RENDEZVOUS is \"here\": host:port is needed",
        ),
    ];
    for (variables, part) in cases {
        assert!(text(variables).starts_with(part), "{}", text(variables));
    }
}

#[test]
fn the_tasks_of_a_node_come_from_slurms_short_form() {
    let size = |list: &str, node| slurm_local_size(&|_| Some(list.to_owned()), node);
    assert_eq!((size("3,1", 0), size("3,1", 1), size("3,1", 2)), (Some(3), Some(1), None));
    assert_eq!((size("2(x2),5", 1), size("2(x2),5", 2)), (Some(2), Some(5)));
    assert_eq!((size("2(x", 0), size("", 0)), (None, None));
    // A cluster that says only how many a node has.
    let sparse = [
        ("SLURM_PROCID", "3"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_NNODES", "2"),
        ("SLURM_NTASKS_PER_NODE", "2"),
    ];
    assert_eq!(launch(&sparse).unwrap().world_size, 4);
}

#[test]
fn places_to_meet_are_read() {
    assert_eq!(RendezvousAddress::parse("a:1"), Some(RendezvousAddress::new("a", 1)));
    assert_eq!(RendezvousAddress::parse("[fd00::1]:80"), Some(RendezvousAddress::new("fd00::1", 80)));
    assert_eq!(RendezvousAddress::parse("[fd00::1]:80").unwrap().to_string(), "[fd00::1]:80");
    for wrong in ["", "a", "a:", "a:0", "a:65536", ":1", "fd00::1", "fd00::1:80", "[]:1"] {
        assert_eq!(RendezvousAddress::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn lists_of_hosts_are_expanded() {
    let list = |text: &str| expand(text, 100).map(|hosts| hosts.join(" "));
    assert_eq!(list("n1").unwrap(), "n1");
    assert_eq!(list("n[1-3,7],login").unwrap(), "n1 n2 n3 n7 login");
    assert_eq!(list("gpu[08-10]-ib").unwrap(), "gpu08-ib gpu09-ib gpu10-ib");
    assert_eq!(list("r[1-2]n[1-2]").unwrap(), "r1n1 r1n2 r2n1 r2n2");
    assert_eq!(list("").unwrap(), "");
    assert_eq!(expand("n[1-999999999]", 2).unwrap(), ["n1", "n2"]);
    for wrong in ["n[1", "n1]", "n[[1]]", "n[]", "n[a]", "n[3-1]", "n[1-]", "n[99999999999999999999999]"] {
        assert!(expand(wrong, 10).is_err(), "{wrong}");
    }
}
