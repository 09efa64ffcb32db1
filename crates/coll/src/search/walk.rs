//! One attempt of the search: depth first, channel after channel, each taking its bandwidth from the links it uses.
//!
//! The order in which GPUs and NICs are tried, and when to give up, are NCCL 2.30's (graph/search.cc): both decide which
//! of many equally good answers is found.

use std::cmp::Reverse;

use railnet_core::Span;
use railnet_topology::host::PathType;
use smallvec::{SmallVec, smallvec};

use super::Pattern;
use super::system::{Megabytes, Route, System};

/// Steps that an attempt may try in the order of PCIe addresses, which do not count.
const PCI_ORDER_STEPS: i32 = 1 << 10;

/// What an attempt looks for, and what it has found so far.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) pattern: Pattern,
    /// 0 where channels leave by the NIC they enter by, 2 where pairs of channels exchange them, 1 where any will do.
    pub(super) cross_nic: u8,
    pub(super) intra: Megabytes,
    pub(super) inter: Megabytes,
    pub(super) type_intra: PathType,
    pub(super) type_inter: PathType,
    pub(super) same_channels: bool,
    pub(super) channels_min: usize,
    pub(super) channels_max: usize,
    pub(super) latency: Span,
    pub(super) channels: Vec<DraftChannel>,
    hops: i64,
}

/// A channel: NICs and GPUs by their places in the system.
#[derive(Clone, Debug, Default)]
pub(super) struct DraftChannel {
    pub(super) enter: usize,
    pub(super) leave: usize,
    pub(super) gpus: Vec<usize>,
}

impl Draft {
    pub(super) fn new(pattern: Pattern, channels_min: usize, channels_max: usize) -> Self {
        Self {
            pattern,
            cross_nic: 0,
            intra: 0,
            inter: 0,
            type_intra: PathType::Loc,
            type_inter: PathType::Pix,
            same_channels: pattern != Pattern::Nvls,
            channels_min,
            channels_max,
            latency: Span::ZERO,
            channels: Vec::new(),
            hops: 0,
        }
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ended {
    /// Steps that were left; 0 when there were too few of them.
    pub(super) left: i32,
    /// Whether nothing better can be found.
    pub(super) is_perfect: bool,
}

/// Tries to find channels as `draft` wants them, and puts what it finds into `best` where that is better.
pub(super) fn attempt(system: &System, draft: &Draft, best: &mut Draft, steps: i32) -> Ended {
    let gpus = system.gpus.len();
    let all: Vec<usize> = (0..gpus).collect();
    let mut draft = draft.clone();
    draft.hops = 0;
    let blank = DraftChannel { gpus: vec![0; gpus], ..DraftChannel::default() };
    draft.channels = vec![blank; draft.channels_max];
    let mut walk = Walk {
        system,
        edges: system.edges.clone(),
        nics: system.nics.iter().map(|nic| nic.bandwidth).collect(),
        used: vec![0; gpus],
        ways_in: nics_to_try(system, &all, draft.type_inter),
        ways_out: all.iter().map(|gpu| nics_to_try(system, &[*gpu], draft.type_inter)).collect(),
        draft,
        count: 0,
        best,
        left: steps,
    };
    walk.next_channel();
    Ended { left: walk.left, is_perfect: walk.left < 0 }
}

/// GPUs to try next: two at most where there is a switch.
type Few = SmallVec<[usize; 4]>;

#[derive(Clone, Copy)]
enum Place {
    Gpu(usize),
    Nic(usize),
    Switch,
}

/// The order in which the GPUs of a channel are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Free,
    /// That of PCIe addresses.
    Pci,
    /// That of the channel before.
    Replay,
}

/// Where a channel has to come back to.
#[derive(Clone, Copy)]
struct Goals {
    /// The step after which it goes to a NIC.
    nic: Option<usize>,
    /// The step after which it closes the ring.
    first: Option<usize>,
}

struct Walk<'a> {
    system: &'a System,
    /// What is left of each direction of each link.
    edges: Vec<Megabytes>,
    /// What is left of each NIC.
    nics: Vec<Megabytes>,
    /// The channels that have passed each GPU, a bit each.
    used: Vec<u64>,
    draft: Draft,
    /// The NICs to try for a channel that begins, and for one that goes back to the network from each GPU.
    ways_in: Vec<usize>,
    ways_out: Vec<Vec<usize>>,
    /// How many channels of the draft are whole.
    count: usize,
    best: &'a mut Draft,
    /// Steps left; negative when the best is perfect.
    left: i32,
}

