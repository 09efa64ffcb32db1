//! `railnet perf --serve SOCKET`: a rank that measures what it is told to, for `railnet bench live`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use railnet_coll::{Call, Collective};
use railnet_live::Communicator;
use railnet_live::communicator::Error;
use rustix::thread::CpuSet;

use super::measure::{Aligned, Bench, call_of};
use crate::bench::live::protocol::{Answer, Hello, Request, Times, Work};
use crate::processor;

/// Serves until it is told to end, or the runner is gone.
pub(super) fn serve(world: &Communicator, socket: &Path) -> anyhow::Result<()> {
    bind(world);
    let stream = UnixStream::connect(socket).with_context(|| format!("cannot reach {}", socket.display()))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    let name = format!("Railnet {}", env!("CARGO_PKG_VERSION"));
    let hello = Hello { rank: world.rank() as u32, ranks: world.size() as u32, name };
    writeln!(writer, "{}", serde_json::to_string(&hello)?)?;
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = match line.parse()? {
            Request::Quit => return Ok(()),
            Request::Run(work) => match measure(world, work) {
                Ok(times) => Answer::Times(times),
                Err(error) => Answer::Error { error: format!("{error:#}") },
            },
        };
        writeln!(writer, "{}", serde_json::to_string(&answer)?)?;
    }
}

/// Where there is a core for each rank, each gets its own, as `mpirun` does it for the others.
fn bind(world: &Communicator) {
    let thread = None;
    let Ok(usable) = rustix::thread::sched_getaffinity(thread) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| usable.is_set(*core)).collect();
    if let Some(core) = cores.get(world.rank())
        && cores.len() >= world.size()
    {
        let mut own = CpuSet::new();
        own.set(*core);
        // Where it is not allowed, the system places ranks as it likes.
        let _ = rustix::thread::sched_setaffinity(thread, &own);
    }
}

/// What is measured.
enum Subject<'a> {
    Call(Bench<'a>),
    /// Something that goes from rank 0 to rank 1 and back.
    Pair(&'a Communicator, Aligned<f32>, u32),
}

impl<'a> Subject<'a> {
    fn new(world: &'a Communicator, work: &Work) -> Self {
        if work.collective == Collective::SendReceive {
            return Self::Pair(world, Aligned::new((work.bytes / 4) as usize), 0);
        }
        // MPI's broadcast has one buffer.
        let in_place = work.collective == Collective::Broadcast;
        let call = Call { in_place, ..Call::new(work.collective, 0) };
        Self::Call(Bench::new(world, call_of(&call, work.bytes, world.size() as u32)))
    }

    /// Puts in the data that a salt stands for.
    fn prepare(&mut self, salt: u32) -> anyhow::Result<()> {
        match self {
            Self::Call(bench) => bench.prepare(u64::from(salt)),
            Self::Pair(world, data, told) => {
                // What comes back from rank 1 was sent by rank 0.
                *told = salt;
                let fill = |(index, value): (usize, &mut f32)| *value = thrown(index, salt);
                if world.rank() == 0 {
                    data.iter_mut().enumerate().for_each(fill);
                } else {
                    data.fill(-1.0);
                }
                Ok(())
            }
        }
    }

    fn run(&mut self) -> Result<(), Error> {
        match self {
            Self::Call(bench) => bench.run(),
            Self::Pair(world, data, _) => match world.rank() {
                0 => world.send(data, 1).and_then(|()| world.receive(data, 1)),
                1 => world.receive(data, 0).and_then(|()| world.send(data, 0)),
                _ => Ok(()),
            },
        }
    }

    fn wrong(&self) -> u64 {
        match self {
            Self::Call(bench) => bench.wrong(),
            Self::Pair(world, ..) if world.rank() > 1 => 0,
            Self::Pair(_, data, salt) => {
                let wrong =
                    |(index, value): &(usize, &f32)| value.to_bits() != thrown(*index, *salt).to_bits();
                data.iter().enumerate().filter(wrong).count() as u64
            }
        }
    }
}

/// What goes back and forth: small whole numbers.
fn thrown(index: usize, salt: u32) -> f32 {
    ((index as u32).wrapping_mul(2_654_435_761).wrapping_add(salt) >> 20) as f32
}

fn measure(world: &Communicator, work: Work) -> anyhow::Result<Times> {
    let Work { collective, warmup, batches, calls, salt, .. } = work;
    let is_pair = collective == Collective::SendReceive;
    if is_pair && world.rank() > 1 {
        return Ok(Times { median_us: 0.0, least_us: 0.0, mean_us: 0.0, processor_us: 0.0, wrong: 0 });
    }
    let mut subject = Subject::new(world, &work);
    subject.prepare(salt)?;
    for _ in 0..warmup {
        subject.run()?;
    }
    // Ranks that have no part in it must not wait beside it.
    if !is_pair {
        world.barrier()?;
    }
    let share = f64::from(calls) * if is_pair { 2.0 } else { 1.0 };
    let mut times = Vec::with_capacity(batches as usize);
    let (processor, began) = (processor::seconds(), Instant::now());
    let mut last = began;
    for _ in 0..batches {
        for _ in 0..calls {
            subject.run()?;
        }
        let now = Instant::now();
        times.push((now - last).as_secs_f64() * 1e6 / share);
        last = now;
    }
    let all = share * f64::from(batches.max(1));
    let processor = (processor::seconds() - processor) * 1e6 / all;
    let mut wrong = subject.wrong();
    // The next answer must not pass for the last one.
    subject.prepare(salt + 1)?;
    subject.run()?;
    wrong += subject.wrong();
    times.sort_by(f64::total_cmp);
    Ok(Times {
        median_us: times.get(times.len() / 2).copied().unwrap_or(0.0),
        least_us: times.first().copied().unwrap_or(0.0),
        mean_us: (last - began).as_secs_f64() * 1e6 / all,
        processor_us: processor,
        wrong,
    })
}
