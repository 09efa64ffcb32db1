//! The ranks of one contestant: started once for a place, asked for one measurement after the other, ended.

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use super::protocol::{Answer, Hello, Request, Times, Work};
use super::weight;

/// How long ranks may take to meet. Loading PyTorch alone takes minutes on a busy machine.
const START_LIMIT: Duration = Duration::from_mins(5);
/// How long a turn may take. Ranks give up a little earlier by themselves.
const TURN_LIMIT: Duration = Duration::from_secs(190);
/// How long ranks have to end when they are asked to, and again when they are told to.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The last so many lines that a team printed are told when it fails.
const PRINTED: usize = 6;
/// Between two looks at something that is awaited.
const PAUSE: Duration = Duration::from_millis(5);

/// Ranks that wait for their turn.
pub(crate) struct Team {
    /// The library and its version, as the ranks tell it.
    pub(crate) name: String,
    children: Vec<Child>,
    ranks: Vec<Player>,
    log: PathBuf,
    is_sound: bool,
}

/// A rank, by its connection and as a process.
struct Player {
    stream: BufReader<UnixStream>,
    /// Launchers start ranks as they like: the system says who is at the other end.
    process: u32,
    /// Ends it and nobody else, however numbers are used again.
    handle: Option<OwnedFd>,
}

/// What came of a turn.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Turn {
    Times(Times),
    /// The library has no such thing, and says so.
    Unsupported(String),
}

impl Team {
    /// Starts all ranks and waits until each has said who it is. `commands` is told where they have to call; the name
    /// tells this team from others in the folder.
    pub(crate) fn start(
        name: &str,
        ranks: u32,
        nice: i32,
        folder: &Path,
        commands: impl FnOnce(&Path) -> Vec<Command>,
    ) -> anyhow::Result<Self> {
        let (socket, log) = (folder.join(format!("{name}.socket")), folder.join(format!("{name}.log")));
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
        listener.set_nonblocking(true)?;
        let output = File::create(&log)?;
        let mut team =
            Self { name: String::new(), children: Vec::new(), ranks: Vec::new(), log, is_sound: false };
        for mut command in commands(&socket) {
            command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
            // Ranks that wait for their turn see the end of their connection; one that hangs does not.
            railnet_live::supervisor::bind(&mut command);
            let child = command.spawn();
            let program = command.get_program().display();
            team.children.push(child.with_context(|| format!("cannot start {program}"))?);
        }
        let hellos = team.gather(&listener, ranks).map_err(|error| team.explain(&error))?;
        let processes: Vec<u32> = team.ranks.iter().map(|rank| rank.process).collect();
        weight::share(&processes, nice);
        team.name.clone_from(&hellos[0].name);
        team.is_sound = true;
        Ok(team)
    }

    /// Takes the calls of all ranks and puts them in order.
    fn gather(&mut self, listener: &UnixListener, ranks: u32) -> anyhow::Result<Vec<Hello>> {
        let limit = Instant::now() + START_LIMIT;
        let mut met: Vec<(Hello, Player)> = Vec::new();
        while met.len() < ranks as usize {
            match listener.accept() {
                Ok((stream, _)) => {
                    let mut rank = Player::new(stream)?;
                    let hello: Hello = serde_json::from_str(&rank.line()?)?;
                    anyhow::ensure!(
                        hello.ranks == ranks && hello.rank < ranks,
                        "a rank says that it is {} of {}, where {ranks} were started",
                        hello.rank,
                        hello.ranks
                    );
                    met.push((hello, rank));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    for child in &mut self.children {
                        if let Some(status) = child.try_wait()? {
                            anyhow::bail!("it ended before its ranks had met: {status}");
                        }
                    }
                    anyhow::ensure!(
                        Instant::now() < limit,
                        "{} of {ranks} ranks came within {} s",
                        met.len(),
                        START_LIMIT.as_secs()
                    );
                    thread::sleep(PAUSE);
                }
                Err(error) => return Err(error.into()),
            }
        }
        met.sort_by_key(|(hello, _)| hello.rank);
        let (hellos, players): (Vec<_>, Vec<_>) = met.into_iter().unzip();
        anyhow::ensure!(
            hellos.iter().zip(0..).all(|(hello, rank)| hello.rank == rank),
            "two ranks say that they are the same"
        );
        self.ranks = players;
        Ok(hellos)
    }

    /// One measurement. Afterwards every rank waits again, and takes no processor time; after an error the team is of no
    /// more use.
    pub(crate) fn turn(&mut self, work: Work) -> anyhow::Result<Turn> {
        let outcome = self.ask(work);
        outcome.map_err(|error| {
            self.is_sound = false;
            self.explain(&error)
        })
    }

