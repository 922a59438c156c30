//! A line of an engine's start, with places for its numbers: the other way of [`super::wording`].

use std::collections::BTreeMap;
use std::fmt::Write;

use cacheplan_handlers::DType;

use super::fact::{Fact, Unit};
use super::wording::Logged;
use crate::engines::version::Version;
use crate::size::separated;

/// A line as an engine writes it: `{}` stands where a number does, `{,}` where it has thousands separators, `{tight}` where no
/// space is before its unit, and `{dtype}` where PyTorch's name of the caches' element type does.
pub(crate) struct Line {
    /// The first version that writes it so.
    pub(crate) since: Version,
    /// The first that does not any more.
    pub(crate) before: Option<Version>,
    pub(crate) text: &'static str,
    /// What each number is the sum of.
    pub(crate) facts: &'static [&'static [Fact]],
    /// Whether it is of what drafts, which has lines like the model's own.
    pub(crate) drafts: bool,
}

/// How an engine prints sizes: the unit, and how many bits it has.
#[derive(Clone, Copy)]
pub(crate) struct SizeUnit(pub(crate) &'static str, pub(crate) u32);

impl Line {
    /// A line that every version that was read writes.
    pub(crate) const fn always(text: &'static str, facts: &'static [&'static [Fact]]) -> Self {
        Self { since: Version(0, 0, 0), before: None, text, facts, drafts: false }
    }

    /// The same from a version on.
    pub(crate) const fn since(self, since: Version) -> Self {
        Self { since, ..self }
    }

    /// The same up to a version that does not write it any more.
    pub(crate) const fn before(self, before: Version) -> Self {
        Self { before: Some(before), ..self }
    }

    /// The same of what drafts.
    pub(crate) const fn of_drafts(self) -> Self {
        Self { drafts: true, ..self }
    }

    /// What all lines begin with of which an engine writes one.
    pub(super) fn beginning(&self) -> &'static str {
        self.text.split('{').next().unwrap_or_default()
    }

    pub(super) fn written(
        &self,
        facts: &BTreeMap<Fact, Logged>,
        dtype: Option<DType>,
        size: SizeUnit,
    ) -> Option<String> {
        let (mut line, mut of) = (self.beginning().to_owned(), self.facts.iter());
        for part in self.text.split('{').skip(1) {
            let (how, behind) = part.split_once('}')?;
            if how == "dtype" {
                line += torch(dtype?)?;
            } else {
                let of = of.next()?;
                let known: Option<Vec<Logged>> = of.iter().map(|fact| facts.get(fact).copied()).collect();
                let sum = known?.into_iter().fold(Logged::exact(0), Logged::plus);
                line += &number(sum, of.first()?.unit(), how, size);
            }
            line += behind;
        }
        Some(line)
    }
}

/// What PyTorch calls an element type.
const fn torch(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::Bf16 => Some("torch.bfloat16"),
        DType::F16 => Some("torch.float16"),
        DType::F32 => Some("torch.float32"),
        DType::F8E4m3 => Some("torch.float8_e4m3fn"),
        DType::F8E5m2 => Some("torch.float8_e5m2"),
        _ => None,
    }
}

fn number(value: Logged, unit: Unit, how: &str, SizeUnit(name, bits): SizeUnit) -> String {
    let one = |value: u64| match unit {
        Unit::Count if how == "," => separated(value),
        Unit::Count => value.to_string(),
        Unit::Switch => if value == 1 { "True" } else { "False" }.into(),
        Unit::Hundredths => format!("{}.{:02}", value / 100, value % 100),
        Unit::Bytes => format!("{:.2}", value as f64 / (1u64 << bits) as f64),
    };
    let (low, high) = (one(value.low), one(value.high));
    let mut text = if low == high { low } else { format!("{low}..{high}") };
    if unit == Unit::Bytes {
        let _ = write!(text, "{}{name}", if how == "tight" { "" } else { " " });
    }
    text
}
