//! Starting an engine for what it says of its caches.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write, pipe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use cacheplan::files::{Limit, Shown};
use cacheplan::transforms::Model;
#[cfg(unix)]
use rustix::process::{Pid, Signal, kill_process_group};

use crate::commands::run::interrupt::Interrupt;
use crate::failure::{Failure, in_file};

/// A file of the model with a hole for its weights, which goes when this does.
pub(super) struct Skeleton(PathBuf);

impl Skeleton {
    pub(super) fn of(model: &Model) -> Result<Self, Failure> {
        let skeleton = model.gguf_skeleton().map_err(|error| Failure::new(4, error))?;
        let path = std::env::temp_dir().join(format!("cacheplan-{}.gguf", id()));
        let written = OpenOptions::new().write(true).create_new(true).open(&path);
        let mut file = written.map_err(|error| in_file(&path, error))?;
        let own = Self(path);
        file.write_all(&skeleton.header)
            .and_then(|()| file.set_len(skeleton.length))
            .map_err(|error| in_file(&own.0, error))?;
        Ok(own)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Skeleton {
    fn drop(&mut self) {
        // Who has taken it away already wanted the same.
        drop(fs::remove_file(&self.0));
    }
}

/// A process that ends when this goes, and with it what it has started: an engine behind a script would keep its memory.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(group) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            // One that has ended is not waited for yet, so that the number is still its own.
            let _ = kill_process_group(group, Signal::KILL);
        }
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// How often it is looked whether somebody wants an end.
const TICK: Duration = Duration::from_millis(100);
/// An engine that has said one of these has said what its caches are.
const STARTED: [&str; 2] = ["server is listening", "compute buffer size"];

/// What the engine says until it has started or ended.
pub(super) fn start(program: &Path, arguments: &[String], within: Duration) -> Result<Vec<u8>, Failure> {
    let interrupt = Interrupt::listen()?;
    let (reader, writer) = pipe().map_err(Failure::error)?;
    let errors = writer.try_clone().map_err(Failure::error)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(writer).stderr(errors);
    // It would give its caches less where they do not fit beside the weights.
    command.env("LLAMA_ARG_FIT", "off");
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let child = command.spawn().map_err(|error| {
        let program = Shown(program.display());
        Failure::new(1, format!("{program}: {error}; install llama.cpp, or name its server with --program"))
    })?;
    // The command holds the pipe's other end open.
    drop(command);
    let running = Running(child);
    let (send, lines) = channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if send.send(std::mem::take(&mut line)).is_err() {
                break;
            }
        }
    });
    let said = read(&lines, Instant::now() + within, &interrupt);
    drop(running);
    said
}

fn read(lines: &Receiver<Vec<u8>>, end: Instant, interrupt: &Interrupt) -> Result<Vec<u8>, Failure> {
    let mut said = Vec::new();
    loop {
        match lines.recv_timeout(TICK) {
            Ok(line) => {
                said.extend(&line);
                let line = String::from_utf8_lossy(&line);
                if STARTED.iter().any(|words| line.contains(words)) || said.len() as u64 > Limit::LOG.bytes {
                    return Ok(said);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(said),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupt.heard() {
            return Err(Failure::new(1, "interrupted"));
        }
        if Instant::now() > end {
            return Err(Failure::new(1, "the engine did not say in time what its caches are; see --within"));
        }
    }
}
