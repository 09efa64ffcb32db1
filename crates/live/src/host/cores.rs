//! Cores and memory of the host, and those that this process may use.

use super::line;

/// Cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cores {
    /// Of the host.
    pub online: usize,
    /// That this process may use, by affinity and control group.
    pub usable: usize,
}

/// Bytes of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Of the host.
    pub total: Option<u64>,
    /// The limit of this process's control group, if there is one.
    pub limit: Option<u64>,
}

/// The number of cores.
pub fn cores() -> Cores {
    let usable = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let online = line("/sys/devices/system/cpu/online").and_then(|list| count(&list));
    Cores { online: online.unwrap_or(usable).max(usable), usable }
}

/// Runnable threads of all processes.
pub fn running() -> Option<usize> {
    line("/proc/loadavg").and_then(|text| text.split(' ').nth(3)?.split_once('/')?.0.parse().ok())
}

/// The length of a list such as `0-3,8`.
fn count(list: &str) -> Option<usize> {
    list.split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            Some(last.checked_sub(first)? + 1)
        })
        .sum()
}

/// The size of memory.
pub fn memory() -> Memory {
    let total = line("/proc/meminfo").and_then(|text| meminfo(&text));
    let limit = group_limit().filter(|limit| total.is_none_or(|total| *limit < total));
    Memory { total, limit }
}

fn meminfo(text: &str) -> Option<u64> {
    let row = text.lines().find_map(|row| row.strip_prefix("MemTotal:"))?;
    let kib: u64 = row.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The lowest limit from this process's control group up to the root, in cgroups v1 or v2.
fn group_limit() -> Option<u64> {
    let groups = line("/proc/self/cgroup")?;
    let mut least: Option<u64> = None;
    for row in groups.lines() {
        let mut fields = row.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        for folder in std::path::Path::new(path).ancestors() {
            let file = format!("{root}{}/{file}", folder.display());
            // `max` is no number, and no limit.
            if let Some(limit) = line(&file).and_then(|text| text.parse::<u64>().ok()) {
                least = Some(least.map_or(limit, |least| least.min(limit)));
            }
        }
    }
    least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_tables_of_the_system_are_read() {
        assert_eq!((count("0-3,8"), count("0"), count("x")), (Some(5), Some(1), None));
        assert_eq!(meminfo("MemTotal:       16 kB\nMemFree: 1 kB"), Some(16 * 1024));
        assert_eq!(meminfo(""), None);
    }

    #[test]
    fn this_machine_has_something() {
        let Cores { online, usable } = cores();
        assert!(online >= usable && usable >= 1);
        assert!(memory().total.is_some_and(|total| total > 1 << 20));
    }
}
