//! A rank whose kernel gives it no more threads or descriptors: an error that says so on every rank, whichever it is.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![allow(clippy::print_stdout, reason = "ranks tell the test what they see")]
#![expect(unsafe_code, reason = "the test stands between the C library and those that start threads")]

use std::ffi::{c_int, c_void};
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};

use railnet_core::ReduceOp;
use railnet_live::{Communicator, Conduit};

/// More threads than a rank has.
const THREADS_MAX: i64 = 12;

/// How many more threads this process may start.
static THREADS_LEFT: AtomicI64 = AtomicI64::new(i64::MAX);

type Create = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;

/// Stands in front of the C library's, and refuses as the kernel does at `RLIMIT_NPROC`.
// SAFETY: it has the type of the function whose name it has, and does what that does.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    run: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    if THREADS_LEFT.fetch_sub(1, Ordering::Relaxed) <= 0 {
        return libc::EAGAIN;
    }
    // SAFETY: the name ends with a zero, and what has it in the C library has this type; the arguments are the caller's.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr());
        std::mem::transmute::<*mut c_void, Create>(next)(thread, attributes, run, argument)
    }
}

/// What a rank does: it meets the others, calls, and makes a window.
#[test]
#[ignore = "a rank of the test below, which starts it as a process of its own"]
fn rank() {
    if let Ok(threads) = std::env::var("THREADS_MAX") {
        THREADS_LEFT.store(threads.parse().unwrap(), Ordering::Relaxed);
    }
    if let Ok(descriptors) = std::env::var("DESCRIPTORS_MAX") {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let maximum = getrlimit(Resource::Nofile).maximum;
        let limit = Rlimit { current: Some(descriptors.parse().unwrap()), maximum };
        setrlimit(Resource::Nofile, limit).unwrap();
    }
    let outcome = (|| {
        let world = Communicator::from_env().map_err(|error| error.to_string())?;
        let mut data = [1_u64; 100];
        world.all_reduce_in_place(&mut data, ReduceOp::Sum).map_err(|error| error.to_string())?;
        let window = world.window::<u64>(10).map_err(|error| error.to_string())?;
        window.put_signal((world.rank() + 1) % world.size(), 0, &[7]).map_err(|error| error.to_string())?;
        window.wait_signal((world.rank() + 2) % world.size(), 1).map_err(|error| error.to_string())?;
        window.close().map_err(|error| error.to_string())
    })();
    match outcome {
        Ok(()) => println!("\nright"),
        Err(error) => println!("\nerror: {}", error.replace('\n', " | ")),
    }
}

/// What each of three ranks says, of which one may have so much of something only.
fn attempt(conduit: Conduit, poor: usize, (name, most): (&str, i64)) -> Vec<String> {
    let port = railnet_live::launch::free_port().unwrap();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        // One test thread is the first thread of the process.
        command.args(["--ignored", "--exact", "rank", "--nocapture", "--test-threads=1"]);
        command.env("RAILNET_RANK", rank.to_string()).env("RAILNET_WORLD_SIZE", "3");
        command.env("RAILNET_RENDEZVOUS", format!("127.0.0.1:{port}")).env("RAILNET_TIMEOUT", "20s");
        command.env("RAILNET_CONDUIT", conduit.name());
        if rank == poor {
            command.env(name, most.to_string());
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<Child> = (0..3).map(start).collect();
    let hear = |mut rank: Child| {
        let (mut out, mut errors) = (String::new(), String::new());
        rank.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        rank.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        rank.wait().unwrap();
        assert!(!errors.contains("panicked") && !out.contains("panicked"), "{conduit}: {out}{errors}");
        let said = out.lines().find(|line| *line == "right" || line.starts_with("error: "));
        said.unwrap_or_else(|| panic!("{conduit}: a rank said nothing: {out}{errors}")).to_owned()
    };
    ranks.into_iter().map(hear).collect()
}

fn every_rank_names_the_one_without_threads(conduit: Conduit) {
    for poor in [0, 1] {
        let mut refused = 0;
        for threads in 0..=THREADS_MAX {
            let said = attempt(conduit, poor, ("THREADS_MAX", threads));
            if said.iter().all(|line| line == "right") {
                continue;
            }
            refused += 1;
            for line in &said {
                let is_named = line.contains(&format!("rank {poor}")) || *line == said[poor];
                assert!(
                    is_named && line.contains("no thread for "),
                    "{conduit}, rank {poor} may start {threads} threads: {said:#?}"
                );
            }
        }
        assert!((3..THREADS_MAX).contains(&refused), "{conduit}: {refused} refusals");
    }
}

#[test]
fn every_rank_names_the_one_without_threads_over_shared_memory() {
    every_rank_names_the_one_without_threads(Conduit::SharedMemory);
}

#[test]
fn every_rank_names_the_one_without_threads_over_tcp() {
    every_rank_names_the_one_without_threads(Conduit::Tcp);
}

#[test]
fn every_rank_names_the_one_without_threads_over_roce() {
    every_rank_names_the_one_without_threads(Conduit::Roce);
}

#[test]
fn every_rank_names_the_one_without_descriptors() {
    // Fewer than it has when it starts, up to more than it needs.
    for conduit in Conduit::ALL {
        let mut refused = 0;
        for descriptors in 5..34 {
            let said = attempt(conduit, 1, ("DESCRIPTORS_MAX", descriptors));
            if said.iter().all(|line| line == "right") {
                continue;
            }
            refused += 1;
            for line in &said {
                let is_named = line.contains("rank 1") || *line == said[1];
                assert!(
                    is_named && line.contains("Too many open files"),
                    "{conduit}, rank 1 may have {descriptors} descriptors: {said:#?}"
                );
            }
        }
        assert!((3..29).contains(&refused), "{conduit}: {refused} refusals");
    }
}
