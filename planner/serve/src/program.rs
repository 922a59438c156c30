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
    /// The number of the release candidate that its version is, `1` of `1.3.0rc1`.
    pub(crate) candidate: Option<u32>,
}

impl Program {
    /// That of a launch, at the version that is stated, else its image's, else the newest that is modelled.
    pub(crate) fn of(launch: &Launch, stated: Option<&str>) -> Result<Self, ServeError> {
        let (engine, start) = started(&launch.words).ok_or_else(|| ServeError::no_engine(&launch.words))?;
        let version = stated.or(launch.version.as_deref());
        let engine = match version {
            Some(version) => format!("{engine}@{version}").parse()?,
            None => engine.into(),
        };
        let candidate = version.and_then(|version| {
            let number = version.split_once("rc")?.1;
            number[..number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len())].parse().ok()
        });
        Ok(Self { engine, start, candidate })
    }
}
