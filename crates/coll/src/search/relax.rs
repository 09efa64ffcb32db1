//! The search as a whole: which attempts are made, and in which order wishes are given up (NCCL 2.30 graph/search.cc).

use std::collections::BTreeSet;

use railnet_topology::host::PathType;

use super::Pattern;
use super::system::{Megabytes, Route, System};
use super::walk::{Draft, DraftChannel, Ended, attempt};
use crate::options::CrossNic;

/// Steps of all attempts together.
const STEPS_IN_ALL: i64 = 1 << 19;
/// Steps of an attempt.
const STEPS: i32 = 1 << 14;
/// Steps of an attempt where all channels are alike.
const STEPS_ALIKE: i32 = 1 << 8;

/// Steps of an attempt when those of all attempts are used up and nothing has been found. NCCL goes on with as many as
/// before, and takes a second where no answer is easy.
const STEPS_LATE: i32 = 1 << 10;

/// Speeds of channels to try, in MB/s, for one node and for several, by generation of GPU.
const INTRA: &[Megabytes] =
    &[40_000, 30_000, 20_000, 18_000, 15_000, 12_000, 10_000, 9_000, 7_000, 6_000, 5_000, 4_000, 3_000];
const INTER: &[Megabytes] = &[
    48_000, 30_000, 28_000, 24_000, 20_000, 18_000, 15_000, 12_000, 10_000, 9_000, 7_000, 6_000, 5_000,
    4_000, 3_000, 2_400, 1_200, 240, 120,
];
const INTRA_HOPPER: &[Megabytes] =
    &[60_000, 50_000, 40_000, 30_000, 24_000, 20_000, 15_000, 12_000, 11_000, 6_000, 3_000];
const INTER_HOPPER: &[Megabytes] = &[
    48_000, 45_000, 42_000, 40_000, 30_000, 24_000, 22_000, 20_000, 17_500, 15_000, 12_000, 6_000, 3_000,
    2_400, 1_200, 240, 120,
];
const INTRA_BLACKWELL: &[Megabytes] =
    &[90_000, 80_000, 70_000, 60_000, 50_000, 45_000, 40_000, 30_000, 24_000, 20_000, 19_000, 18_000];
const INTER_BLACKWELL: &[Megabytes] = &[
    96_000, 86_000, 80_000, 48_000, 45_100, 42_000, 40_000, 30_000, 24_000, 22_000, 20_000, 17_500, 15_000,
    12_000, 6_000, 3_000, 2_400, 1_200, 240, 120,
];

fn speeds(system: &System) -> &'static [Megabytes] {
    match (system.nics.is_empty(), system.capability) {
        (true, 100..) => INTRA_BLACKWELL,
        (true, 90..) => INTRA_HOPPER,
        (true, _) => INTRA,
        (false, 100..) => INTER_BLACKWELL,
        (false, 90..) => INTER_HOPPER,
        (false, _) => INTER,
    }
}

/// The channels for a pattern; none where there are none to be found.
pub(super) fn find(system: &System, wanted: Draft, cross_nic: CrossNic) -> Draft {
    let mut wanted = wanted;
    let gpus = system.gpus.len();
    if wanted.pattern == Pattern::Nvls {
        if !system.has_switch || system.capability < 90 {
            return wanted;
        }
        wanted.channels_max = wanted.channels_max.min(gpus);
        if system.nics.is_empty() {
            // All GPUs pull from the switch alike.
            wanted.channels_min = wanted.channels_max;
        }
    }
    if wanted.pattern == Pattern::CollNetDirect {
        wanted.channels_max = wanted.channels_max.min(gpus);
    }
    if gpus == 1 && wanted.pattern != Pattern::Ring {
        wanted.pattern = Pattern::Tree;
    }
    if wanted.pattern == Pattern::Ring && wanted.channels_min == 1 && nvlink_domains(system) == 2 {
        // The tree will want two channels, and has as many as the ring.
        wanted.channels_min = wanted.channels_max.min(2);
    }
    let mut search = Search::new(system, wanted, cross_nic);
    search.first_pass();
    search.duplicate();
    search.second_pass();
    search.best
}

/// One channel over all GPUs in order, for servers where nothing better is found.
pub(super) fn fallback(system: &System, pattern: Pattern) -> Draft {
    let mut draft = Draft::new(pattern, 1, 1);
    draft.channels = vec![DraftChannel { enter: 0, leave: 0, gpus: (0..system.gpus.len()).collect() }];
    (draft.intra, draft.inter) = (100, 100);
    (draft.type_intra, draft.type_inter) = (PathType::Sys, PathType::Sys);
    draft
}

