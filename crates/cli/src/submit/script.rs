//! The batch script of a job.

use std::fmt::Write as _;

use super::job::{Job, Program, seconds};

/// How the line begins by which a script of ours is known.
pub(super) const MARK: &str = "# Written by railnet submit";

/// What programs with `env://` need besides their rank (torch.distributed): where rank 0 is, at a port of this job's own. The first
/// node is where this script runs; its name in Slurm need not be one that has an address.
const ENVIRONMENT: &str = r#"# For programs that find each other by env://, such as torch.distributed; Railnet's own read Slurm's variables.
master="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
getent hosts "$master" >/dev/null || master="$(hostname)"
export MASTER_ADDR="${MASTER_ADDR:-$master}"
export MASTER_PORT="${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}"
"#;

/// Starts a program with its rank as those programs read it.
const RANK: &str = r#"bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "$@"' rank"#;

pub(super) fn write(job: &Job) -> String {
    let launch = &job.launch;
    let mut text = String::from("#!/bin/bash\n");
    let mut header = |name: &str, value: &str| {
        let _ = writeln!(text, "#SBATCH --{name}={value}");
    };
    header("job-name", &job.name);
    header("nodes", &launch.nodes.to_string());
    header("ntasks-per-node", &launch.ranks_per_node.to_string());
    if let Some(time) = &launch.time {
        // It was checked when the job was read.
        header("time", &clock(seconds(time).unwrap_or(0)));
    }
    for (name, value) in
        [("partition", &launch.partition), ("account", &launch.account), ("output", &launch.output)]
    {
        if let Some(value) = value {
            header(name, value);
        }
    }
    for (name, value) in [("gpus-per-node", launch.gpus_per_node), ("cpus-per-task", launch.cpus_per_rank)] {
        if let Some(value) = value {
            header(name, &value.to_string());
        }
    }
    for option in &launch.options {
        let _ = writeln!(text, "#SBATCH {option}");
    }
    let ranks = u64::from(launch.nodes) * u64::from(launch.ranks_per_node);
    let _ =
        writeln!(text, "{MARK}: {ranks} ranks, {} on each of {} nodes.", launch.ranks_per_node, launch.nodes);
    text.push_str("set -e\n\n");
    for (name, value) in &launch.env {
        let _ = writeln!(text, "export {name}={}", quoted(value));
    }
    text.push_str(ENVIRONMENT);
    let _ = writeln!(text, "export WORLD_SIZE={ranks} LOCAL_WORLD_SIZE={}", launch.ranks_per_node);
    text.push_str("# A secret of this job, so that no other joins it by mistake.\n");
    text.push_str("export RAILNET_SECRET=\"$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')\"\n");
    for line in &launch.setup {
        let _ = writeln!(text, "{line}");
    }
    let program = match &launch.program {
        Program::Line(line) => format!("bash -c {}", quoted(line)),
        Program::Words(words) => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    };
    // When one fails, the others have nothing left to do.
    let _ = writeln!(text, "\nsrun --kill-on-bad-exit=1 {RANK} {program}");
    text
}

/// Seconds as Slurm writes them: `2-03:04:05`.
fn clock(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let time = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    if days > 0 { format!("{days}-{time}") } else { time }
}

/// A word that the shell takes for itself and nothing else.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(text: &str) -> String {
        write(&Job::parse(text, "job.toml", "job").unwrap())
    }

    #[test]
    fn a_job_becomes_a_script() {
        let text = script(
            "[launch]\nname = \"train\"\nnodes = 2\nranks_per_node = 4\ntime = \"90min\"\npartition = \"gpu\"\n\
             gpus_per_node = 4\noptions = [\"--exclusive\"]\nsetup = [\"module load cuda\"]\n\
             program = [\"./train\", \"--name\", \"it's me\"]\nenv = { NCCL_DEBUG = \"INFO\" }\n[model]\nlayers = 3\n",
        );
        let expected = "\
#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=01:30:00
#SBATCH --partition=gpu
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
# Written by railnet submit: 8 ranks, 4 on each of 2 nodes.
set -e

export NCCL_DEBUG=INFO
# For programs that find each other by env://, such as torch.distributed; Railnet's own read Slurm's variables.
master=\"$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\"
getent hosts \"$master\" >/dev/null || master=\"$(hostname)\"
export MASTER_ADDR=\"${MASTER_ADDR:-$master}\"
export MASTER_PORT=\"${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}\"
export WORLD_SIZE=8 LOCAL_WORLD_SIZE=4
# A secret of this job, so that no other joins it by mistake.
export RAILNET_SECRET=\"$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')\"
module load cuda

srun --kill-on-bad-exit=1 bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec \"$@\"' rank ./train --name 'it'\\''s me'
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_line_of_shell_is_run_by_one_on_every_rank() {
        let text = script("[launch]\nprogram = \"./train > $RANK.log\"\n");
        assert!(text.ends_with(" rank bash -c './train > $RANK.log'\n"), "{text}");
        assert!(text.contains("--job-name=job\n"), "{text}");
    }

    #[test]
    fn times_are_written_as_slurm_reads_them() {
        for (text, expected) in [
            ("90s", "00:01:30"),
            ("2h", "02:00:00"),
            ("1d", "1-00:00:00"),
            ("30min", "00:30:00"),
            ("500ms", "00:00:01"),
        ] {
            assert_eq!(clock(seconds(text).unwrap()), expected);
        }
        for wrong in ["", "2", "0h", "2 weeks", "-1h", "99999999999999999d"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_wrong_job_is_shown_with_what_would_be_right() {
        let error = |text: &str| Job::parse(text, "job.toml", "job").unwrap_err().to_string();
        let text = error("[launch]\nprogram = \"x\"\nnods = 2\n");
        assert!(text.contains("unknown key \"nods\"") && text.contains("job.toml:3:1"), "{text}");
        assert!(text.contains("did you mean \"nodes\"?"), "{text}");
        for (text, part) in [
            ("", "there is no table [launch]"),
            ("seed = 1\n", "program = \"python train.py\""),
            ("[launch]\n", "\"program\" is missing"),
            ("[launch]\nprogram = []\n", "names nothing"),
            ("[launch]\nprogram = \"x\"\nnodes = 0\n", "1 at least"),
            ("[launch]\nprogram = \"x\"\ntime = \"soon\"\n", "write 90s, 30min, 2h or 1d"),
            ("[launch]\nprogram = \"x\"\nname = \"a\\nb\"\n", "does not belong in a line"),
            ("[launch]\nprogram = \"x\"\nenv = { \"A B\" = \"\" }\n", "no name of a variable"),
        ] {
            assert!(error(text).contains(part), "{}", error(text));
        }
    }
}
