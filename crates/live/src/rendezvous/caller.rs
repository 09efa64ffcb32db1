//! The meeting as all ranks but rank 0 see it.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use super::{Config, Door, MeetError, Prepare, SLACK, millis};
use crate::launch::RendezvousAddress;
use crate::message::{
    ANSWER_MAX, Hello, Malformed, Member, Message, REQUEST_MAX, Trouble, TroubleKind, VERSION,
};
use crate::secret::Side;
use crate::socket::{self, Broken, Connection};

/// How long one attempt to connect may take.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);
/// How long rank 0 may take to answer an introduction.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Pauses between attempts: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// What one attempt came to, if not to a meeting.
enum Miss {
    /// Whoever is there is not rank 0, or not yet.
    Again(String),
    /// There is no point in trying again.
    End(MeetError),
}

/// Calls rank 0 until it answers, and waits with it for the others.
pub(super) fn meet(
    door: &Door,
    config: &Config,
    meeting: &RendezvousAddress,
    mut hello: Hello,
    prepare: Prepare<'_>,
    deadline: Instant,
) -> Result<(Connection, Vec<Member>), MeetError> {
    let began = Instant::now();
    let mut pause = PAUSES.0;
    let mut reminders = config.reminders.begin(began);
    loop {
        hello.limit_ms = millis(deadline.saturating_duration_since(Instant::now()));
        let last = match attempt(door, config, meeting, &hello, prepare, deadline) {
            Ok(met) => return Ok(met),
            Err(Miss::End(error)) => return Err(error),
            Err(Miss::Again(last)) => last,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let (rank, meeting) = (config.rank.0, meeting.clone());
            return Err(MeetError::Unreachable { rank, meeting, waited: began.elapsed(), last });
        }
        reminders.remind(Instant::now(), deadline, || {
            let waited = began.elapsed();
            format!("rank {} has found no rank 0 at {meeting} in {waited:.1?}: {last}", config.rank.0)
        });
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(PAUSES.1);
    }
}

fn attempt(
    door: &Door,
    config: &Config,
    meeting: &RendezvousAddress,
    hello: &Hello,
    prepare: Prepare<'_>,
    deadline: Instant,
) -> Result<(Connection, Vec<Member>), Miss> {
    let again = |cause: &dyn std::fmt::Display| Miss::Again(cause.to_string());
    // The first name that means something here is taken; the others are for where it does not.
    let mut unknown = None;
    let addresses =
        meeting.hosts.iter().find_map(|host| match socket::resolve(host, meeting.port, deadline) {
            Ok(addresses) if !addresses.is_empty() => Some(addresses),
            Ok(_) => None,
            Err(error) => {
                unknown.get_or_insert(Miss::Again(format!("{host}: {error}")));
                None
            }
        });
    let Some(addresses) = addresses else {
        return Err(unknown.unwrap_or_else(|| again(&"its name has no address")));
    };
    let stream = socket::connect(&addresses, ATTEMPT_MAX, deadline).map_err(|error| match door {
        // It has listened there since the ranks met before.
        Door::Kept(_) if error.kind() == ErrorKind::ConnectionRefused => Miss::End(MeetError::HubGone {
            meeting: meeting.clone(),
            cause: "its process has ended".to_owned(),
        }),
        _ => again(&error),
    })?;
    let mut connection = Connection::new(stream, REQUEST_MAX).map_err(|error| again(&error))?;
    let limit = deadline.min(Instant::now() + ANSWER_LIMIT);
    introduce(door, config, &mut connection, hello, prepare, limit)?;
    connection.decoder.set_limit(ANSWER_MAX);
    wait_for_all(meeting, connection, deadline + SLACK).map_err(Miss::End)
}

/// Introduces this rank and proves that it knows the secret, once the other side has.
fn introduce(
    door: &Door,
    config: &Config,
    connection: &mut Connection,
    hello: &Hello,
    prepare: Prepare<'_>,
    limit: Instant,
) -> Result<(), Miss> {
    let again = |cause: Broken| Miss::Again(format!("what answers there is no rank 0: {cause}"));
    let trouble =
        |kind, text| Miss::End(MeetError::Trouble(Trouble { kind, ranks: vec![config.rank.0], text }));
    connection.say(&Message::Hello(hello.clone()), usize::MAX).map_err(again)?;
    let (nonce, proof) = match connection.hear(limit) {
        Ok(Some(Message::Challenge { nonce, proof })) => (nonce, proof),
        Ok(Some(Message::Refused(trouble))) => {
            let is_busy = trouble.kind == TroubleKind::Job && matches!(door, Door::Kept(_));
            let end = |trouble| Miss::End(MeetError::Trouble(trouble));
            return Err(if is_busy { Miss::Again(trouble.text) } else { end(trouble) });
        }
        Ok(Some(_)) => return Err(Miss::Again("what answers there speaks out of turn".to_owned())),
        Ok(None) => return Err(Miss::Again("what answers there says nothing".to_owned())),
        Err(Broken::Malformed(Malformed::Version(version))) => {
            let text = format!(
                "rank 0 speaks version {version} of the protocol, rank {} version {VERSION}",
                config.rank.0
            );
            return Err(trouble(TroubleKind::Version, text));
        }
        Err(broken) => return Err(again(broken)),
    };
    if !config.secret.is_proof(&proof, Side::Hub, &hello.nonce, &nonce) {
        let given = if config.secret.is_given() { "has one" } else { "has none" };
        let text = format!(
            "rank 0 does not know the secret of rank {}, which {given} (RAILNET_SECRET)",
            config.rank.0
        );
        return Err(trouble(TroubleKind::Secret, text));
    }
    let side = Side::Caller { rank: hello.rank, world_size: hello.world_size };
    let proof = config.secret.prove(side, &hello.nonce, &nonce);
    if let Some(seals) = config.secret.seals_of(false, &hello.nonce, &nonce) {
        connection.authenticate(seals);
    }
    // A loopback address here says nothing of the way from other hosts to this one.
    match prepare(connection.local_address().filter(|address| !address.is_loopback())) {
        Ok(blob) => connection.say(&Message::Join { proof, blob }, usize::MAX).map_err(again),
        Err(trouble) => {
            // Rank 0 tells the others, and need not wait for this rank.
            let _: Result<(), Broken> = connection.say(&Message::Refused(trouble.clone()), usize::MAX);
            connection.drain(limit);
            Err(Miss::End(MeetError::Trouble(trouble)))
        }
    }
}

fn wait_for_all(
    meeting: &RendezvousAddress,
    mut connection: Connection,
    deadline: Instant,
) -> Result<(Connection, Vec<Member>), MeetError> {
    let gone = |cause: String| MeetError::HubGone { meeting: meeting.clone(), cause };
    match connection.hear(deadline) {
        Ok(Some(Message::Welcome(members))) => Ok((connection, members)),
        Ok(Some(Message::Refused(trouble))) => Err(MeetError::Trouble(trouble)),
        Ok(Some(_)) => Err(gone("it spoke out of turn".to_owned())),
        Ok(None) => Err(gone("it says nothing any more".to_owned())),
        Err(broken) => Err(gone(broken.to_string())),
    }
}
