//! Who is still missing, said while ranks wait for each other.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::launch::Variables;
use crate::log::{Level, Log};

/// Where the time comes from for which ranks wait.
pub(super) const LIMIT_HINT: &str = "RAILNET_TIMEOUT or RAILNET_RENDEZVOUS_LIMIT sets the limit";

/// When a rank that waits for others says whom it waits for, and to whom.
#[derive(Clone)]
pub struct Reminders {
    /// After how long for the first time.
    pub first: Duration,
    /// After how long again.
    pub every: Duration,
    say: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Reminders {
    /// Says it by this function, after 5 s and then every 30 s.
    pub fn new(say: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { first: Duration::from_secs(5), every: Duration::from_secs(30), say: Arc::new(say) }
    }

    /// On standard error, as warnings of this rank.
    pub(super) fn logged(level: Level, rank: u32) -> Self {
        let log = Log::new(level, rank);
        Self::new(move |text| log.warn(|| text.to_owned()))
    }

    /// The same, where the variables do not ask for silence.
    pub(super) fn from_variables(variables: Variables<'_>, rank: u32) -> Self {
        let is_set = |name: &str| variables(name).is_some_and(|text| !text.is_empty());
        let is_asked = is_set("RAILNET_DEBUG") || is_set("NCCL_DEBUG");
        Self::logged(if is_asked { Level::from_variables(variables) } else { Level::Warn }, rank)
    }

    /// Says something else that somebody should look at.
    pub(crate) fn say(&self, text: &str) {
        (self.say)(text);
    }

    /// For a wait that begins now.
    pub(super) fn begin(&self, now: Instant) -> Due<'_> {
        Due { reminders: self, next: now + self.first }
    }
}

impl fmt::Debug for Reminders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reminders({:?}, then every {:?})", self.first, self.every)
    }
}

/// The reminders of one wait.
pub(super) struct Due<'a> {
    reminders: &'a Reminders,
    next: Instant,
}

impl Due<'_> {
    /// When the next one is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Says what is missing where it is time for that, and until when it is waited for.
    pub(super) fn remind(&mut self, now: Instant, deadline: Instant, missing: impl FnOnce() -> String) {
        if now < self.next || now >= deadline {
            return;
        }
        self.next = now + self.reminders.every;
        let left = deadline.saturating_duration_since(now).as_secs_f64();
        (self.reminders.say)(&format!("{}; waiting for {left:.0} s more ({LIMIT_HINT})", missing()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    fn collected() -> (Reminders, Arc<Mutex<Vec<String>>>) {
        let said = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&said);
        (Reminders::new(move |text| into.lock().unwrap().push(text.to_owned())), said)
    }

    #[test]
    fn a_wait_is_told_of_after_5_s_and_then_every_30() {
        let (reminders, said) = collected();
        let began = Instant::now();
        let deadline = began + Duration::from_secs(90);
        let mut due = reminders.begin(began);
        let mut times = Vec::new();
        for second in 0..100 {
            let before = said.lock().unwrap().len();
            due.remind(began + Duration::from_secs(second), deadline, || format!("missing at {second}"));
            if said.lock().unwrap().len() > before {
                times.push(second);
            }
        }
        assert_eq!(times, [5, 35, 65]);
        let expected = "missing at 5; waiting for 85 s more \
                        (RAILNET_TIMEOUT or RAILNET_RENDEZVOUS_LIMIT sets the limit)";
        assert_eq!(said.lock().unwrap()[0], expected);
    }
}
