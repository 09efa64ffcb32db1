//! `NCCL_ALGO` and `NCCL_PROTO`: which algorithms and protocols may run, for all collectives or for each.
//!
//! The grammar is NCCL's: `[list][;collective:list]…`, a list of names with commas between, `^` in front to leave those
//! out, case as one likes. Only the first part may go without its collective.

use railnet_core::nearest;

use crate::call::Collective;

/// The collectives that the cost model knows, in NCCL's order.
pub const TUNED: [Collective; 5] = [
    Collective::Broadcast,
    Collective::Reduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
];

/// Which of `N` things may be used, for each collective.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selection<const N: usize> {
    text: String,
    rows: [Option<Row<N>>; TUNED.len()],
}

/// Which may be used, and whether that goes for things without a name too: where a list says what to leave out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Row<const N: usize> {
    named: [bool; N],
    others: bool,
}

impl<const N: usize> Default for Selection<N> {
    /// Everything.
    fn default() -> Self {
        Self { text: String::new(), rows: [None; TUNED.len()] }
    }
}

impl<const N: usize> Selection<N> {
    /// Reads a selection of things with these names; the error says what is wrong and what would be right.
    pub(crate) fn parse(text: &str, what: &str, names: &[&str; N]) -> Result<Self, String> {
        let mut selection = Self { text: text.to_owned(), ..Self::default() };
        for (index, part) in text.split(';').enumerate() {
            let (rows, list) = match part.split_once(':') {
                Some((collective, list)) => (vec![tuned(collective.trim())?], list),
                None if index == 0 => ((0..TUNED.len()).collect(), part),
                None => {
                    return Err(format!(
                        "\"{part}\" does not say for which collective: write it like allreduce:{}",
                        part.trim()
                    ));
                }
            };
            // "allreduce:ring" leaves what is not named as it is, and so does ";allreduce:ring".
            if list.trim().is_empty() && part.split_once(':').is_none() && text.contains(';') {
                continue;
            }
            let row = Self::list(list.trim(), what, names)?;
            for index in rows {
                selection.rows[index] = Some(row);
            }
        }
        Ok(selection)
    }

    fn list(list: &str, what: &str, names: &[&str; N]) -> Result<Row<N>, String> {
        let (is_exclusion, list) = list.strip_prefix('^').map_or((false, list), |rest| (true, rest));
        let mut named = [is_exclusion; N];
        for word in list.split(',').map(str::trim) {
            let place = names.iter().position(|name| name.eq_ignore_ascii_case(word));
            named[place.ok_or_else(|| unknown(what, word, names))?] = !is_exclusion;
        }
        Ok(Row { named, others: is_exclusion })
    }

    /// Whether a thing may be used. Collectives that the cost model does not know may use all.
    pub fn allows(&self, collective: Collective, index: usize) -> bool {
        self.row(collective).is_none_or(|row| row.named[index])
    }

    /// Whether things may be used that have no name here: not where a list says what is to be used.
    pub fn allows_others(&self, collective: Collective) -> bool {
        self.row(collective).is_none_or(|row| row.others)
    }

    /// Whether a list allows it. NCCL then takes it also where it would not by itself (LL128 without NVLink).
    pub fn is_forced(&self, collective: Collective, index: usize) -> bool {
        self.row(collective).is_some_and(|row| row.named[index])
    }

    /// What was written; empty where nothing was.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn row(&self, collective: Collective) -> Option<&Row<N>> {
        self.rows[TUNED.iter().position(|one| *one == collective)?].as_ref()
    }
}

fn tuned(name: &str) -> Result<usize, String> {
    let names = TUNED.map(Collective::name);
    let place = names.iter().position(|known| known.eq_ignore_ascii_case(name));
    place.ok_or_else(|| unknown("collective", name, &names))
}

/// `unknown algorithm "rign": one of Tree, Ring; did you mean "Ring"?`
pub(super) fn unknown(what: &str, word: &str, names: &[&str]) -> String {
    let advice = nearest(word, names).map(|name| format!("; did you mean \"{name}\"?")).unwrap_or_default();
    if word.is_empty() {
        return format!("{} is missing: one of {}", super::article(what), names.join(", "));
    }
    format!("unknown {what} \"{word}\": one of {}{advice}", names.join(", "))
}