impl<'a> Walk<'a> {
    fn goals(&self) -> Goals {
        let last = self.system.gpus.len() - 1;
        let is_ring = self.draft.pattern == Pattern::Ring;
        if self.system.nics.is_empty() {
            return Goals { nic: None, first: is_ring.then_some(last) };
        }
        let nic = match self.draft.pattern {
            Pattern::Ring => last,
            Pattern::SplitTree => 1,
            _ => 0,
        };
        Goals { nic: Some(nic), first: None }
    }

    fn next_channel(&mut self) {
        let goals = self.goals();
        if !self.system.nics.is_empty() {
            self.enter_by_nics(goals);
            return;
        }
        if self.draft.pattern == Pattern::Nvls {
            // Every GPU is to be a head.
            self.try_gpu(None, self.count, 0, goals, Order::Free);
            return;
        }
        if self.count == 0 {
            self.try_gpu(None, 0, 0, goals, Order::Pci);
        } else {
            let first = self.draft.channels[self.count - 1].gpus[0];
            self.try_gpu(None, first, 0, goals, Order::Replay);
        }
        if self.count == 0 || !self.draft.same_channels {
            for gpu in 0..self.system.gpus.len() {
                self.try_gpu(None, gpu, 0, goals, Order::Free);
            }
        }
    }

    /// Channels that enter by a NIC.
    fn enter_by_nics(&mut self, goals: Goals) {
        let count = self.ways_in.len();
        let wants_heads = matches!(self.draft.pattern, Pattern::Nvls | Pattern::CollNetDirect);
        for turn in 0..count {
            let nic = self.ways_in[(self.count + turn) % count];
            let bandwidth = self.draft.inter;
            if self.nics[nic] < bandwidth || self.breaks_pair(|before| before.leave == nic) {
                continue;
            }
            self.draft.channels[self.count].enter = nic;
            self.draft.latency = self.system.nics[nic].latency;
            self.nics[nic] -= bandwidth;
            let found = if wants_heads { self.try_head(nic, count, goals) } else { false };
            if !wants_heads {
                self.try_near_gpus(nic, goals);
            }
            self.nics[nic] += bandwidth;
            if found {
                break;
            }
        }
    }

    /// The GPU of this NIC as a head, unless it is one already. Whether it was tried.
    fn try_head(&mut self, nic: usize, nics: usize, goals: Goals) -> bool {
        let heads = &self.draft.channels[..self.count];
        let Some(gpu) = self.system.nics[nic].gpu else { return false };
        if self.count >= nics || heads.iter().any(|channel| channel.gpus[0] == gpu) {
            return false;
        }
        self.try_gpu(Some(Place::Nic(nic)), gpu, 0, goals, Order::Free);
        true
    }

    fn try_near_gpus(&mut self, nic: usize, goals: Goals) {
        let from = Some(Place::Nic(nic));
        if self.count > 0 && self.draft.same_channels {
            let first = self.draft.channels[self.count - 1].gpus[0];
            self.try_gpu(from, first, 0, goals, Order::Replay);
            return;
        }
        if self.count == 0 && !self.system.has_switch {
            let kept = std::mem::replace(&mut self.left, PCI_ORDER_STEPS);
            self.try_gpu(from, 0, 0, goals, Order::Pci);
            self.left = if self.left < 0 { self.left } else { kept };
        }
        let own = self.system.nics[nic].gpu;
        let others = self.system.local_gpus(nic).iter().copied().filter(|gpu| Some(*gpu) != own);
        for gpu in own.into_iter().chain(others) {
            self.try_gpu(from, gpu, 0, goals, Order::Free);
        }
    }

    fn try_gpu(&mut self, from: Option<Place>, gpu: usize, step: usize, goals: Goals, order: Order) {
        if let Some(from) = from
            && !self.take(from, Place::Gpu(gpu), 1, 1)
        {
            return;
        }
        let flag = 1 << self.count;
        self.used[gpu] ^= flag;
        self.at_gpu(gpu, step, goals, order);
        self.used[gpu] ^= flag;
        if let Some(from) = from {
            self.give_back(from, Place::Gpu(gpu), 1, 1);
        }
    }

