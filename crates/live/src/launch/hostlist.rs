//! Slurm's lists of hosts: `n[1-3,7]`, `gpu[01-04]-ib,login1`.

/// Why a list of hosts is malformed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostlistError {
    /// An unbalanced bracket.
    #[error("{0:?} has a bracket without its partner")]
    Bracket(String),
    /// A malformed range.
    #[error("{0:?} is no range of numbers such as 1-3 or 7")]
    Range(String),
}

/// The first hosts of a list, at most `limit`.
pub fn expand(list: &str, limit: usize) -> Result<Vec<String>, HostlistError> {
    let mut hosts = Vec::new();
    for item in items(list)? {
        if hosts.len() >= limit {
            break;
        }
        hosts.extend(one(item.trim(), limit - hosts.len())?);
    }
    Ok(hosts)
}

/// Splits at commas outside of brackets.
fn items(list: &str) -> Result<Vec<&str>, HostlistError> {
    let (mut parts, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' | ']' if is_inside == (letter == '[') => return Err(HostlistError::Bracket(list.to_owned())),
            '[' => is_inside = true,
            ']' => is_inside = false,
            ',' if !is_inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if is_inside {
        return Err(HostlistError::Bracket(list.to_owned()));
    }
    parts.push(&list[start..]);
    Ok(parts.into_iter().filter(|part| !part.trim().is_empty()).collect())
}

/// The hosts of one item. Several brackets multiply; the last one varies fastest.
fn one(item: &str, limit: usize) -> Result<Vec<String>, HostlistError> {
    let Some((head, rest)) = item.split_once('[') else {
        return Ok(vec![item.to_owned()]);
    };
    // `items` has checked that brackets are balanced.
    let (ranges, tail) = rest.split_once(']').ok_or_else(|| HostlistError::Bracket(item.to_owned()))?;
    let tails = one(tail, limit)?;
    let mut hosts = Vec::new();
    for range in ranges.split(',') {
        let wrong = || HostlistError::Range(range.to_owned());
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return Err(wrong());
        }
        // `01-10` counts with two digits.
        let digits = first.len();
        let (first, last): (u64, u64) =
            (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
        if first > last {
            return Err(wrong());
        }
        for number in first..=last {
            for tail in &tails {
                if hosts.len() >= limit {
                    return Ok(hosts);
                }
                hosts.push(format!("{head}{number:0digits$}{tail}"));
            }
        }
    }
    Ok(hosts)
}
