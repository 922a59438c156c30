//! What was read, from where, and what the passes made of it, as text of at most 100 columns.

use std::fmt::{self, Display, Formatter};

use cacheplan_files::Shown;
use cacheplan_handlers::{Growth, ResourceHandler};

use crate::model::{Fact, Model};
use crate::passes::{Collected, PassReport};
use crate::resources::{Resource, Resources};

const WIDTH: usize = 100;

impl Model {
    /// The model as it was read, and what the passes collected from it.
    pub fn inspection<'a>(&'a self, collected: &'a Collected) -> impl Display + 'a {
        Inspection { model: self, collected }
    }
}

struct Inspection<'a> {
    model: &'a Model,
    collected: &'a Collected,
}

impl Display for Inspection<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let info = &self.model.info;
        let longest =
            info.max_position_embeddings.map_or_else(String::new, |tokens| format!(", up to {tokens} tokens"));
        writeln!(f, "{}: {} layers, {}{longest}", Shown(&info.model_type), info.layers, info.dtype)?;
        writeln!(f, "read from {}", Shown(&self.model.source))?;
        if let Some(weights) = info.weights {
            writeln!(f, "weights: {} bytes ({})", weights.bytes, if weights.exact { "exact" } else { "assumed" })?;
        }
        if let (None, Some(why)) = (info.weights, &self.model.weights_unknown) {
            line(f, &format!("weights: not known; {why}"))?;
        }
        layers(f, self.model)?;
        caches(f, &self.collected.resources)?;
        let (assumed, read): (Vec<&Fact>, Vec<&Fact>) = self.model.facts.iter().partition(|fact| fact.assumed);
        facts(f, "Read", &read)?;
        facts(f, "Assumed", &assumed)?;
        passes(f, &self.collected.reports)
    }
}

fn layers(f: &mut Formatter<'_>, model: &Model) -> fmt::Result {
    if model.layers.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nLayers")?;
    for (kind, members) in grouped((0u32..).zip(&model.layers).map(|(layer, spec)| (spec.kind.as_str(), Some(layer)))) {
        line(f, &format!("  {:<20} {:>4}  {}", kind, members.len(), ranges(&members)))?;
    }
    Ok(())
}

fn caches(f: &mut Formatter<'_>, resources: &Resources) -> fmt::Result {
    writeln!(f, "\nCaches")?;
    if resources.is_empty() {
        return writeln!(f, "  none");
    }
    line(f, &columns("kind", "", "layers", "shape", "bytes"))?;
    for (row, members) in grouped(resources.iter().map(|resource| (Row::of(resource), resource.layer))) {
        let (count, layers) = (members.len().to_string(), cut(&ranges(&members), 20));
        line(f, &columns(&row.kind, &count, &layers, &row.shape, &row.bytes))?;
    }
    let (mut per_token, mut in_windows, mut per_sequence) = (0.0, 0u64, 0u64);
    for resource in resources {
        let handler = &resource.handler;
        match (handler.growth(), handler.bytes_per_token()) {
            (Growth::Paged { window: Some(window), .. }, Some((bytes, tokens))) => {
                in_windows += bytes.saturating_mul(window.into()).div_ceil(tokens);
            }
            (_, Some((bytes, tokens))) => per_token += bytes as f64 / tokens as f64,
            (_, None) => per_sequence += handler.unit_bytes(),
        }
    }
    let windows = if in_windows > 0 { format!(", {in_windows} in full windows") } else { String::new() };
    writeln!(f, "  in all {per_token} bytes per token{windows}, {per_sequence} bytes per sequence")
}

/// What resources of equal layers have in common.
#[derive(PartialEq)]
struct Row {
    kind: String,
    shape: String,
    bytes: String,
}

impl Row {
    fn of(resource: &Resource) -> Self {
        let handler = &resource.handler;
        let shape: Vec<String> = handler.shape().iter().map(|dim| dim.size.to_string()).collect();
        let shape = format!("[{}] {}", shape.join(", "), handler.dtype());
        let shared = match resource.shared_by.len() {
            0 => String::new(),
            layers => format!(", {layers} share it"),
        };
        let bytes = format!("{} {}{shared}", handler.unit_bytes(), unit(handler));
        Self { kind: handler.kind().to_string(), shape, bytes }
    }
}

fn columns(kind: &str, count: &str, layers: &str, shape: &str, bytes: &str) -> String {
    format!("  {kind:<22} {count:>4}  {layers:<20}  {shape:<20} {bytes}")
}

fn unit(handler: &ResourceHandler) -> String {
    match handler.growth() {
        Growth::Paged { stride: 1, window: None } => "per token".to_owned(),
        Growth::Paged { stride: 1, window: Some(window) } => format!("per token, last {window}"),
        Growth::Paged { stride, .. } => format!("per {stride} tokens"),
        Growth::PerSlotToken => "per token of max_seq_len".to_owned(),
        Growth::PerSequence => "per sequence".to_owned(),
        Growth::PerDraftPosition => "per draft position".to_owned(),
        Growth::Fixed => "once".to_owned(),
    }
}

fn facts(f: &mut Formatter<'_>, title: &str, facts: &[&Fact]) -> fmt::Result {
    if facts.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}")?;
    for fact in facts {
        line(f, &format!("  {:<32} {:<12} {}", fact.what, fact.value, fact.from))?;
    }
    Ok(())
}

fn passes(f: &mut Formatter<'_>, reports: &[PassReport]) -> fmt::Result {
    writeln!(f, "\nPasses")?;
    for report in reports {
        let why = report.skipped.first().map_or("", |skipped| skipped.reason.as_ref());
        let skipped = match report.skipped.iter().filter(|skipped| skipped.node.is_some()).count() {
            0 => why.to_owned(),
            count => format!("{count} skipped: {why}"),
        };
        line(f, &format!("  {:<26} {:>5} matched  {skipped}", report.pass, report.matched.len()))?;
    }
    Ok(())
}

/// The layers of each distinct key, in order of first appearance.
fn grouped<K: PartialEq>(rows: impl Iterator<Item = (K, Option<u32>)>) -> Vec<(K, Vec<Option<u32>>)> {
    let mut groups: Vec<(K, Vec<Option<u32>>)> = Vec::new();
    for (key, layer) in rows {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(layer),
            None => groups.push((key, vec![layer])),
        }
    }
    groups
}

/// Neighbouring layers as ranges: `0-3, 5, 7-9`; a layer that has several is named once.
fn ranges(layers: &[Option<u32>]) -> String {
    let mut layers: Vec<u32> = layers.iter().copied().flatten().collect();
    layers.sort_unstable();
    layers.dedup();
    let runs = layers.chunk_by(|left, right| left + 1 == *right);
    let texts = runs.filter_map(|run| match (run.first()?, run.last()?) {
        (first, last) if first == last => Some(first.to_string()),
        (first, last) => Some(format!("{first}-{last}")),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Writes one line, cut at [`WIDTH`] columns.
fn line(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    writeln!(f, "{}", cut(&Shown(text.trim_end()).to_string(), WIDTH))
}

/// The text, or its beginning and an ellipsis in `width` columns.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width - 1).collect();
    short.push('…');
    short
}