    fn at_gpu(&mut self, gpu: usize, step: usize, goals: Goals, order: Order) {
        if self.left <= 0 {
            return;
        }
        self.left -= 1;
        self.draft.channels[self.count].gpus[step] = gpu;
        if goals.nic == Some(step) {
            self.back_to_nic(gpu, step, goals, order);
        } else if self.draft.pattern == Pattern::Nvls {
            self.try_nvls(gpu);
        } else if self.draft.pattern == Pattern::CollNetDirect {
            self.try_direct(gpu);
        } else if step + 1 < self.system.gpus.len() {
            let next = match order {
                Order::Pci => smallvec![step + 1],
                Order::Replay => smallvec![self.draft.channels[self.count - 1].gpus[step + 1]],
                Order::Free if self.system.has_switch => self.neighbours_of(gpu),
                Order::Free => self.gpus_to_try(gpu, step, goals),
            };
            for peer in next {
                self.try_gpu(Some(Place::Gpu(gpu)), peer, step + 1, goals, order);
            }
        } else if goals.first == Some(step) {
            let first = Place::Gpu(self.draft.channels[self.count].gpus[0]);
            if self.take(Place::Gpu(gpu), first, 1, 1) {
                self.finish_channel();
                self.give_back(Place::Gpu(gpu), first, 1, 1);
            }
        } else {
            self.finish_channel();
        }
    }

    fn back_to_nic(&mut self, gpu: usize, step: usize, goals: Goals, order: Order) {
        let DraftChannel { enter, leave, .. } = self.draft.channels[self.count];
        let is_balanced = self.draft.pattern == Pattern::BalancedTree;
        // Each of the first two GPUs of a balanced tree carries half of what goes to the network.
        let parts = if is_balanced { 2 } else { 1 };
        let next = Goals { nic: (is_balanced && step == 0).then_some(1), ..goals };
        for turn in 0..self.ways_out[gpu].len() {
            let nic = self.ways_out[gpu][turn];
            let is_allowed = match self.draft.pattern {
                Pattern::Tree => nic == enter,
                Pattern::Ring if self.draft.cross_nic == 2 => !self.breaks_pair(|before| before.enter == nic),
                Pattern::BalancedTree if step > 0 && nic != leave => false,
                _ => self.draft.cross_nic != 0 || nic == enter,
            };
            if is_allowed && self.take(Place::Gpu(gpu), Place::Nic(nic), 1, parts) {
                self.draft.channels[self.count].leave = nic;
                self.at_gpu(gpu, step, next, order);
                self.give_back(Place::Gpu(gpu), Place::Nic(nic), 1, parts);
            }
        }
    }

    /// Whether this channel is the second of a pair that exchanges NICs, and does not fit the first.
    fn breaks_pair(&self, fits: impl Fn(&DraftChannel) -> bool) -> bool {
        self.draft.pattern == Pattern::Ring
            && self.draft.cross_nic == 2
            && self.count % 2 == 1
            && !fits(&self.draft.channels[self.count - 1])
    }

    /// A head reads from the switch and writes to it what all others do too, and its own besides.
    fn try_nvls(&mut self, head: usize) {
        let share = |gpu: usize| if gpu == head { 2 } else { 1 };
        let mut taken = Vec::new();
        let gpus = 0..self.system.gpus.len();
        let down = gpus.clone().map(|gpu| (Place::Switch, Place::Gpu(gpu), share(gpu)));
        let up = gpus.map(|gpu| (Place::Gpu(gpu), Place::Switch, share(gpu)));
        let fits = down.chain(up).all(|(from, to, share)| {
            let fits = self.take(from, to, share, 1);
            taken.extend(fits.then_some((from, to, share)));
            fits
        });
        if fits {
            self.finish_channel();
        }
        for (from, to, share) in taken {
            self.give_back(from, to, share, 1);
        }
    }

    /// A head exchanges its part with every other GPU.
    fn try_direct(&mut self, head: usize) {
        let gpus = self.system.gpus.len();
        let parts = (gpus - 1).max(1) as i64;
        let mut taken = Vec::new();
        let others = (0..gpus).filter(|gpu| *gpu != head);
        let out = others.clone().map(|gpu| (Place::Gpu(head), Place::Gpu(gpu)));
        let into = others.clone().map(|gpu| (Place::Gpu(gpu), Place::Gpu(head)));
        let fits = out.chain(into).all(|(from, to)| {
            let fits = self.take(from, to, 1, parts);
            taken.extend(fits.then_some((from, to)));
            fits
        });
        if fits {
            for (step, gpu) in others.enumerate() {
                self.draft.channels[self.count].gpus[step + 1] = gpu;
            }
            self.finish_channel();
        }
        for (from, to) in taken {
            self.give_back(from, to, 1, parts);
        }
    }

