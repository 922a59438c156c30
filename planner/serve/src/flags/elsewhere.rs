//! Flags that are typed to another engine than the one that has them.

use cacheplan_planner::Engine;
use cacheplan_planner::engines::FlagMeaning;

use super::meaning::{Meaning, meaning};
use super::table::{Flag, flags};

/// The share of memory, which no key of the budget says alike for both.
const SHARES: [&str; 2] = ["--gpu-memory-utilization", "--mem-fraction-static"];

/// The flag among `own` by which `engine` is told what another engine is told by the flag `written`.
pub(super) fn elsewhere(engine: Engine, own: &[&'static Flag], written: &str) -> Option<&'static str> {
    let mut others = Engine::all().iter().filter(|other| **other != engine);
    others.find_map(|&other| {
        let flag = flags(other, other.newest()).into_iter().find(|flag| flag.names().any(|name| name == written))?;
        let told = told(other, flag)?;
        own.iter().find(|flag| self::told(engine, flag).as_ref() == Some(&told)).map(|flag| flag.name)
    })
}

/// What a flag says, in words that all engines share.
fn told(engine: Engine, flag: &Flag) -> Option<&'static str> {
    let is = |name: &str| flag.names().any(|known| known == name);
    match meaning(engine, flag) {
        _ if is(engine.length_flag()) => Some("length"),
        _ if is(engine.sequences_flag()) => Some("sequences"),
        _ if SHARES.iter().any(|share| is(share)) => Some("share"),
        Meaning::Key(path) | Meaning::Planner(FlagMeaning::Key(path) | FlagMeaning::DType { path, .. }) => Some(path),
        _ => None,
    }
}
