//! The loop of the supervisor.

use std::io::{self, ErrorKind, IsTerminal as _, Read as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::guard::Guard;
use super::lines::Lines;
use super::outcome::{ExitKind, Outcome, RankExit};
use super::signals::Signals;
use super::{Output, Plan, Stream, SupervisorError, parent_death};
use crate::{Secret, socket};

/// ExitKind long output is read after all ranks have ended, if a child of theirs still has it open.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// The longest poll.
const POLL_MAX: Duration = Duration::from_hours(1);
/// Bytes read at a time.
const READ_SIZE: usize = 64 * 1024;

/// An open output stream of a rank.
struct Source {
    rank: u32,
    stream: Stream,
    pipe: std::fs::File,
    lines: Lines,
}

struct Running {
    rank: u32,
    process: Child,
    how: Option<ExitKind>,
}

/// Why ranks are being ended.
enum Cause {
    Failure(RankExit),
    Limit,
    Signal(i32),
}

struct Job<'a> {
    plan: &'a Plan,
    ranks: Vec<Running>,
    sources: Vec<Source>,
    guard: Option<Guard>,
    /// Why ranks are being ended, those that ran then, and when they are killed, unless that has been done.
    ending: Option<(Cause, Vec<u32>)>,
    kill_at: Option<Instant>,
    interrupts: u32,
}

/// What all ranks of a job share.
struct Common {
    /// Reserves the port of the rendezvous.
    _port: OwnedFd,
    variables: Vec<(&'static str, String)>,
}

pub(super) fn run(plan: &Plan, output: &mut dyn Output) -> Result<Outcome, SupervisorError> {
    let mut signals = Signals::catch()?;
    let common = common(plan)?;
    let mut job = Job {
        plan,
        ranks: Vec::new(),
        sources: Vec::new(),
        guard: Guard::start(),
        ending: None,
        kill_at: None,
        interrupts: 0,
    };
    for rank in 0..plan.slots.len() as u32 {
        job.start(rank, &common, output)?;
    }
    let began = Instant::now();
    let limit = plan.limit.map(|limit| began + limit);
    let mut drained_at = None;
    loop {
        let is_over = job.ranks.iter().all(|one| one.how.is_some());
        if is_over && job.sources.is_empty() {
            break;
        }
        let now = Instant::now();
        if is_over && now >= *drained_at.get_or_insert(now + DRAIN_MAX) {
            break;
        }
        let limit = limit.filter(|_| job.ending.is_none());
        let times = [limit, job.kill_at, drained_at, Some(now + POLL_MAX)];
        job.sleep(&signals, times.into_iter().flatten().min().unwrap_or(now))?;
        for signal in signals.take() {
            job.signalled(signal);
        }
        job.read(output).map_err(SupervisorError::Output)?;
        job.reap()?;
        let now = Instant::now();
        if limit.is_some_and(|limit| now >= limit) {
            job.end(Cause::Limit, Signal::TERM);
        }
        if job.kill_at.is_some_and(|at| now >= at) {
            job.kill_at = None;
            job.tell(Signal::KILL);
        }
    }
    for source in &mut job.sources {
        let (rank, stream) = (source.rank, source.stream);
        source.lines.finish(|line| output.line(rank, stream, line)).map_err(SupervisorError::Output)?;
    }
    output.flush().map_err(SupervisorError::Output)?;
    Ok(job.outcome())
}

fn common(plan: &Plan) -> io::Result<Common> {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let (port_holder, port) = socket::reserve(loopback)?;
    // PyTorch's store shares its port with nobody, so this one is found free and released.
    let (_, master_port) = socket::reserve(loopback)?;
    let job = Secret::fresh()?;
    let size = plan.slots.len().to_string();
    let mut variables = vec![
        ("RAILNET_WORLD_SIZE", size.clone()),
        ("RAILNET_RENDEZVOUS", format!("{loopback}:{port}")),
        ("RAILNET_JOB", job.clone()),
        ("WORLD_SIZE", size.clone()),
        ("ROLE_WORLD_SIZE", size),
        ("ROLE_NAME", "default".to_owned()),
        ("MASTER_ADDR", loopback.to_string()),
        ("MASTER_PORT", master_port.to_string()),
        ("TORCHELASTIC_RUN_ID", job),
        ("TORCHELASTIC_RESTART_COUNT", "0".to_owned()),
        ("TORCHELASTIC_MAX_RESTARTS", "0".to_owned()),
    ];
    if std::env::var_os("RAILNET_SECRET").is_none_or(|secret| secret.is_empty()) {
        variables.push(("RAILNET_SECRET", Secret::fresh()?));
    }
    // As torchrun does: several ranks with as many threads as there are cores each would oversubscribe the host.
    if plan.slots.len() > 1 && std::env::var_os("OMP_NUM_THREADS").is_none() {
        variables.push(("OMP_NUM_THREADS", "1".to_owned()));
    }
    Ok(Common { _port: port_holder, variables })
}

impl Job<'_> {
    fn start(&mut self, rank: u32, common: &Common, output: &mut dyn Output) -> Result<(), SupervisorError> {
        let plan = self.plan;
        let slot = &plan.slots[rank as usize];
        let mut command = Command::new(&plan.program);
        command.args(&plan.arguments).env_remove("RAILNET_LAUNCHER").process_group(0);
        command.envs(common.variables.iter().map(|(name, value)| (*name, value)));
        command.env("RAILNET_HOST_GROUP", &slot.group);
        for (names, value) in [
            (&["RAILNET_RANK", "RANK", "ROLE_RANK"][..], rank),
            (&["RAILNET_LOCAL_RANK", "LOCAL_RANK"], slot.local_rank),
            (&["RAILNET_LOCAL_SIZE", "LOCAL_WORLD_SIZE"], slot.local_size),
            (&["RAILNET_NODE", "GROUP_RANK", "NODE_RANK"], slot.node),
            (&["RAILNET_NODES", "GROUP_WORLD_SIZE"], slot.nodes),
        ] {
            command.envs(names.iter().map(|name| (name, value.to_string())));
        }
        command.envs(plan.variables.iter().map(|(name, value)| (name, value)));
        // The kernel stops a background group that reads a terminal, so only a pipe or a file is inherited.
        let is_for_rank = rank == 0 && !io::stdin().is_terminal();
        command.stdin(if is_for_rank { Stdio::inherit() } else { Stdio::null() });
        for stream in [Stream::Out, Stream::Error] {
            let target =
                output.file(rank, stream).map_err(SupervisorError::Output)?.unwrap_or_else(Stdio::piped);
            match stream {
                Stream::Out => command.stdout(target),
                Stream::Error => command.stderr(target),
            };
        }
        parent_death::bind(&mut command);
        let mut process = command.spawn().map_err(|error| self.not_started(rank, error))?;
        let pipes = [
            (Stream::Out, process.stdout.take().map(OwnedFd::from)),
            (Stream::Error, process.stderr.take().map(OwnedFd::from)),
        ];
        self.ranks.push(Running { rank, process, how: None });
        for (stream, pipe) in pipes {
            if let Some(pipe) = pipe {
                rustix::io::ioctl_fionbio(&pipe, true).map_err(io::Error::from)?;
                self.sources.push(Source { rank, stream, pipe: pipe.into(), lines: Lines::default() });
            }
        }
        self.inform_guard();
        Ok(())
    }