    fn finish_channel(&mut self) {
        if self.left <= 0 {
            return;
        }
        self.left -= 1;
        self.count += 1;
        if self.is_better() {
            *self.best = self.draft.clone();
            self.best.channels.truncate(self.count);
            if self.count == self.draft.channels_max {
                self.left = -1;
            }
        }
        if self.count < self.draft.channels_max {
            self.next_channel();
        }
        self.count -= 1;
    }

    fn is_better(&self) -> bool {
        let (draft, best) = (&self.draft, &*self.best);
        let (count, best_count) = (self.count as i64, best.channels.len() as i64);
        if self.count < draft.channels_min {
            return false;
        }
        if draft.pattern == Pattern::Nvls {
            // Each channel is a GPU that pulls: the more the better.
            return (count > best_count && self.count <= self.system.gpus.len())
                || count * draft.inter > best_count * best.inter;
        }
        let (sum, best_sum) = (count * draft.intra, best_count * best.intra);
        let is_alike = draft.pattern == best.pattern && draft.cross_nic == best.cross_nic;
        sum > best_sum || (sum == best_sum && is_alike && draft.hops < best.hops)
    }

    fn route(&self, from: Place, to: Place) -> &'a Route {
        let system = self.system;
        match (from, to) {
            (Place::Gpu(from), Place::Gpu(to)) => &system.gpu_to_gpu[from][to],
            (Place::Gpu(from), Place::Nic(to)) => &system.gpu_to_nic[from][to],
            (Place::Nic(from), Place::Gpu(to)) => &system.nic_to_gpu[from][to],
            (Place::Gpu(from), Place::Switch) => &system.gpu_to_switch[from],
            (Place::Switch, Place::Gpu(to)) => &system.switch_to_gpu[to],
            _ => unreachable!("channels go from or to a GPU"),
        }
    }

    /// Takes what a channel needs on a way: `share / parts` of its bandwidth. Whether there was enough, and the way is
    /// short enough.
    fn take(&mut self, from: Place, to: Place, share: i64, parts: i64) -> bool {
        let route = self.route(from, to);
        let is_intra = is_intra(from, to);
        let limit = if is_intra { self.draft.type_intra } else { self.draft.type_inter };
        if route.kind >= PathType::Dis {
            return false;
        }
        if share == 1 && (parts == 1 || !is_intra) {
            let is_tree =
                matches!(self.draft.pattern, Pattern::BalancedTree | Pattern::Tree | Pattern::SplitTree);
            // Trees carry data both ways.
            if route.kind > limit || (is_tree && self.route(to, from).kind > limit) {
                return false;
            }
        }
        let hops = route.hops.len();
        let taken = self.follow(from, to, share, parts, hops, 1);
        if taken < hops {
            self.follow(from, to, share, parts, taken, -1);
            return false;
        }
        self.draft.hops += share * hops as i64;
        true
    }

    fn give_back(&mut self, from: Place, to: Place, share: i64, parts: i64) {
        let hops = self.route(from, to).hops.len();
        self.follow(from, to, share, parts, hops, -1);
        self.draft.hops -= share * hops as i64;
    }

    /// Takes (`sign` 1) or gives back (-1) along the first `steps` hops; how many of them had enough.
    fn follow(&mut self, from: Place, to: Place, share: i64, parts: i64, steps: usize, sign: i64) -> usize {
        let route = self.route(from, to);
        let channel = if is_intra(from, to) { self.draft.intra } else { self.draft.inter };
        let bandwidth = channel * share / parts;
        let starts_at_gpu = matches!(from, Place::Gpu(_));
        // Intel CPUs pass on PCIe traffic at 5/6 of its speed.
        let is_slow = route.kind == PathType::Phb && starts_at_gpu && route.crosses_intel;
        // What NICs write to old GPUs costs an eighth in the other direction.
        let costs_back = !starts_at_gpu && self.system.capability < 80;
        for (step, hop) in route.hops[..steps].iter().enumerate() {
            let amount = if hop.is_pci && is_slow { bandwidth * 6 / 5 } else { bandwidth };
            let back = if hop.ends_at_gpu && costs_back { amount / 8 } else { 0 };
            if sign > 0 && (self.edges[hop.edge] < amount || (back > 0 && self.edges[hop.edge ^ 1] < back)) {
                return step;
            }
            self.edges[hop.edge] -= sign * amount;
            self.edges[hop.edge ^ 1] -= sign * back;
        }
        steps
    }

    /// The GPUs to try after this one, most promising first.
    fn gpus_to_try(&self, gpu: usize, step: usize, goals: Goals) -> Few {
        let system = self.system;
        let count = system.gpus.len();
        let nic = goals.nic.map(|_| self.draft.channels[self.count].enter);
        let gigabytes = |bandwidth: Megabytes| bandwidth / 1000;
        let peers = (1..count).map(|turn| (turn, (gpu + turn) % count));
        let mut scores: Vec<_> = peers
            .filter(|(_, peer)| self.is_free(gpu, *peer))
            .map(|(turn, peer)| {
                let own = &system.gpu_to_gpu[gpu][peer];
                let to_nic = nic.map(|nic| {
                    let route = &system.nic_to_gpu[nic][peer];
                    let pci = self.pci_left(peer);
                    (Reverse(gigabytes(route.bandwidth)), Reverse(pci), route.hops.len())
                });
                ((to_nic, Reverse(gigabytes(own.bandwidth)), own.hops.len(), turn), peer)
            })
            .collect();
        scores.sort_unstable();
        let is_alike = scores.windows(2).all(|pair| {
            let ((_, a, b, _), (_, c, d, _)) = (pair[0].0, pair[1].0);
            (a, b) == (c, d)
        });
        let mut next: Few = scores.into_iter().map(|(_, peer)| peer).collect();
        if goals.nic.is_some_and(|goal| goal != step + 1) && is_alike {
            next.reverse();
        }
        next
    }

    /// Whether the channel can go on to `peer` from `gpu`.
    fn is_free(&self, gpu: usize, peer: usize) -> bool {
        self.used[peer] & (1 << self.count) == 0 && !self.system.gpu_to_gpu[gpu][peer].hops.is_empty()
    }

    /// NVLink switches work best where few talk to each: only the neighbours of a GPU are tried.
    fn neighbours_of(&self, gpu: usize) -> Few {
        let count = self.system.gpus.len();
        let (before, after) = ((gpu + count - 1) % count, (gpu + 1) % count);
        let mut next: Few = match self.draft.pattern {
            Pattern::Ring => smallvec![before, after],
            Pattern::SplitTree | Pattern::BalancedTree => smallvec![after, before],
            _ => smallvec![after],
        };
        next.dedup();
        next.retain(|peer| self.is_free(gpu, *peer));
        next
    }

    /// What is left of the PCIe link of a GPU, in GB/s.
    fn pci_left(&self, gpu: usize) -> i64 {
        self.system.gpu_pci[gpu].map_or(-1, |edge| self.edges[edge].min(self.edges[edge ^ 1]) / 1000)
    }
}

