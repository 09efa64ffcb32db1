//! Which word was meant.

/// The name that was probably meant: the nearest of `known` that few slips of the finger lead to.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let slips = |name: &str, of_digits| distance(&word.to_lowercase(), &name.to_lowercase(), of_digits);
    // A digit for another one often makes the name of something else: of dgx-h100 and hgx-h200, dgx-h200 is nearer to the second.
    let name = known.iter().copied().min_by_key(|name| slips(name, 2))?;
    (slips(name, 1) <= word.chars().count().max(3) / 3).then_some(name)
}

/// Letters to add, drop, change or swap with their neighbour to make one word of the other; a digit that becomes another one
/// counts `of_digits`.
fn distance(from: &str, to: &str, of_digits: usize) -> usize {
    let change = |from: char, to: char| match (from == to, from.is_ascii_digit() && to.is_ascii_digit()) {
        (true, _) => 0,
        (false, true) => of_digits,
        (false, false) => 1,
    };
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=to.len()).collect()];
    for (i, letter) in from.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, other) in to.iter().enumerate() {
            let mut best = (rows[i][j] + change(*letter, *other)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && letter == &to[j - 1] && &from[i - 1] == other {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_finger_are_recognised_and_other_words_are_not() {
        let known = ["none", "dcqcn", "dcqcn-paper", "timely"];
        assert_eq!(nearest("dcqnc", &known), Some("dcqcn"));
        assert_eq!(nearest("Timley", &known), Some("timely"));
        assert_eq!(nearest("hpcc", &known), None);
        assert_eq!(nearest("x", &[]), None);
        assert_eq!(nearest("LL126", &["LL", "LL128", "Simple"]), Some("LL128"));
        assert_eq!(nearest("dgx-h200x", &["dgx-h100", "hgx-h200"]), Some("hgx-h200"));
    }
}
