//! Groups: made, used and released by the application.

use std::collections::VecDeque;

use railnet_core::event::Sink;
use railnet_core::{QueuePairNumber, Time};
use railnet_nic::memory::{GhostRuns, Segments, SpaceId};
use railnet_nic::{
    Access, CompletionQueue, Connection, Context, Key, Nic, Path, ProtectionDomain, QueuePairConfig,
    ReceiveRequest, Service, Sge, VerbsError,
};
use railnet_topology::Vertex;

use super::attach::COMPLETIONS;
use super::tree::{Choice, PlanNode};
use super::{Aggregation, ContributeError, Contribution, Group, Member, ReductionFailure, Refused, Role};
use crate::model::fabric::Fabric;
use crate::model::host::Endpoints;
use crate::model::topology::Topology;
use crate::network::{Network, host_gid};

/// The address at which the buffers of switches begin.
const BASE: u64 = 1 << 20;

/// Work that the acknowledgements of a peer may lag behind by, in units of what may be under way.
const LAG: u32 = 4;

/// Slots of one kind in the memory of a switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    pub(super) space: SpaceId,
    pub(super) key: Key,
}

impl Slots {
    /// The scatter/gather entry of a segment.
    pub(super) fn sge(self, slot: u64, segment: u32, length: u32) -> Sge {
        Sge { address: BASE + slot * u64::from(segment), length, key: self.key }
    }
}

/// A child of a switch in the tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child {
    /// The host or the switch, as hosts are numbered.
    pub(super) host: u32,
    /// The switch's queue pair to it.
    pub(super) queue_pair: QueuePairNumber,
    /// Where its contributions arrive, if any member there contributes.
    pub(super) slots: Option<Slots>,
    /// Whether a member there receives the result.
    pub(super) receives: bool,
    /// Segments that have arrived.
    pub(super) arrived: u64,
}

/// What has arrived of a segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Partial {
    pub(super) count: u32,
    /// The child that the others are compared with: its index, the length it sent, and whether that ended a contribution.
    pub(super) first: Option<(u32, u32, bool)>,
    /// The sum so far.
    pub(super) sum: Option<GhostRuns>,
}

/// A switch of a group.
#[derive(Debug)]
pub(super) struct Node {
    /// As hosts are numbered.
    pub(super) host: u32,
    pub(super) children: Vec<Child>,
    /// The queue pair to the parent; the root has none.
    pub(super) parent: Option<QueuePairNumber>,
    /// Sums on the way to the parent, if a child contributes and there is a parent.
    pub(super) up: Option<Slots>,
    /// Results on the way down, if a child receives.
    pub(super) down: Option<Slots>,
    pub(super) partial: Vec<Partial>,
    /// Results sent down.
    pub(super) results: u64,
}

/// A contribution under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) given: Contribution,
    pub(super) length: u32,
    pub(super) segments: u32,
    pub(super) sent: u32,
    pub(super) received: u32,
}

/// A member of a group.
#[derive(Debug)]
pub(super) struct MemberState {
    pub(super) host: u32,
    pub(super) role: Role,
    pub(super) queue_pair: QueuePairNumber,
    pub(super) pending: VecDeque<Pending>,
    /// The first of those with segments left to send.
    pub(super) sending: usize,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Contributions so far.
    given: u64,
}

/// The state of a group.
#[derive(Debug, Default)]
pub(super) struct GroupState {
    pub(super) members: Vec<MemberState>,
    /// Children before their parents.
    pub(super) nodes: Vec<Node>,
    pub(super) failure: Option<ReductionFailure>,
    /// The team whose contexts it uses.
    team: u32,
    /// What was made for it, to be destroyed with it.
    queue_pairs: Vec<(u32, QueuePairNumber)>,
    regions: Vec<(u32, Key, SpaceId)>,
}

/// Groups of the same members, which share the contexts of one tree.
#[derive(Debug)]
pub(super) struct Team {
    tree: Vec<PlanNode>,
    /// Where the members are.
    hosts: Vec<u32>,
    /// Groups that use it.
    groups: u32,
}

/// The addressee of a message: the work request number of all work of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Addressee {
    pub(super) group: u32,
    /// A switch of the group; `None` for a member.
    pub(super) node: Option<u32>,
    /// The child of the switch, or `None` for its parent; for a member, its index.
    pub(super) edge: Option<u32>,
}

impl Addressee {
    const NONE: u64 = (1 << 20) - 1;

    pub(super) fn work(self) -> u64 {
        let part = |part: Option<u32>| part.map_or(Self::NONE, u64::from);
        u64::from(self.group) << 40 | part(self.node) << 20 | part(self.edge)
    }

