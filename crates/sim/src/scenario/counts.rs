//! How much each rank has, where it is not the same: `counts` and `skew` of `[[collective]]`.

use std::fmt;

use railnet_coll::{Collective, Counts};
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::ScenarioError;

/// The most elements of a block.
const COUNT_MAX: u64 = 1 << 40;
/// The most that one rank may have of what another has.
const SKEW_MAX: u32 = 1 << 16;

/// `counts = [1000, 0, 500]`, elements of each rank, or `counts = [[0, 10], [20, 0]]`, what each has for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CountList {
    /// The block of each rank.
    PerRank(Vec<u64>),
    /// What each rank has for each, in rows of the sender.
    PerPair(Vec<Vec<u64>>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CountItem {
    Number(u64),
    Row(Vec<u64>),
}

impl<'de> Deserialize<'de> for CountList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(CountsVisitor)
    }
}

struct CountsVisitor;

impl<'de> Visitor<'de> for CountsVisitor {
    type Value = CountList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of elements for each rank, such as [1000, 0, 500], or a list of such lists, a row for each sender")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CountList, A::Error> {
        let (mut numbers, mut rows) = (Vec::new(), Vec::new());
        let wrong = "whole numbers of elements, one for each rank, or a row of them for each rank that sends";
        while let Some(item) = list.next_element::<CountItem>().map_err(|_| A::Error::custom(wrong))? {
            match item {
                CountItem::Number(number) => numbers.push(number),
                CountItem::Row(row) => rows.push(row),
            }
        }
        match (numbers.is_empty(), rows.is_empty()) {
            (true, false) => Ok(CountList::PerPair(rows)),
            (_, true) => Ok(CountList::PerRank(numbers)),
            (false, false) => Err(A::Error::custom(wrong)),
        }
    }
}

/// Collectives in which blocks belong to ranks, and may differ.
fn has_blocks(collective: Collective) -> bool {
    use Collective::{AllGather, Gather, ReduceScatter, Scatter};
    matches!(collective, AllGather | Gather | ReduceScatter | Scatter)
}

impl CountList {
    /// Whether they fit the collective, as far as that can be said without its ranks.
    pub(super) fn check(&self, collective: Collective) -> Result<(), ScenarioError> {
        let wrong = |message: String| Err(ScenarioError::new(message).at("counts"));
        let (all, fits, advice): (Vec<u64>, bool, _) = match self {
            Self::PerRank(counts) => (counts.clone(), has_blocks(collective), "one number for each rank"),
            Self::PerPair(rows) => {
                (rows.concat(), collective == Collective::AllToAll, "a row for each rank that sends")
            }
        };
        if !fits {
            let takes = match collective {
                Collective::AllToAll => {
                    "a row for each rank that sends, with a number for each that receives".to_owned()
                }
                _ if has_blocks(collective) => "one number for each rank".to_owned(),
                _ => "no counts: all ranks have as much, and `size` says it".to_owned(),
            };
            return wrong(format!("{collective} takes {takes}; this is {advice}"));
        }
        if let Some(count) = all.iter().find(|count| **count > COUNT_MAX) {
            return wrong(format!("a block has {COUNT_MAX} elements at most, not {count}"));
        }
        Ok(())
    }

    /// The counts of a call among so many ranks.
    pub(super) fn counts(&self, ranks: u32) -> Result<Counts, ScenarioError> {
        let wrong = |message: String| Err(ScenarioError::new(message).at("counts"));
        match self {
            Self::PerRank(counts) if counts.len() != ranks as usize => {
                wrong(format!("{ranks} ranks need {ranks} counts, and there are {}", counts.len()))
            }
            Self::PerPair(rows) if rows.len() != ranks as usize => {
                wrong(format!("{ranks} ranks need {ranks} rows of counts, and there are {}", rows.len()))
            }
            Self::PerPair(rows)
                if let Some(bad) = rows.iter().position(|row| row.len() != ranks as usize) =>
            {
                let many = rows[bad].len();
                wrong(format!(
                    "{ranks} ranks need {ranks} counts in each row, and that of rank {bad} has {many}"
                ))
            }
            Self::PerRank(counts) => Ok(Counts::PerRank(counts.as_slice().into())),
            Self::PerPair(rows) => Ok(Counts::PerPair(rows.concat().into())),
        }
    }
}

/// Whether blocks of a collective may be skewed.
pub(super) fn check_skew(skew: u32, collective: Collective) -> Result<(), ScenarioError> {
    let wrong = |message: String| Err(ScenarioError::new(message).at("skew"));
    if !(1..=SKEW_MAX).contains(&skew) {
        return wrong(format!("the last rank has 1 to {SKEW_MAX} times what the first has, not {skew}"));
    }
    if collective != Collective::AllToAll && !has_blocks(collective) {
        return wrong(format!("{collective} has no blocks that could differ"));
    }
    Ok(())
}

/// Blocks that grow evenly from the first rank to the last, which has `skew` times as much: so that the largest buffer has
/// `elements`. In AllToAll they are what each rank gets from each other.
pub(super) fn skewed(skew: u32, collective: Collective, elements: u64, ranks: u32) -> Counts {
    let last = u64::from(ranks.saturating_sub(1)).max(1);
    let weight = |rank: u32| u128::from(last + u64::from(skew - 1) * u64::from(rank));
    let share = |rank: u32, of: u128| (u128::from(elements) * weight(rank) / of.max(1)) as u64;
    if collective == Collective::AllToAll {
        // The last rank gets the most, from every one.
        let most = weight(ranks.saturating_sub(1)) * u128::from(ranks);
        let row: Vec<u64> = (0..ranks).map(|to| share(to, most)).collect();
        return Counts::PerPair(row.repeat(ranks as usize).into());
    }
    let all = (0..ranks).map(weight).sum();
    Counts::PerRank((0..ranks).map(|rank| share(rank, all)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skewed_blocks_grow_evenly_and_the_largest_buffer_has_what_was_asked_for() {
        assert_eq!(skewed(3, Collective::AllGather, 1200, 3), Counts::PerRank([200, 400, 600].into()));
        assert_eq!(skewed(1, Collective::AllGather, 1200, 3), Counts::PerRank([400; 3].into()));
        let pairs = Counts::PerPair([200, 400, 200, 400].into());
        assert_eq!(skewed(2, Collective::AllToAll, 800, 2), pairs);
        assert_eq!(skewed(9, Collective::AllGather, 100, 1), Counts::PerRank([100].into()));
    }
}