    fn not_started(&self, rank: u32, error: io::Error) -> SupervisorError {
        let program = self.plan.program.to_string_lossy().into_owned();
        let path = Path::new(&self.plan.program);
        let cause = match error.kind() {
            ErrorKind::NotFound if path.exists() => "its interpreter, named in its first line, is not there",
            ErrorKind::NotFound if program.contains('/') => "there is no such file",
            ErrorKind::NotFound => "there is no such program in the folders of PATH",
            ErrorKind::PermissionDenied if path.is_dir() => "it is a directory",
            ErrorKind::PermissionDenied => "it may not be run: chmod +x makes a file a program",
            _ => return SupervisorError::Start { rank, error },
        };
        SupervisorError::NoProgram { program, cause: cause.to_owned() }
    }

    fn inform_guard(&mut self) {
        let running = self.ranks.iter().filter(|one| one.how.is_none()).map(|one| one.process.id());
        // Without the guard ranks still have their parent-death signal.
        if self.guard.as_mut().is_some_and(|guard| guard.watch(running).is_err()) {
            self.guard = None;
        }
    }

    fn sleep(&self, signals: &Signals, until: Instant) -> io::Result<()> {
        let mut fds = vec![PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        fds.extend(self.sources.iter().map(|source| PollFd::new(&source.pipe, PollFlags::IN)));
        socket::wait(&mut fds, until)
    }

    /// Reads what has arrived, from each rank in turn.
    fn read(&mut self, output: &mut dyn Output) -> io::Result<()> {
        let mut buffer = vec![0; READ_SIZE];
        let mut failure = Ok(());
        self.sources.retain_mut(|source| {
            let (rank, stream) = (source.rank, source.stream);
            let mut line = |line: &[u8]| output.line(rank, stream, line);
            let (written, is_open) = match source.pipe.read(&mut buffer) {
                Ok(0) => (source.lines.finish(&mut line), false),
                Ok(count) => (source.lines.push(&buffer[..count], &mut line), true),
                Err(error) => {
                    let is_open = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
                    (Ok(()), is_open)
                }
            };
            if failure.is_ok() {
                failure = written;
            }
            is_open
        });
        failure?;
        output.flush()
    }

    /// Checks which ranks have ended.
    fn reap(&mut self) -> io::Result<()> {
        let mut ended = Vec::new();
        for one in self.ranks.iter_mut().filter(|one| one.how.is_none()) {
            let pid = pid(&one.process);
            // The process is not reaped, so that its pid, which is that of its group, is not reused until its children are gone
            // as well.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if rustix::process::waitid(WaitId::Pid(pid), options)?.is_none() {
                continue;
            }
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            let how = ExitKind::of(one.process.wait()?);
            one.how = Some(how);
            ended.push(RankExit { rank: one.rank, pid: one.process.id(), how });
        }
        if ended.is_empty() {
            return Ok(());
        }
        self.inform_guard();
        // Of several that failed at once, one that was killed is more likely the cause than one that noticed.
        ended.sort_by_key(|end| (matches!(end.how, ExitKind::Exit(_)), end.rank));
        if let Some(first) = ended.iter().find(|end| !end.how.is_success()).filter(|_| self.ending.is_none())
        {
            let others = ended.iter().filter(|end| end.rank != first.rank && !end.how.is_success());
            let others: Vec<u32> = others.map(|end| end.rank).collect();
            self.end(Cause::Failure(first.clone()), Signal::TERM);
            if let Some((_, running)) = &mut self.ending {
                running.extend(others);
            }
        }
        Ok(())
    }