    pub(super) fn of(work: u64) -> Self {
        let part =
            |bits: u64| Some(bits & Self::NONE).filter(|part| *part != Self::NONE).map(|part| part as u32);
        Self { group: (work >> 40) as u32, node: part(work >> 20), edge: part(work) }
    }
}

/// One end of a connection to be made.
#[derive(Clone, Copy)]
struct End {
    host: u32,
    domain: ProtectionDomain,
    queue: CompletionQueue,
}

impl<S: Sink> Network<S> {
    /// Makes a group of members whose contributions the switches reduce. It has a reduction context on each switch of its
    /// tree until it is released. `like` says what its connections are like; their ends are set for each.
    pub fn aggregate(&mut self, members: &[Member], like: &Connection) -> Result<Group, Refused> {
        let Self { aggregation, topology, fabric, .. } = self;
        let Some(aggregation) = aggregation else { return Err(Refused::Off) };
        somebody_contributes(members)?;
        let tree = aggregation.plan_tree(topology, fabric, members)?;
        let hosts = members.iter().map(|member| member.host).collect();
        let team = aggregation.add_team(Team { tree, hosts, groups: 0 });
        let Some((aggregation, mut nics)) = self.aggregation() else { return Err(Refused::Off) };
        aggregation.make_group(&mut nics, team, members, like)
    }

    /// Makes one more group of the members of another, in the same order; roles may differ. It shares the contexts of the
    /// other, as what a communicator does at once shares those of its communicator: they are given back with the last of
    /// such groups.
    pub fn aggregate_beside(
        &mut self,
        other: Group,
        members: &[Member],
        like: &Connection,
    ) -> Result<Group, Refused> {
        let Some((aggregation, mut nics)) = self.aggregation() else { return Err(Refused::Off) };
        somebody_contributes(members)?;
        let team = aggregation.team_of(other, members).ok_or(Refused::Others)?;
        aggregation.make_group(&mut nics, team, members, like)
    }

    /// A member contributes to the next reduction, and says where the result goes. [`crate::Application::reduced`] is called
    /// when it is there.
    pub fn contribute(
        &mut self,
        group: Group,
        member: u32,
        contribution: Contribution,
    ) -> Result<(), ContributeError> {
        let Some((aggregation, mut nics)) = self.aggregation() else { return Err(ContributeError::Unknown) };
        let host = aggregation.give(&mut nics, group, member, contribution)?;
        self.kick(host);
        Ok(())
    }

    /// Members that have contributed less often than others: a group without a result waits for them.
    pub fn missing(&mut self, group: Group) -> Vec<u32> {
        self.aggregation.as_mut().map_or_else(Vec::new, |aggregation| aggregation.missing(group))
    }

    /// Destroys a group and gives its contexts back. What it has under way is lost.
    pub fn release(&mut self, group: Group) {
        let Some((aggregation, mut nics)) = self.aggregation() else { return };
        aggregation.release(&mut nics, group);
    }

    /// Groups that each switch serves.
    pub fn contexts_in_use(&self) -> Vec<u32> {
        let reducers = self.aggregation.iter().flat_map(|aggregation| &aggregation.reducers);
        reducers.map(|reducer| reducer.used).collect()
    }

    /// The groups, and the NICs that carry their messages.
    pub(super) fn aggregation(&mut self) -> Option<(&mut Aggregation, HostNics<'_, S>)> {
        let Self { now, memory, sink, topology, endpoints, aggregation, .. } = self;
        let nics = HostNics { now: *now, memory, sink, topology, endpoints };
        Some((aggregation.as_mut()?, nics))
    }
}

/// The NICs of hosts and of switches that reduce, with what their calls need.
pub(super) struct HostNics<'a, S> {
    now: Time,
    pub(super) memory: &'a mut Segments,
    sink: &'a mut S,
    pub(super) topology: &'a Topology,
    pub(super) endpoints: &'a mut Endpoints,
}

impl<S: Sink> HostNics<'_, S> {
    pub(super) fn nic(&mut self, host: u32) -> (&mut Nic, Context<'_, Segments, S>) {
        let nic = &mut self.endpoints.hosts[host as usize].nic;
        (nic, Context::new(self.now, self.memory, self.sink))
    }

    pub(super) fn host_count(&self) -> u32 {
        self.topology.host_count
    }
}

