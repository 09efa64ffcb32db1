//! The life of a job that fails on the way and begins again from its checkpoint.

use railnet_core::Span;

/// A failure, and how long each part of getting over it takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// When it happens, from the start of the job on.
    pub at: Span,
    /// Until the others notice.
    pub notice: Span,
    /// From then on, until all ranks are there again.
    pub restart: Span,
    /// Until they have read the checkpoint.
    pub read: Span,
}

/// What became of a job that failed on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    /// The step in which it failed, from 1 on.
    pub step: u32,
    /// The last step that its checkpoint has; none where it begins anew.
    pub checkpoint: u32,
    /// Work since the checkpoint, which is done again.
    pub lost: Span,
    /// The failure.
    pub failure: Failure,
    /// What the steps from there on take longer than they would have, on what is left.
    pub slower: Span,
    /// From its start to its end.
    pub total: Span,
}

impl Life {
    /// What the failure costs.
    pub fn price(&self) -> Span {
        self.lost + self.failure.notice + self.failure.restart + self.failure.read + self.slower
    }
}

fn sum(steps: &[Span]) -> Span {
    steps.iter().fold(Span::ZERO, |sum, step| sum + *step)
}

/// How far a job has come when it begins, or begins again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Past {
    /// Since its start.
    pub time: Span,
    /// Steps that are done.
    pub steps: u32,
}

impl Life {
    /// How far the job has come when it has begun again.
    pub fn past(&self) -> Past {
        let Failure { at, notice, restart, read } = self.failure;
        Past { time: at + notice + restart + read, steps: self.checkpoint }
    }
}

/// What becomes of a job whose steps take `before`, and `after` once it has begun again; it writes a checkpoint at the end of
/// every so many steps. It fails after the moment up to which its past is known. `None` where it is through before it fails.
pub fn relive(
    past: Past,
    (before, after): (&[Span], &[Span]),
    interval: Option<u32>,
    failure: Failure,
) -> Option<Life> {
    let mut end = past.time;
    let done = before.iter().skip(past.steps as usize).take_while(|step| {
        end += **step;
        end <= failure.at
    });
    let done = past.steps as usize + done.count();
    if done >= before.len() {
        return None;
    }
    let interval = interval.unwrap_or(u32::MAX) as usize;
    let checkpoint = done / interval * interval;
    // Where there never was one, not even the past is left.
    let kept = sum(before.get(past.steps as usize..checkpoint).unwrap_or_default());
    let (written, rest) = (past.time + kept, sum(&after[checkpoint..]));
    let read = if checkpoint == 0 { Span::ZERO } else { failure.read };
    let failure = Failure { read, ..failure };
    Some(Life {
        step: done as u32 + 1,
        checkpoint: checkpoint as u32,
        lost: failure.at - written,
        failure,
        slower: rest - sum(&before[checkpoint..]),
        total: failure.at + failure.notice + failure.restart + read + rest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILURE: Failure = Failure {
        at: Span::from_secs(47),
        notice: Span::from_secs(600),
        restart: Span::from_secs(120),
        read: Span::from_secs(30),
    };

    #[test]
    fn a_failure_costs_what_was_done_since_the_checkpoint_and_the_way_back() {
        let steps = [Span::from_secs(2); 50];
        let life = relive(Past::default(), (&steps, &steps), Some(10), FAILURE).unwrap();
        // Step 24 is under way; 20 steps are in the checkpoint, and 7 s of work are not.
        assert_eq!((life.step, life.checkpoint, life.lost), (24, 20, Span::from_secs(7)));
        assert_eq!(life.price(), Span::from_secs(7 + 600 + 120 + 30));
        assert_eq!(life.total, Span::from_secs(100) + life.price());
        // On fewer servers the 30 steps that are left take a second longer each.
        let slower = relive(Past::default(), (&steps, &[Span::from_secs(3); 50]), Some(10), FAILURE).unwrap();
        assert_eq!(slower.price() - life.price(), Span::from_secs(30));
    }

    #[test]
    fn without_a_checkpoint_all_is_lost_and_nothing_is_read() {
        let steps = [Span::from_secs(2); 50];
        for interval in [None, Some(25)] {
            let life = relive(Past::default(), (&steps, &steps), interval, FAILURE).unwrap();
            assert_eq!((life.checkpoint, life.lost), (0, FAILURE.at));
            assert_eq!(life.price(), FAILURE.at + Span::from_secs(720));
        }
        let short = (&steps[..23], &steps[..23]);
        assert_eq!(relive(Past::default(), short, None, FAILURE), None, "it is over after 46 s");
    }

    #[test]
    fn a_second_failure_goes_on_from_what_the_first_left() {
        let steps = [Span::from_secs(2); 50];
        let first = relive(Past::default(), (&steps, &steps), Some(10), FAILURE).unwrap();
        // Step 20 is done when it begins again, after 47 + 600 + 120 + 30 s.
        assert_eq!(first.past(), Past { time: Span::from_secs(797), steps: 20 });
        let again = Failure { at: Span::from_secs(797 + 25), ..FAILURE };
        let second = relive(first.past(), (&steps, &steps), Some(10), again).unwrap();
        assert_eq!((second.step, second.checkpoint, second.lost), (33, 30, Span::from_secs(5)));
        assert_eq!(second.total, first.total + second.price());
        // Without a checkpoint each begins anew.
        let first = relive(Past::default(), (&steps, &steps), None, FAILURE).unwrap();
        let second = relive(first.past(), (&steps, &steps), None, again).unwrap();
        assert_eq!((second.checkpoint, second.lost), (0, again.at - first.past().time));
        assert_eq!(second.total, first.total + second.price());
    }
}
