//! Which engine the words of a launch start, and where its arguments begin.

use cacheplan_planner::EngineSpec;

use crate::error::ServeError;
use crate::launch::Launch;
use crate::started::started;

/// An engine's program at the front of the words, as `manifest` leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) engine: EngineSpec,
    /// The place of its first argument.
    pub(crate) start: usize,
}

impl Program {
    /// That of a launch, at the version that is stated, else its image's, else the newest that is modelled.
    pub(crate) fn of(launch: &Launch, stated: Option<&str>) -> Result<Self, ServeError> {
        let (engine, start) = started(&launch.words).ok_or_else(|| ServeError::no_engine(&launch.words))?;
        let engine = match stated.or(launch.version.as_deref()) {
            Some(version) => format!("{engine}@{version}").parse()?,
            None => engine.into(),
        };
        Ok(Self { engine, start })
    }
}