struct Search<'a> {
    system: &'a System,
    speeds: &'static [Megabytes],
    speed: usize,
    /// What the next attempt looks for.
    draft: Draft,
    /// What was found.
    best: Draft,
    /// The pattern that was asked for.
    pattern: Pattern,
    min_intra: PathType,
    min_inter: PathType,
    max_intra: PathType,
    max_inter: PathType,
    /// The kinds of paths there are.
    kinds_intra: Vec<PathType>,
    kinds_inter: Vec<PathType>,
    /// Whether pairs of channels may exchange NICs.
    may_pair: bool,
    base_cross_nic: u8,
    steps_left: i64,
}

impl<'a> Search<'a> {
    fn new(system: &'a System, mut draft: Draft, cross_nic: CrossNic) -> Self {
        let may_cross = system.nics.len() > 1
            && matches!(draft.pattern, Pattern::Ring | Pattern::BalancedTree | Pattern::SplitTree);
        let pairs = matches!(draft.pattern, Pattern::Ring | Pattern::BalancedTree);
        let gpus = system.gpus.len();
        let between = |best: fn(PathType, PathType) -> PathType, start: PathType| {
            let peers = system.gpu_to_gpu.iter().enumerate().flat_map(|(gpu, routes)| {
                routes.iter().enumerate().filter(move |(peer, _)| *peer != gpu).map(|(_, route)| route.kind)
            });
            peers.fold(start, best)
        };
        let to_nics = || system.gpu_to_nic.iter().flatten().map(|route: &Route| route.kind);
        draft.cross_nic = u8::from(may_cross && cross_nic == CrossNic::Always);
        let mut this = Self {
            system,
            speeds: speeds(system),
            speed: 0,
            pattern: draft.pattern,
            min_intra: if gpus > 1 { between(PathType::min, PathType::Sys) } else { PathType::Loc },
            max_intra: if gpus > 1 { between(PathType::max, PathType::Loc) } else { PathType::Sys },
            min_inter: if system.nics.is_empty() {
                PathType::Pix
            } else {
                to_nics().fold(PathType::Sys, PathType::min)
            },
            max_inter: to_nics().fold(PathType::Loc, PathType::max),
            kinds_intra: kinds(system.gpu_to_gpu.iter().flatten()),
            kinds_inter: kinds(system.gpu_to_nic.iter().chain(&system.nic_to_gpu).flatten()),
            may_pair: may_cross && pairs && cross_nic == CrossNic::Auto,
            base_cross_nic: draft.cross_nic,
            steps_left: STEPS_IN_ALL,
            best: draft.clone(),
            draft,
        };
        this.draft.type_intra = this.min_intra;
        this.draft.type_inter = this.min_inter;
        this.best = this.draft.clone();
        let mut total = system.total;
        if gpus > 1 && this.pattern != Pattern::Ring {
            // A chain leaves one GPU with nothing to send.
            total = total * gpus as i64 / (gpus as i64 - 1);
        }
        let fewest = this.draft.channels_min as i64;
        while this.speed + 1 < this.speeds.len()
            && (this.speeds[this.speed] > system.most || this.speeds[this.speed] * fewest > total)
        {
            this.speed += 1;
        }
        this.set_speed();
        this
    }

    fn set_speed(&mut self) {
        self.draft.intra = self.speeds[self.speed];
        self.draft.inter = self.draft.intra;
    }

    fn attempt(&mut self) -> Ended {
        let steps = match self.draft.same_channels {
            true => STEPS_ALIKE,
            false if self.steps_left < 0 => STEPS_LATE,
            false => STEPS,
        };
        self.steps_left -= i64::from(steps);
        attempt(self.system, &self.draft, &mut self.best, steps)
    }

    fn is_saturated(&self) -> bool {
        self.best.channels.len() as i64 * self.best.inter >= self.system.total
    }

    fn first_pass(&mut self) {
        loop {
            let ended = self.attempt();
            if ended.is_perfect || self.is_saturated() || !self.relax(ended) {
                return;
            }
        }
    }

