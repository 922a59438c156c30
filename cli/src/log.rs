//! What `CACHEPLAN_LOG`, or else `RUST_LOG`, asks for, on stderr: levels, of everything or of one part
//! (`warn,cacheplan_runtime=debug`). Events are lines as they happen, phases when they end, with the time that they took.

use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::level_filters::{LevelFilter, ParseLevelFilterError};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::failure::{note, say};
use crate::trace;

/// Hears of events and spans.
struct Log {
    levels: Levels,
    spans: Mutex<HashMap<u64, Phase>>,
    next: AtomicU64,
}

/// The level of each part, by what its target begins with; the longest such beginning counts.
#[derive(Default)]
struct Levels(Vec<(String, LevelFilter)>);

/// A span that is not closed.
struct Phase {
    metadata: &'static Metadata<'static>,
    fields: Line,
    args: trace::Args,
    entered: Option<Instant>,
}

thread_local! {
    /// Phases that this thread is in.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Writes from here on what the environment asks for.
pub(crate) fn begin() {
    let stated = |name| std::env::var(name).ok().filter(|asked| !asked.is_empty()).map(|asked| (name, asked));
    let (name, asked) = stated("CACHEPLAN_LOG").or_else(|| stated("RUST_LOG")).unwrap_or_default();
    let levels = Levels::read(&asked).unwrap_or_else(|error| {
        note(&format!("{name} says nothing that can be logged: {error}"));
        Levels::default()
    });
    let log = Log { levels, spans: Mutex::default(), next: AtomicU64::new(1) };
    let begun = tracing::subscriber::set_global_default(log);
    debug_assert!(begun.is_ok(), "it is set once, here");
}

impl Levels {
    fn read(asked: &str) -> Result<Self, ParseLevelFilterError> {
        let parts = asked.split(',').map(str::trim).filter(|part| !part.is_empty());
        let level = |part: &str| match part.split_once('=') {
            Some((target, level)) => Ok((target.to_owned(), level.parse()?)),
            None => Ok((String::new(), part.parse()?)),
        };
        parts.map(level).collect::<Result<_, _>>().map(Self)
    }

    fn of(&self, target: &str) -> LevelFilter {
        let of = self.0.iter().filter(|(part, _)| target.starts_with(part));
        of.max_by_key(|(part, _)| part.len()).map_or(LevelFilter::ERROR, |(_, level)| *level)
    }

    fn allow(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.of(metadata.target())
    }
}

impl Log {
    fn spans(&self) -> MutexGuard<'_, HashMap<u64, Phase>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.levels.allow(metadata) || trace::wants(metadata)
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        if self.levels.allow(metadata) {
            let mut line = Line::default();
            event.record(&mut line);
            say(&format!("{:>5} {}:{}\n", metadata.level(), metadata.target(), line.0));
        }
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (mut fields, mut args) = (Line::default(), trace::Args::default());
        attributes.record(&mut fields);
        attributes.record(&mut args);
        let phase = Phase { metadata: attributes.metadata(), fields, args, entered: None };
        self.spans().insert(id, phase);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        if let Some(phase) = self.spans().get_mut(&id.into_u64()) {
            values.record(&mut phase.fields);
            values.record(&mut phase.args);
        }
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, id: &Id) {
        DEPTH.set(DEPTH.get() + 1);
        if let Some(phase) = self.spans().get_mut(&id.into_u64()) {
            phase.entered = Some(Instant::now());
            trace::begin_phase(phase.metadata, &phase.args);
        }
    }

    fn exit(&self, id: &Id) {
        let depth = DEPTH.get().saturating_sub(1);
        DEPTH.set(depth);
        let spans = self.spans();
        let Some(Phase { metadata, fields, args, entered }) = spans.get(&id.into_u64()) else { return };
        trace::end_phase(metadata, args);
        if self.levels.allow(metadata) {
            let took = entered.map_or(0.0, |entered| entered.elapsed().as_secs_f64() * 1e3);
            let (level, target, name) = (metadata.level(), metadata.target(), metadata.name());
            let indent = 2 * depth;
            say(&format!("{level:>5} {target}: {:indent$}{name} {took:.3} ms{}\n", "", fields.0));
        }
    }

    fn try_close(&self, id: Id) -> bool {
        self.spans().remove(&id.into_u64()).is_some()
    }
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[rstest::rstest]
    #[case("", LevelFilter::ERROR)]
    #[case("debug", LevelFilter::DEBUG)]
    #[case("warn,cacheplan_runtime=trace", LevelFilter::TRACE)]
    #[case("cacheplan_runtime=off,debug", LevelFilter::OFF)]
    #[case("cacheplan_planner=debug", LevelFilter::ERROR)]
    fn the_longest_beginning_counts(#[case] asked: &str, #[case] level: LevelFilter) {
        assert_eq!(Levels::read(asked).unwrap().of("cacheplan_runtime::session"), level);
    }

    #[rstest::rstest]
    #[case("loud")]
    #[case("cacheplan_runtime=loud")]
    fn another_word_is_no_level(#[case] asked: &str) {
        assert!(Levels::read(asked).is_err());
    }
}