impl Aggregation {
    fn missing(&mut self, group: Group) -> Vec<u32> {
        let Some(state) = self.group(group) else { return Vec::new() };
        let most = state.members.iter().map(|member| member.given).max().unwrap_or(0);
        let all = state.members.iter().enumerate();
        all.filter(|(_, member)| member.given < most).map(|(index, _)| index as u32).collect()
    }

    fn release<S: Sink>(&mut self, nics: &mut HostNics<'_, S>, group: Group) {
        if let Some(state) = self.groups.get_mut(group.0 as usize).and_then(Option::take) {
            self.give_back(nics, &state);
            self.free.push(group.0);
        }
    }

    fn plan_tree(
        &self,
        topology: &Topology,
        fabric: &Fabric,
        members: &[Member],
    ) -> Result<Vec<PlanNode>, Refused> {
        let leaf = |member: &Member| {
            let host = || topology.graph.name(Vertex::Host(member.host)).to_owned();
            topology.routes.leaf_of(member.host).ok_or_else(|| Refused::Unreachable { host: host() })
        };
        let leaves = members.iter().map(leaf).collect::<Result<Vec<_>, _>>()?;
        let used: Vec<u32> = self.reducers.iter().map(|reducer| reducer.used).collect();
        let choice = Choice {
            routes: &topology.routes,
            first: topology.host_count,
            used: &used,
            contexts: self.config.contexts,
            beyond: &|switch, port| match fabric.channels
                [fabric.switches[switch as usize].ports[usize::from(port)] as usize]
                .to
            {
                Vertex::Switch(next) => Some(next),
                Vertex::Host(_) => None,
            },
            name: &|switch| topology.graph.name(Vertex::Switch(switch)).to_owned(),
        };
        choice.plan(&leaves)
    }

    fn make_group<S: Sink>(
        &mut self,
        nics: &mut HostNics<'_, S>,
        team: u32,
        members: &[Member],
        like: &Connection,
    ) -> Result<Group, Refused> {
        self.join(team);
        let index = self.free.pop().unwrap_or(self.groups.len() as u32);
        if index as usize == self.groups.len() {
            self.groups.push(None);
        }
        let mut state = GroupState { team, ..GroupState::default() };
        let plan = self.team(team).map_or_else(Vec::new, |team| team.tree.clone());
        match self.build(nics, &mut state, index, &plan, members, like) {
            Ok(()) => {
                self.groups[index as usize] = Some(state);
                Ok(Group(index))
            }
            Err((host, reason)) => {
                self.give_back(nics, &state);
                self.free.push(index);
                let at = nics.topology.graph.name(Vertex::Host(host)).to_owned();
                Err(Refused::Verbs { at, reason })
            }
        }
    }

    /// Makes all that a group consists of; what was made is in `state` also when a NIC refuses.
    fn build<S: Sink>(
        &mut self,
        nics: &mut HostNics<'_, S>,
        state: &mut GroupState,
        group: u32,
        plan: &[PlanNode],
        members: &[Member],
        like: &Connection,
    ) -> Result<(), (u32, VerbsError)> {
        // Indices of switches are known before their nodes are made: members name no node, nodes name their parent.
        let mut children: Vec<Vec<Child>> = plan.iter().map(|_| Vec::new()).collect();
        let mut own: Vec<Option<MemberState>> = members.iter().map(|_| None).collect();
        for (place, node) in plan.iter().enumerate() {
            let above = self.end_of(nics, node.switch);
            for &index in &node.members {
                let Member { host, domain, role } = members[index as usize];
                let below = End { host, domain, queue: self.queue_of(nics, host)? };
                let [near, far] = self.connect(nics, state, [below, above], like)?;
                let child =
                    Child { host, queue_pair: far, slots: None, receives: role.receives(), arrived: 0 };
                children[place].push(self.child(nics, state, above, child, role.contributes())?);
                let pending = VecDeque::new();
                own[index as usize] = Some(MemberState {
                    host,
                    role,
                    queue_pair: near,
                    pending,
                    sending: 0,
                    sent: 0,
                    received: 0,
                    given: 0,
                });
            }
            let contributes = children[place].iter().any(|child| child.slots.is_some());
            let receives = children[place].iter().any(|child| child.receives);
            let parent = match node.parent {
                None => None,
                Some(parent) => {
                    let beyond = self.end_of(nics, plan[parent].switch);
                    let [near, far] = self.connect(nics, state, [above, beyond], like)?;
                    let child =
                        Child { host: above.host, queue_pair: far, slots: None, receives, arrived: 0 };
                    children[parent].push(self.child(nics, state, beyond, child, contributes)?);
                    Some(near)
                }
            };
            let up = match contributes && parent.is_some() {
                true => Some(self.slots(nics, state, above)?),
                false => None,
            };
            let down = match receives {
                true => Some(self.slots(nics, state, above)?),
                false => None,
            };
            let partial = vec![Partial::default(); self.config.slots.max(1) as usize];
            let children = std::mem::take(&mut children[place]);
            let host = above.host;
            let node = Node { host, children, parent, up, down, partial, results: 0 };
            self.post_receives(nics, &node, Addressee { group, node: Some(place as u32), edge: None });
            state.nodes.push(node);
        }
        state.members = own.into_iter().flatten().collect();
        Ok(())
    }

