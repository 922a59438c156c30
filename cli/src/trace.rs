//! `--trace FILE`: the phases of a command as trace events, which chrome://tracing and Perfetto open.
//!
//! The file is whole JSON after each event, so that it can be opened whenever the command is stopped.

use std::fmt::Debug;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use cacheplan::files::is_begun_so;
use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata};

use crate::failure::{Failure, in_file, note, refuse_twice, unwritten};

static TRACE: OnceLock<Trace> = OnceLock::new();

/// What the array ends with, and each event takes the place of.
const END: &str = "\n]\n";

#[derive(clap::Args)]
pub(crate) struct TraceArgs {
    /// Write the phases of planning and of each step as trace events, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    trace: Option<PathBuf>,
}

impl TraceArgs {
    /// The file, where one is named: an output as all others are.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.trace.as_deref()
    }

    /// Writes what happens from here on, where a file is named. `outputs` are all of the command, this one among them.
    pub(crate) fn begin<'a>(&self, outputs: impl IntoIterator<Item = &'a Path>) -> Result<(), Failure> {
        refuse_twice(outputs)?;
        let Some(path) = &self.trace else { return Ok(()) };
        if path == Path::new("-") {
            return Err(Failure::new(2, "--trace is written while the command runs; name a file"));
        }
        refuse_another(path)?;
        let trace = File::create(path).and_then(Trace::begin).map_err(|error| in_file(path, error))?;
        let _ = TRACE.set(trace);
        // Until now nobody may have wanted to hear of them.
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    }
}

/// Refuses to write in place of what is no trace: nothing was read yet, and it may be what the command is to read.
fn refuse_another(path: &Path) -> Result<(), Failure> {
    match is_begun_so(path, head().as_bytes()).map_err(unwritten)? {
        true => Ok(()),
        false => {
            Err(Failure::new(2, format!("{}: this file is no trace; it is not replaced, name another", path.display())))
        }
    }
}

/// What each trace begins with.
fn head() -> String {
    let process = json!({ "name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": { "name": "cacheplan" } });
    format!("[\n{process}")
}

/// Whether a trace is written that this belongs to.
pub(crate) fn wants(metadata: &Metadata<'_>) -> bool {
    TRACE.get().is_some() && *metadata.level() <= Level::DEBUG && metadata.target().starts_with("cacheplan")
}

/// A phase has begun on this thread.
pub(crate) fn begin_phase(metadata: &Metadata<'_>, args: &Args) {
    TRACE.get().into_iter().for_each(|trace| trace.phase("B", metadata.name(), metadata.target(), args));
}

/// The phase that began last on this thread has ended.
pub(crate) fn end_phase(metadata: &Metadata<'_>, args: &Args) {
    TRACE.get().into_iter().for_each(|trace| trace.phase("E", metadata.name(), metadata.target(), args));
}

/// A file of events that grows.
struct Trace {
    /// `None` once it could not be written.
    file: Mutex<Option<File>>,
    begun: Instant,
}

impl Trace {
    fn begin(mut file: File) -> std::io::Result<Self> {
        file.write_all((head() + END).as_bytes())?;
        Ok(Self { file: Mutex::new(Some(file)), begun: Instant::now() })
    }

    fn phase(&self, phase: &str, name: &str, target: &str, Args(args): &Args) {
        let mut held = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let microseconds = self.begun.elapsed().as_nanos() as f64 / 1e3;
        let event = json!({
            "name": name, "cat": target, "ph": phase, "ts": microseconds, "pid": 1, "tid": thread(), "args": args,
        });
        let Some(file) = held.as_mut() else { return };
        // One write takes the place of the end and writes it anew.
        let end = SeekFrom::End(-(END.len() as i64));
        let written = file.seek(end).and_then(|_| file.write_all(format!(",\n{event}{END}").as_bytes()));
        if let Err(error) = written {
            note(&format!("the trace ends here: {error}"));
            *held = None;
        }
    }
}

/// A small number for this thread.
fn thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static OWN: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    OWN.with(|own| *own)
}

/// The fields of a span.
#[derive(Default)]
pub(crate) struct Args(Map<String, Value>);

impl Args {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Args {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.insert(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As it is when the process is killed there.
    #[test]
    fn the_file_is_whole_json_after_each_event() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let trace = Trace::begin(File::create(&path).unwrap()).unwrap();
        for (count, (phase, name)) in [("B", "step"), ("B", "forward \"a\""), ("E", "forward \"a\"")].iter().enumerate()
        {
            let found: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!(found.len(), count + 1);
            trace.phase(phase, name, "cacheplan_runtime", &Args::default());
        }
        let found: Vec<Value> = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(found[2]["name"], "forward \"a\"");
        assert!(found[1]["ts"].as_f64() <= found[2]["ts"].as_f64());
    }
}