    /// Gives up the next wish. False when there is none left, or no time.
    fn relax(&mut self, ended: Ended) -> bool {
        let none_yet = self.best.channels.is_empty();
        let draft = &mut self.draft;
        let is_hopeless = self.system.is_amd() && draft.type_intra == PathType::Sys;
        if draft.same_channels && !is_hopeless {
            draft.same_channels = false;
            return true;
        }
        draft.same_channels = self.pattern != Pattern::Nvls;
        self.steps_left += i64::from(ended.left);
        if self.steps_left < 0 && !none_yet {
            return false;
        }

        if self.system.capability >= 90 && draft.pattern == Pattern::BalancedTree {
            draft.pattern = Pattern::Tree;
            return true;
        }
        draft.pattern = self.best.pattern;

        let has_nics = !self.system.nics.is_empty();
        let max_intra = if has_nics { draft.type_inter } else { self.max_intra };
        if draft.type_intra < max_intra
            && (none_yet || draft.type_intra < self.best.type_intra)
            && let Some(next) = farther(draft.type_intra, &self.kinds_intra).filter(|next| *next <= max_intra)
        {
            draft.type_intra = next;
            return true;
        }
        draft.type_intra = self.min_intra;

        let is_worth =
            none_yet || draft.type_inter < self.best.type_inter || draft.type_inter < PathType::Pxn;
        if has_nics
            && draft.type_inter < self.max_inter
            && is_worth
            && let Some(next) = farther(draft.type_inter, &self.kinds_inter)
        {
            draft.type_inter = next;
            return true;
        }
        draft.type_inter = self.min_inter;

        if self.may_pair && draft.cross_nic == 0 && draft.pattern != Pattern::Tree {
            draft.cross_nic = 2;
            return true;
        }
        draft.cross_nic = self.base_cross_nic;

        let Some(slower) = self.speeds.get(self.speed + 1) else { return false };
        // Half of the speed is not tried: twice as many channels would carry no more.
        if !none_yet && slower * 100 <= self.best.inter * 49 {
            return false;
        }
        self.speed += 1;
        self.set_speed();
        true
    }

    /// Fast channels are halved: two of them keep more of a GPU busy.
    fn duplicate(&mut self) {
        let best = &mut self.best;
        let count = best.channels.len();
        let is_fast = best.intra >= 25_000;
        let is_enough = self.system.capability > 80 && best.intra < 50_000 && count > 4;
        if count == 0 || self.pattern == Pattern::Nvls || !is_fast || is_enough {
            return;
        }
        let wanted = (count * 2).min(best.channels_max);
        let more: Vec<_> = best.channels[..wanted - count].to_vec();
        best.channels.extend(more);
        let parts = wanted.div_ceil(count) as i64;
        best.intra /= parts;
        best.inter /= parts;
    }

    /// Tries whether the channels that were found can be made faster.
    fn second_pass(&mut self) {
        if self.best.channels.is_empty() {
            return;
        }
        self.draft = self.best.clone();
        self.speed = 0;
        while self.speed + 1 < self.speeds.len() && self.speeds[self.speed] > self.best.inter {
            self.speed += 1;
        }
        self.set_speed();
        self.draft.channels_min = self.best.channels.len();
        while self.speed > 0 && self.raise() {
            if self.attempt().left == 0 {
                return;
            }
        }
    }

    /// Asks for more. False when there is nothing more to ask for.
    fn raise(&mut self) -> bool {
        let (draft, best) = (&mut self.draft, &self.best);
        let faster = self.speeds[self.speed - 1];
        match self.pattern {
            Pattern::Ring => (draft.intra, draft.inter) = (faster, faster),
            Pattern::Nvls if draft.inter == best.inter && draft.inter < draft.intra * 2 => {
                draft.channels_min = best.channels.len();
                draft.channels_max = draft.channels_min;
                draft.inter = faster;
            }
            // Trees may be faster inside a node than between nodes.
            _ if draft.intra == best.intra && draft.intra < draft.inter * 2 => draft.intra = faster,
            _ => return false,
        }
        self.speed -= 1;
        true
    }
}

fn kinds<'a>(routes: impl Iterator<Item = &'a Route>) -> Vec<PathType> {
    let kinds: BTreeSet<PathType> = routes.map(|route| route.kind).collect();
    kinds.into_iter().collect()
}

/// The next longer kind of path that there is. NCCL tries the kinds between too, which changes nothing.
fn farther(kind: PathType, kinds: &[PathType]) -> Option<PathType> {
    kinds.iter().copied().filter(|next| *next > kind && *next < PathType::Dis).min()
}

/// Groups of several GPUs that reach each other over NVLink.
fn nvlink_domains(system: &System) -> usize {
    let count = system.gpus.len();
    let mut domain: Vec<usize> = (0..count).collect();
    for gpu in 0..count {
        for peer in gpu + 1..count {
            if system.gpu_to_gpu[gpu][peer].kind == PathType::Nvl {
                domain[peer] = domain[gpu];
            }
        }
    }
    (0..count).filter(|own| domain.iter().filter(|other| **other == *own).count() > 1).count()
}