    fn ask(&mut self, work: Work) -> anyhow::Result<Turn> {
        let request = format!("{}\n", Request::Run(work));
        for rank in &mut self.ranks {
            rank.stream.get_mut().write_all(request.as_bytes())?;
        }
        let (mut times, mut unsupported) = (Vec::new(), None);
        for (rank, player) in self.ranks.iter_mut().enumerate() {
            let text = player.line().with_context(|| format!("rank {rank}, {}", request.trim()))?;
            match serde_json::from_str(&text).with_context(|| format!("rank {rank} says {text:?}"))? {
                Answer::Times(one) => times.push(one),
                Answer::Unsupported { unsupported: why } => unsupported = Some(why),
                Answer::Error { error } => anyhow::bail!("rank {rank}, {}: {error}", request.trim()),
            }
        }
        match unsupported {
            Some(why) => Ok(Turn::Unsupported(why)),
            None => Ok(Turn::Times(Times::of_all(&times))),
        }
    }

    /// The error with the last of what the ranks printed.
    fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        let said = std::fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match lines[lines.len().saturating_sub(PRINTED)..].join(" / ") {
            last if last.is_empty() => anyhow::anyhow!("{error:#}"),
            last => anyhow::anyhow!("{error:#}; it printed: {last}"),
        }
    }

    /// Whether all have ended within the limit.
    fn ends_within(&mut self, limit: Duration) -> bool {
        let limit = Instant::now() + limit;
        loop {
            if self.children.iter_mut().all(|child| !matches!(child.try_wait(), Ok(None))) {
                return true;
            }
            if Instant::now() >= limit {
                return false;
            }
            thread::sleep(PAUSE);
        }
    }

    /// Seconds of a processor that all ranks have had.
    pub(crate) fn seconds(&self) -> Option<f64> {
        self.ranks.iter().map(|rank| weight::seconds(rank.process)).sum()
    }

    fn signal(&mut self, signal: Signal) {
        for handle in self.ranks.iter().filter_map(|rank| rank.handle.as_ref()) {
            let _ = pidfd_send_signal(handle, signal);
        }
        for child in &mut self.children {
            // One that has been waited for has no group any more, and its number may be someone else's.
            if matches!(child.try_wait(), Ok(None)) {
                let _ = kill_process_group(Pid::from_child(child), signal);
            }
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if self.is_sound {
            for rank in &mut self.ranks {
                let _ = writeln!(rank.stream.get_mut(), "{}", Request::Quit);
            }
            if self.ends_within(END_LIMIT) {
                return;
            }
        }
        for signal in [Signal::TERM, Signal::KILL] {
            self.signal(signal);
            if self.ends_within(END_LIMIT) {
                return;
            }
        }
    }
}

