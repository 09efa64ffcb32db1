//! Where what ranks print goes.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use railnet_live::supervisor::{Output, Stream};

use crate::{Usage, files};

/// Colours that can be told apart on dark and on light: cyan, yellow, green, magenta, blue, red.
const COLOURS: [u8; 6] = [36, 33, 32, 35, 34, 31];

/// All in one place, each line with its rank before it. A line is written at once, so that lines never mix.
pub(super) struct Prefixed<'a> {
    out: &'a mut dyn Write,
    width: usize,
    is_coloured: bool,
    buffer: Vec<u8>,
}

impl<'a> Prefixed<'a> {
    pub(super) fn new(out: &'a mut dyn Write, ranks: u32, is_coloured: bool) -> Self {
        Self { out, width: digits(ranks), is_coloured, buffer: Vec::new() }
    }
}

/// The digits of the highest rank.
fn digits(ranks: u32) -> usize {
    ranks.saturating_sub(1).to_string().len()
}

impl Output for Prefixed<'_> {
    fn line(&mut self, rank: u32, stream: Stream, line: &[u8]) -> io::Result<()> {
        self.buffer.clear();
        let width = self.width;
        if self.is_coloured {
            let colour = COLOURS[rank as usize % COLOURS.len()];
            write!(self.buffer, "\x1b[{colour}m[{rank:width$}]\x1b[0m ")?;
        } else {
            write!(self.buffer, "[{rank:width$}] ")?;
        }
        self.buffer.extend_from_slice(line);
        self.buffer.push(b'\n');
        match stream {
            Stream::Out => self.out.write_all(&self.buffer),
            Stream::Error => {
                // What was printed before comes before, also where both go to the same place.
                self.out.flush()?;
                io::stderr().write_all(&self.buffer)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A file for each rank and stream.
pub(super) struct Files {
    folder: PathBuf,
    width: usize,
    force: bool,
}

const STREAMS: [Stream; 2] = [Stream::Out, Stream::Error];

impl Files {
    pub(super) fn new(folder: &Path, ranks: u32, force: bool) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder)
            .map_err(|error| Usage(format!("cannot make the directory {}: {error}", folder.display())))?;
        let files = Self { folder: folder.to_owned(), width: digits(ranks), force };
        for (rank, stream) in (0..ranks).flat_map(|rank| STREAMS.map(|stream| (rank, stream))) {
            files::check(&files.path(rank, stream), force)?;
        }
        Ok(files)
    }

    fn path(&self, rank: u32, stream: Stream) -> PathBuf {
        let (width, kind) = (self.width, if stream == Stream::Out { "out" } else { "err" });
        self.folder.join(format!("rank-{rank:0width$}.{kind}"))
    }
}

impl Output for Files {
    fn line(&mut self, _: u32, _: Stream, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn file(&mut self, rank: u32, stream: Stream) -> io::Result<Option<Stdio>> {
        let file = files::open_log(&self.path(rank, stream), self.force)
            .map_err(|error| io::Error::other(format!("{error:#}")))?;
        Ok(Some(file.into()))
    }
}