    fn end_of<S: Sink>(&self, nics: &HostNics<'_, S>, switch: u32) -> End {
        let super::Reducer { domain, queue, .. } = self.reducers[switch as usize];
        End { host: nics.host_count() + switch, domain, queue }
    }

    /// The queue on which the members of a host hear of results.
    fn queue_of<S: Sink>(
        &mut self,
        nics: &mut HostNics<'_, S>,
        host: u32,
    ) -> Result<CompletionQueue, (u32, VerbsError)> {
        if let Some(queue) = self.queues.get(&host) {
            return Ok(*queue);
        }
        let state = &mut nics.endpoints.hosts[host as usize];
        let queue = state.nic.create_cq(COMPLETIONS).map_err(|reason| (host, reason))?;
        state.reduces = Some(queue);
        self.queues.insert(host, queue);
        Ok(queue)
    }

    /// Connects two ends.
    fn connect<S: Sink>(
        &self,
        nics: &mut HostNics<'_, S>,
        state: &mut GroupState,
        ends: [End; 2],
        like: &Connection,
    ) -> Result<[QueuePairNumber; 2], (u32, VerbsError)> {
        let depth = self.config.slots.max(1).saturating_mul(LAG).saturating_add(16);
        let mut made = [QueuePairNumber::new(0); 2];
        for (end, number) in ends.iter().zip(&mut made) {
            let config = QueuePairConfig {
                send_depth: depth,
                receive_depth: depth,
                ..QueuePairConfig::new(Service::ReliableConnection, end.queue)
            };
            let (nic, _) = nics.nic(end.host);
            *number = nic.create_qp(end.domain, &config).map_err(|reason| (end.host, reason))?;
            state.queue_pairs.push((end.host, *number));
        }
        for (near, far) in [(0, 1), (1, 0)] {
            let path = Path { target: host_gid(ends[far].host), ..like.path };
            let connection = Connection { path, destination: made[far], ..*like };
            let (nic, mut cx) = nics.nic(ends[near].host);
            for change in connection.transitions() {
                nic.modify_qp(&mut cx, made[near], &change).map_err(|reason| (ends[near].host, reason))?;
            }
        }
        Ok(made)
    }

    /// Memory for what a child sends, if it contributes.
    fn child<S: Sink>(
        &self,
        nics: &mut HostNics<'_, S>,
        state: &mut GroupState,
        at: End,
        mut child: Child,
        contributes: bool,
    ) -> Result<Child, (u32, VerbsError)> {
        if contributes {
            child.slots = Some(self.slots(nics, state, at)?);
        }
        Ok(child)
    }

    fn slots<S: Sink>(
        &self,
        nics: &mut HostNics<'_, S>,
        state: &mut GroupState,
        at: End,
    ) -> Result<Slots, (u32, VerbsError)> {
        let length = u64::from(self.config.slots.max(1)) * u64::from(self.segment());
        let space = nics.memory.add_ghost(BASE, length);
        let (nic, cx) = nics.nic(at.host);
        let key = nic.reg_mr(cx.memory, at.domain, space, BASE, length, Access::LOCAL_WRITE, None);
        let key = match key {
            Ok(key) => key,
            Err(reason) => {
                nics.memory.remove(space);
                return Err((at.host, reason));
            }
        };
        state.regions.push((at.host, key, space));
        Ok(Slots { space, key })
    }

    /// Posts receives for all that a switch's children may send before they hear from it.
    fn post_receives<S: Sink>(&self, nics: &mut HostNics<'_, S>, node: &Node, addressee: Addressee) {
        for (edge, child) in node.children.iter().enumerate() {
            for slot in 0..u64::from(self.config.slots.max(1)) {
                let work = Addressee { edge: Some(edge as u32), ..addressee }.work();
                let request = self.receive(work, child.slots, slot);
                let (nic, mut cx) = nics.nic(node.host);
                nic.post_recv(&mut cx, child.queue_pair, request).expect("its queue is deeper than that");
            }
        }
    }

