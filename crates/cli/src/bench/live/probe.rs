//! How far apart two cores are: the time that a line of the cache takes from one to the other.
//!
//! Where a machine is a guest, its host moves the cores about: the same pair is next to each other in one minute and
//! on two ends of the chip in the next. Calls of a few bytes take several times as long then, in every library. So the
//! distance is measured beside them.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const BATCHES: usize = 200;
const ROUNDS: u64 = 50;
/// No probe waits longer.
const LIMIT: Duration = Duration::from_secs(1);
/// Looks at memory between two looks at the clock.
const LOOKS: u32 = 1 << 14;
/// Below this, two cores share a cache.
const NEAR_NS: f64 = 100.0;

/// On lines of their own, with the neighbour that hardware fetches along.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// Nanoseconds from one core to the other, the median of many. None where there is only one core to use, or where the
/// other did not answer in time.
pub(crate) fn cache_line() -> Option<f64> {
    let usable = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| usable.is_set(core));
    let (here, there) = (cores.next()?, cores.next()?);
    let (ping, pong, stop) = (Line::default(), Line::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            stay_on(there);
            let mut seen = 0;
            while !stop.load(Ordering::Relaxed) {
                let number = ping.0.load(Ordering::Acquire);
                if number != seen {
                    pong.0.store(number, Ordering::Release);
                    seen = number;
                }
                spin_loop();
            }
        });
        let asker = scope.spawn(|| {
            stay_on(here);
            let times = ask(&ping.0, &pong.0);
            stop.store(true, Ordering::Relaxed);
            times
        });
        let mut times = asker.join().expect("asking does not panic")?;
        times.sort_by(f64::total_cmp);
        Some(times[times.len() / 2])
    })
}

/// `near` or `far`.
pub(crate) fn distance(nanoseconds: f64) -> &'static str {
    if nanoseconds < NEAR_NS { "near" } else { "far" }
}

/// Where it may not, the figure is that of wherever it runs.
fn stay_on(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

/// One-way times, in nanoseconds.
fn ask(ping: &AtomicU64, pong: &AtomicU64) -> Option<Vec<f64>> {
    let limit = Instant::now() + LIMIT;
    let mut number = 0;
    let mut times = Vec::with_capacity(BATCHES);
    let mut last = Instant::now();
    for _ in 0..BATCHES {
        for _ in 0..ROUNDS {
            number += 1;
            ping.store(number, Ordering::Release);
            let mut looks = 0;
            while pong.load(Ordering::Acquire) != number {
                spin_loop();
                looks += 1;
                if looks == LOOKS {
                    looks = 0;
                    if Instant::now() > limit {
                        return None;
                    }
                }
            }
        }
        let now = Instant::now();
        times.push((now - last).as_nanos() as f64 / (2 * ROUNDS) as f64);
        last = now;
    }
    Some(times)
}
