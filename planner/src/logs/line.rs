//! A line of an engine's start, with places for its numbers: the other way of [`super::wording`].

use std::collections::BTreeMap;
use std::fmt::Write;

use super::fact::{Fact, Unit};
use super::wording::Logged;
use crate::engines::version::Version;
use crate::size::separated;

/// A line as an engine writes it: `{}` stands where a number does, `{,}` where it has thousands separators.
pub(crate) struct Line {
    /// The first version that writes it so.
    pub(crate) since: Version,
    /// The first that does not any more.
    pub(crate) before: Option<Version>,
    pub(crate) text: &'static str,
    /// What each number is the sum of.
    pub(crate) facts: &'static [&'static [Fact]],
}

/// How an engine prints sizes: the unit, and how many bits it has.
#[derive(Clone, Copy)]
pub(crate) struct SizeUnit(pub(crate) &'static str, pub(crate) u32);

impl Line {
    /// A line that every version that was read writes.
    pub(crate) const fn always(text: &'static str, facts: &'static [&'static [Fact]]) -> Self {
        Self { since: Version(0, 0, 0), before: None, text, facts }
    }

    /// The same from a version on.
    pub(crate) const fn since(self, since: Version) -> Self {
        Self { since, ..self }
    }

    /// The same up to a version that does not write it any more.
    pub(crate) const fn before(self, before: Version) -> Self {
        Self { before: Some(before), ..self }
    }

    pub(super) fn written(&self, facts: &BTreeMap<Fact, Logged>, size: SizeUnit) -> Option<String> {
        let mut parts = self.text.split('{');
        let mut line = parts.next().unwrap_or_default().to_owned();
        for (part, of) in parts.zip(self.facts) {
            let (how, behind) = part.split_once('}')?;
            let known: Option<Vec<Logged>> = of.iter().map(|fact| facts.get(fact).copied()).collect();
            let sum = known?.into_iter().fold(Logged::exact(0), Logged::plus);
            line += &number(sum, of.first()?.unit(), how == ",", size);
            line += behind;
        }
        Some(line)
    }
}

fn number(value: Logged, unit: Unit, thousands: bool, SizeUnit(name, bits): SizeUnit) -> String {
    let one = |value: u64| match unit {
        Unit::Count if thousands => separated(value),
        Unit::Count => value.to_string(),
        Unit::Switch => if value == 1 { "True" } else { "False" }.into(),
        Unit::Hundredths => format!("{}.{:02}", value / 100, value % 100),
        Unit::Bytes => format!("{:.2}", value as f64 / (1u64 << bits) as f64),
    };
    let (low, high) = (one(value.low), one(value.high));
    let mut text = if low == high { low } else { format!("{low}..{high}") };
    if unit == Unit::Bytes {
        let _ = write!(text, " {name}");
    }
    text
}
