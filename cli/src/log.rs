//! What `CACHEPLAN_LOG` asks for, on stderr: levels, of everything or of one part (`warn,cacheplan_runtime=debug`).

use std::fmt::{Debug, Write};

use tracing::field::{Field, Visit};
use tracing::level_filters::{LevelFilter, ParseLevelFilterError};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::failure::{note, say};

/// The level of each part, by what its target begins with; the longest such beginning counts.
struct Log(Vec<(String, LevelFilter)>);

/// Writes from here on what the environment asks for.
pub(crate) fn begin() {
    let asked = std::env::var("CACHEPLAN_LOG").unwrap_or_default();
    let log = Log::read(&asked).unwrap_or_else(|error| {
        note(&format!("CACHEPLAN_LOG says nothing that can be logged: {error}"));
        Log(Vec::new())
    });
    let begun = tracing::subscriber::set_global_default(log);
    debug_assert!(begun.is_ok(), "it is set once, here");
}

impl Log {
    fn read(asked: &str) -> Result<Self, ParseLevelFilterError> {
        let parts = asked.split(',').map(str::trim).filter(|part| !part.is_empty());
        let level = |part: &str| match part.split_once('=') {
            Some((target, level)) => Ok((target.to_owned(), level.parse()?)),
            None => Ok((String::new(), part.parse()?)),
        };
        parts.map(level).collect::<Result<_, _>>().map(Self)
    }

    fn level(&self, target: &str) -> LevelFilter {
        let of = self.0.iter().filter(|(part, _)| target.starts_with(part));
        of.max_by_key(|(part, _)| part.len()).map_or(LevelFilter::ERROR, |(_, level)| *level)
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level(metadata.target())
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{:>5} {}:", event.metadata().level(), event.metadata().target()));
        event.record(&mut line);
        say(&(line.0 + "\n"));
    }

    // Nothing here opens spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

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
        assert_eq!(Log::read(asked).unwrap().level("cacheplan_runtime::session"), level);
    }

    #[rstest::rstest]
    #[case("loud")]
    #[case("cacheplan_runtime=loud")]
    fn another_word_is_no_level(#[case] asked: &str) {
        assert!(Log::read(asked).is_err());
    }
}