    fn signalled(&mut self, signal: i32) {
        let Some(passed_on) = Signal::from_named_raw(signal) else {
            return;
        };
        match signal {
            SIGINT | SIGTERM | SIGHUP | SIGQUIT => {
                self.interrupts += u32::from(signal == SIGINT);
                self.end(Cause::Signal(signal), passed_on);
                if self.interrupts > 1 {
                    self.kill_at = Some(Instant::now());
                }
            }
            _ => self.tell(passed_on),
        }
    }

    /// Asks all ranks to end. The first cause counts.
    fn end(&mut self, cause: Cause, signal: Signal) {
        self.tell(signal);
        if self.ending.is_none() {
            let running = self.ranks.iter().filter(|one| one.how.is_none()).map(|one| one.rank);
            self.ending = Some((cause, running.collect()));
            self.kill_at = Some(Instant::now() + self.plan.grace);
        }
    }

    /// Sends a signal to the groups of all ranks that run.
    fn tell(&self, signal: Signal) {
        for one in self.ranks.iter().filter(|one| one.how.is_none()) {
            // A group that has just ended is noticed later.
            let _ = rustix::process::kill_process_group(pid(&one.process), signal);
            // A stopped process must handle it too.
            let _ = rustix::process::kill_process_group(pid(&one.process), Signal::CONT);
        }
    }

    fn outcome(&self) -> Outcome {
        let end = |rank: &u32| {
            let one = &self.ranks[*rank as usize];
            let how = one.how.expect("all ranks have ended");
            RankExit { rank: *rank, pid: one.process.id(), how }
        };
        match &self.ending {
            None => Outcome::Success,
            Some((Cause::Failure(first), others)) => {
                Outcome::Failed { first: first.clone(), others: others.iter().map(end).collect() }
            }
            Some((Cause::Limit, running)) => Outcome::TimedOut { running: running.iter().map(end).collect() },
            Some((Cause::Signal(signal), running)) => {
                Outcome::Stopped { signal: *signal, running: running.iter().map(end).collect() }
            }
        }
    }
}

impl Drop for Job<'_> {
    /// However the supervisor returns, nothing is left behind.
    fn drop(&mut self) {
        self.tell(Signal::KILL);
        for one in self.ranks.iter_mut().filter(|one| one.how.is_none()) {
            let _ = one.process.wait();
        }
    }
}

fn pid(process: &Child) -> Pid {
    Pid::from_child(process)
}