impl Player {
    fn new(stream: UnixStream) -> anyhow::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(TURN_LIMIT))?;
        stream.set_write_timeout(Some(TURN_LIMIT))?;
        let process = socket_peercred(&stream)?.pid;
        // Without it a rank still ends, with its connection or at its own limit.
        let handle = pidfd_open(process, PidfdFlags::empty()).ok();
        let process = process.as_raw_nonzero().get() as u32;
        Ok(Self { stream: BufReader::new(stream), process, handle })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut text = String::new();
        let length = self.stream.read_line(&mut text).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                anyhow::anyhow!("no answer within {} s", TURN_LIMIT.as_secs())
            }
            _ => error.into(),
        })?;
        anyhow::ensure!(length > 0, "the rank has ended");
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use railnet_coll::Collective;

    const WORK: Work =
        Work { collective: Collective::AllReduce, bytes: 8, warmup: 0, batches: 1, calls: 1, salt: 5 };
    /// What makes the test below a rank: its role, its number, and where to call.
    const ROLE: &str = "RAILNET_TEST_ROLE";
    /// What makes another one a team: the file for the numbers of its ranks.
    const TEAM: &str = "RAILNET_TEST_TEAM";

    /// Two processes of this test program, each of them a rank.
    fn team(name: &str, roles: [&str; 2]) -> anyhow::Result<Team> {
        let folder = std::env::temp_dir().join(format!("railnet-team-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let program = std::env::current_exe().unwrap();
        let nice = weight::nice(std::process::id()).unwrap_or(0);
        let team = Team::start(name, 2, nice, &folder, |socket| {
            let rank = |(number, role): (usize, &str)| {
                let mut command = weight::command(&program);
                command.args([
                    "--ignored",
                    "--exact",
                    "bench::live::team::tests::a_rank_in_a_process_of_its_own",
                    "--nocapture",
                ]);
                command.env(ROLE, format!("{role} {number} {}", socket.display()));
                command
            };
            roles.into_iter().enumerate().map(rank).collect()
        });
        std::fs::remove_dir_all(&folder).unwrap();
        team
    }

    /// A rank, which the tests below start with a role; no test.
    #[test]
    #[ignore = "a process of other tests"]
    fn a_rank_in_a_process_of_its_own() {
        let Ok(role) = std::env::var(ROLE) else { return };
        let mut words = role.splitn(3, ' ');
        let (role, number, socket) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        assert!(role != "absent", "I do not want to");
        let mut stream = UnixStream::connect(socket).unwrap();
        writeln!(stream, r#"{{"rank": {number}, "ranks": 2, "name": "Test 1.0"}}"#).unwrap();
        for line in BufReader::new(stream.try_clone().unwrap()).lines() {
            match line.unwrap().parse().unwrap() {
                Request::Quit => return,
                Request::Run(_) if role == "deaf" => thread::sleep(TURN_LIMIT),
                Request::Run(_) if role == "mortal" => return,
                Request::Run(_) if role == "garbled" => writeln!(stream, "Segmentation fault").unwrap(),
                Request::Run(_) if role == "poor" => {
                    writeln!(stream, r#"{{"unsupported": "not here"}}"#).unwrap();
                }
                Request::Run(work) => {
                    let us = f64::from(work.salt) + number.parse::<f64>().unwrap();
                    let times =
                        Times { median_us: us, least_us: us, mean_us: us, processor_us: us, wrong: 0 };
                    writeln!(stream, "{}", serde_json::to_string(&Answer::Times(times)).unwrap()).unwrap();
                }
            }
        }
    }

    #[test]
    fn ranks_are_asked_again_and_again_and_then_end() {
        let mut team = team("good", ["good", "good"]).unwrap();
        assert_eq!(team.name, "Test 1.0");
        for salt in 1..4 {
            let Turn::Times(times) = team.turn(Work { salt, ..WORK }).unwrap() else { panic!("no times") };
            assert_eq!((times.median_us, times.processor_us), (f64::from(salt + 1), f64::from(2 * salt + 1)));
        }
        assert!(team.seconds().is_some());
        for rank in &mut team.ranks {
            writeln!(rank.stream.get_mut(), "{}", Request::Quit).unwrap();
        }
        assert!(team.ends_within(END_LIMIT));
    }

    /// Starts ranks that do not answer, says which processes they are, and asks them: a process of the test below, no test.
    #[test]
    #[ignore = "a process of another test"]
    fn a_team_in_a_process_of_its_own() {
        let Ok(file) = std::env::var(TEAM) else { return };
        let mut team = team("deaf", ["deaf", "deaf"]).unwrap();
        let ranks: Vec<String> = team.ranks.iter().map(|rank| rank.process.to_string()).collect();
        std::fs::write(format!("{file}.new"), ranks.join(" ")).unwrap();
        std::fs::rename(format!("{file}.new"), file).unwrap();
        let _ = team.turn(WORK);
    }

    #[test]
    fn ranks_that_hang_end_with_a_command_that_is_killed() {
        let file = std::env::temp_dir().join(format!("railnet-team-{}-ranks", std::process::id()));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "bench::live::team::tests::a_team_in_a_process_of_its_own"]);
        let mut command = command.env(TEAM, &file).stdout(Stdio::null()).spawn().unwrap();
        let limit = Instant::now() + Duration::from_mins(1);
        let wait = |what: &dyn Fn() -> bool| {
            while !what() {
                assert!(Instant::now() < limit, "not within a minute");
                thread::sleep(PAUSE);
            }
        };
        wait(&|| file.exists());
        let ranks = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        command.kill().unwrap();
        command.wait().unwrap();
        // A process that has ended and that nobody waits for any more is gone, or a zombie.
        let runs = |rank: &str| {
            let state = std::fs::read_to_string(format!("/proc/{rank}/stat")).unwrap_or_default();
            !state.is_empty() && !state.contains(") Z ")
        };
        assert_eq!(ranks.split(' ').count(), 2);
        wait(&|| !ranks.split(' ').any(runs));
    }

    #[test]
    fn a_team_that_fails_says_which_rank_and_how() {
        let error = team("absent", ["good", "absent"]).err().unwrap().to_string();
        assert!(error.contains("ended before its ranks had met"), "{error}");
        assert!(error.contains("it printed: ") && error.contains("test result: FAILED"), "{error}");
        let error = team("mortal", ["good", "mortal"]).unwrap().turn(WORK).unwrap_err().to_string();
        assert!(error.contains("rank 1, run all_reduce 8 0 1 1 5: the rank has ended"), "{error}");
        let error = team("garbled", ["garbled", "good"]).unwrap().turn(WORK).unwrap_err().to_string();
        assert!(error.contains(r#"rank 0 says "Segmentation fault\n""#), "{error}");
        let turn = team("poor", ["good", "poor"]).unwrap().turn(WORK).unwrap();
        assert_eq!(turn, Turn::Unsupported("not here".to_owned()));
    }
}