    fn give<S: Sink>(
        &mut self,
        nics: &mut HostNics<'_, S>,
        group: Group,
        member: u32,
        contribution: Contribution,
    ) -> Result<u32, ContributeError> {
        let segment = self.segment();
        let state = self.group(group).ok_or(ContributeError::Unknown)?;
        if let Some(failure) = &state.failure {
            return Err(ContributeError::Failed(failure.clone()));
        }
        let own = state.members.get_mut(member as usize).ok_or(ContributeError::Unknown)?;
        let length = own.fitting(member, &contribution)?;
        let segments = length.div_ceil(segment).max(1);
        own.given += 1;
        own.pending.push_back(Pending { given: contribution, length, segments, sent: 0, received: 0 });
        let host = own.host;
        self.pump(nics, group.0, member).map_err(|reason| ContributeError::Post { member, reason })?;
        Ok(host)
    }

    fn give_back<S: Sink>(&mut self, nics: &mut HostNics<'_, S>, state: &GroupState) {
        self.leave(state.team);
        for (host, queue_pair) in &state.queue_pairs {
            let (nic, _) = nics.nic(*host);
            nic.destroy_qp(*queue_pair).expect("a queue pair of the group is there until it ends");
        }
        for (host, key, space) in &state.regions {
            let (nic, _) = nics.nic(*host);
            nic.dereg_mr(*key).expect("a region of the group is there until it ends");
            nics.memory.remove(*space);
        }
    }
}

fn somebody_contributes(members: &[Member]) -> Result<(), Refused> {
    let is_so = members.iter().any(|member| member.role.contributes());
    if is_so { Ok(()) } else { Err(Refused::NoContributor) }
}

impl MemberState {
    /// The length of a contribution that fits the role of a member.
    fn fitting(&self, member: u32, given: &Contribution) -> Result<u32, ContributeError> {
        let wrong = |what| ContributeError::Role { member, what };
        if given.source.is_some() != self.role.contributes() {
            return Err(wrong(match given.source {
                Some(_) => "only receives, but gave something",
                None => "contributes, but gave nothing",
            }));
        }
        if given.target.is_some() != self.role.receives() {
            return Err(wrong(match given.target {
                Some(_) => "only contributes, but wants the result",
                None => "wants the result, but has no place for it",
            }));
        }
        match (given.source, given.target) {
            (Some(source), Some(target)) if source.length != target.length => {
                Err(wrong("has a place for the result that is not as long as what it gave"))
            }
            (Some(sge), _) | (None, Some(sge)) => Ok(sge.length),
            (None, None) => Err(wrong("neither contributes nor receives")),
        }
    }
}

impl Aggregation {
    fn add_team(&mut self, team: Team) -> u32 {
        let free = self.teams.iter().position(Option::is_none);
        let index = free.unwrap_or(self.teams.len());
        if index == self.teams.len() {
            self.teams.push(None);
        }
        self.teams[index] = Some(team);
        index as u32
    }

    fn team(&mut self, team: u32) -> Option<&mut Team> {
        self.teams.get_mut(team as usize).and_then(Option::as_mut)
    }

    /// The team of a group, where it has these members.
    fn team_of(&mut self, group: Group, members: &[Member]) -> Option<u32> {
        let index = self.group(group)?.team;
        let hosts = &self.team(index)?.hosts;
        hosts.iter().eq(members.iter().map(|member| &member.host)).then_some(index)
    }

    /// One more group uses a team; with the first, its tree takes contexts.
    fn join(&mut self, team: u32) {
        let Some(team) = &mut self.teams[team as usize] else { return };
        team.groups += 1;
        if team.groups == 1 {
            for node in &team.tree {
                self.reducers[node.switch as usize].used += 1;
            }
        }
    }

    /// A group uses a team no longer; with the last, its tree gives the contexts back.
    fn leave(&mut self, index: u32) {
        let Some(team) = &mut self.teams[index as usize] else { return };
        team.groups -= 1;
        if team.groups == 0 {
            for node in &team.tree {
                self.reducers[node.switch as usize].used -= 1;
            }
            self.teams[index as usize] = None;
        }
    }

    pub(super) fn segment(&self) -> u32 {
        self.config.segment.as_u64().clamp(1, 1 << 30) as u32
    }

    /// A receive for a segment that comes into a slot, or that is empty.
    pub(super) fn receive(&self, work: u64, slots: Option<Slots>, slot: u64) -> ReceiveRequest {
        let request = ReceiveRequest::new(work);
        match slots {
            Some(slots) => request.with(slots.sge(slot, self.segment(), self.segment())),
            None => request,
        }
    }
}