fn is_intra(from: Place, to: Place) -> bool {
    !matches!(from, Place::Nic(_)) && !matches!(to, Place::Nic(_))
}

/// The NICs to try, for channels that begin at any of these GPUs or go back to the network from it: first those that GPUs
/// use by themselves, then the others that are near enough.
fn nics_to_try(system: &System, gpus: &[usize], type_inter: PathType) -> Vec<usize> {
    let mut nics = Vec::new();
    let own = gpus.iter().map(|gpu| &system.own_nics[*gpu]);
    if system.has_trays {
        // One of each GPU, then the next of each: the trays of a rack take turns.
        let most = own.clone().map(Vec::len).max().unwrap_or(0);
        for turn in 0..most {
            nics.extend(own.clone().filter_map(|own| own.get(turn)));
        }
    } else {
        nics.extend(own.flatten());
    }
    let mut others: Vec<(PathType, usize, usize)> = Vec::new();
    for gpu in gpus {
        let routes = system.gpu_to_nic[*gpu].iter().enumerate();
        let near = routes.filter(|(_, route)| route.kind <= type_inter);
        others.extend(near.map(|(nic, route)| (route.kind, *gpu, nic)));
    }
    others.sort_unstable();
    nics.extend(others.into_iter().map(|(_, _, nic)| nic));
    let mut seen = vec![false; system.nics.len()];
    nics.retain(|nic| !std::mem::replace(&mut seen[*nic], true));
    nics
}
