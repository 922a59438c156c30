//! A plan and what fits as pictures: drawn here once, for the command's files and for the page, which lets them be pointed at.
//!
//! What can be pointed at is a `g` of the class `part`: its title has a fact a line, and `data-…` says what it is of.

mod areas;
pub(crate) mod capacity;
mod chart;
pub(crate) mod colours;
mod document;
pub(crate) mod element;
mod file;
pub(crate) mod heat;
pub(crate) mod letters;
pub(crate) mod map;
mod rates;
pub(crate) mod strip;
mod tiers;

use cacheplan_transforms::layers::LayerSpec;
use serde::Serialize;

pub use self::element::Element;
pub use self::rates::Drawn;
pub use self::tiers::TierCurve;
use crate::curves::Curves;
use crate::device::DeviceInfo;
use crate::fit::Answer;
use crate::plan::CachePlan;
use crate::size::{ByteSize, separated};

const FONT: &str = "Helvetica, Arial, sans-serif";

/// The pictures of a plan, for a page.
#[derive(Clone, Debug, Serialize)]
pub struct Pictures {
    /// From the device to what the map shows.
    path: Vec<(String, String)>,
    map: Element,
    ledger: Element,
    layers: Element,
}

/// The pictures of curves or of what fits, for a page.
#[derive(Clone, Debug, Serialize)]
pub struct Charts {
    curves: Element,
    more: Element,
    numbers: Option<Element>,
}

impl CachePlan {
    /// What the device holds, within the parts that `into` names one in the other, and the layers in their order.
    pub fn pictures(&self, device: Option<&DeviceInfo>, layers: &[LayerSpec], into: &[String], width: f64) -> Pictures {
        // The map has facts beside it where there is room for both.
        let beside = if width > 760.0 { width * 0.6 } else { width };
        let map = map::draw(self, device, into, beside.round());
        Pictures {
            path: map.path,
            map: map.picture,
            ledger: map::numbers(self),
            layers: strip::draw(self, layers, width),
        }
    }
}

impl Curves {
    /// Ours and every engine's; `plan` is the one of which they are.
    pub fn pictures(&self, plan: &CachePlan, width: f64) -> Charts {
        Charts {
            curves: capacity::draw(self, plan, width.min(860.0)),
            more: capacity::engines(self),
            numbers: Some(capacity::numbers(self)),
        }
    }
}

impl Answer {
    /// The curve of the best layout of each device, and the map of devices by layout.
    pub fn pictures(&self, width: f64) -> Charts {
        let map = Element::new("div").child(heat::draw(self, width)).child(heat::meaning());
        Charts { curves: file::curves(self, width.min(860.0)), more: map, numbers: None }
    }
}

impl Element {
    /// What is said of the element around it, a fact a line.
    fn title(lines: impl IntoIterator<Item = String>) -> Self {
        let shown = lines.into_iter().map(|line| cacheplan_files::Shown(&line).to_string());
        let mut title = Self::new("title");
        title.children.push(element::Child::Text(shown.collect::<Vec<_>>().join("\n")));
        title
    }
}

/// How many sequences a plan runs, in a sentence.
fn capacity_heading(plan: &CachePlan) -> String {
    let capacity = &plan.capacity;
    let tokens =
        capacity.tokens.map(|tokens| format!(", {} {}", separated(tokens), plan.in_pages())).unwrap_or_default();
    let host = plan.host.as_ref();
    let host = host.map(|host| format!("; {} more on the host in {}", separated(host.sequences), ByteSize(host.bytes)));
    format!(
        "{} sequences of {} tokens{tokens}, capped by {}; grouping {}, {} layers{}",
        separated(capacity.sequences),
        separated(capacity.tokens_per_sequence),
        capacity.capped_by,
        plan.policy,
        plan.model.layers,
        host.unwrap_or_default()
    )
}

fn size(bytes: u128) -> String {
    ByteSize(u64::try_from(bytes).unwrap_or(u64::MAX)).to_string()
}

/// `32k` for 32,768 tokens.
fn tokens(value: f64) -> String {
    match value as u64 {
        tokens if tokens > 0 && tokens.is_multiple_of(1 << 20) => format!("{}m", tokens >> 20),
        tokens if tokens > 0 && tokens.is_multiple_of(1 << 10) => format!("{}k", tokens >> 10),
        tokens => tokens.to_string(),
    }
}

/// `12.3 %`.
fn percent(part: u128, whole: u128) -> String {
    let tenths = (part * 1000 + whole / 2).checked_div(whole).unwrap_or(0);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests;
