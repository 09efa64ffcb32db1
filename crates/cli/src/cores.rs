//! Runs that know nothing of each other, on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A piece of work.
pub(crate) type Work<'a, T> = Box<dyn FnOnce() -> T + Send + 'a>;

/// As many threads as there are cores, and not more than there are pieces of work.
pub(crate) fn threads(pieces: usize) -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(pieces)
}

/// Does all of it, and gives what came of it in the order in which it was given, whoever was first.
pub(crate) fn all<T: Send>(work: Vec<Work<'_, T>>) -> Vec<T> {
    let threads = threads(work.len());
    let work: Vec<Mutex<Option<Work<'_, T>>>> =
        work.into_iter().map(|piece| Mutex::new(Some(piece))).collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(work.len())));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(piece) = work.get(index) else { return };
                    let piece = piece.lock().ok().and_then(|mut piece| piece.take());
                    let result = piece.map(|piece| piece());
                    if let (Some(result), Ok(mut done)) = (result, done.lock()) {
                        done.push((index, result));
                    }
                }
            });
        }
    });
    // A piece that panics ends the program with the scope.
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_work() {
        let work = (0..100_u64).map(|number| -> Work<'_, u64> {
            // The first ones take longest.
            Box::new(move || {
                (0..(100 - number) * 1_000).map(std::hint::black_box).fold(number, |kept, _| kept)
            })
        });
        assert_eq!(all(work.collect()), (0..100).collect::<Vec<u64>>());
    }
}
