//! Wrong data is seen: a schedule that leaves something out does not pass.

use std::sync::Arc;

use railnet_coll::{Program, Schedule, Step};
use railnet_core::event::NoSink;

use crate::{Run, Scenario};

/// A program in which one rank forgets its own data wherever it should add it to what it has received.
#[derive(Debug)]
struct Forgetful {
    whole: Arc<dyn Program>,
    who: u32,
}

impl Program for Forgetful {
    fn workers(&self, rank: u32) -> u32 {
        self.whole.workers(rank)
    }

    fn steps(&self, rank: u32, worker: u32) -> u64 {
        self.whole.steps(rank, worker)
    }

    fn step(&self, rank: u32, worker: u32, number: u64) -> Step {
        let mut step = self.whole.step(rank, worker, number);
        if rank == self.who && !step.receives.is_empty() {
            step.sources.clear();
        }
        step
    }
}

/// Elements that are wrong after an all-reduce of 4 ranks with 64 Ki elements each.
fn wrong(who: u32, cluster: &str, hosts: u32) -> u64 {
    let text = format!(
        "[fabric]\ntopology = {{ kind = \"single-switch\", hosts = {hosts} }}\n{cluster}\
         [[collective]]\nkind = \"all_reduce\"\nsize = \"256KiB\"\nalgorithm = \"ring\"\nranks = \"0..3\"\nplacement = \"out\"\n"
    );
    let scenario = Scenario::parse(&text).expect("it is right");
    let mut run = Run::new(&scenario, NoSink).expect("it is right");
    let collectives = run.world.collectives.as_mut().expect("there is one");
    let part = &mut collectives.entries[0].parts[0];
    let whole = Schedule::clone(&part.schedule);
    part.schedule =
        Arc::new(Schedule { program: Arc::new(Forgetful { whole: whole.program, who }), ..whole });
    // The first entry has begun already.
    collectives.communicators[part.communicator as usize].schedule = Some(Arc::clone(&part.schedule));
    run.finish().expect("it ends all the same").0.collectives[0].wrong
}

#[test]
fn a_contribution_that_is_left_out_is_seen_at_every_rank() {
    for (cluster, hosts) in [("", 4), ("[cluster]\nserver = \"dgx-h100\"\n", 8)] {
        // A ring begins one of four parts at each rank; to the other three it adds. All four ranks get those.
        assert_eq!(wrong(1, cluster, hosts), 3 * (65_536 / 4) * 4, "{cluster}");
        assert_eq!(wrong(u32::MAX, cluster, hosts), 0, "{cluster}");
    }
}
