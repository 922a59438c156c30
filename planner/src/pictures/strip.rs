//! The layers in model order: kind, window, sharing, pool, bytes. Layers alike look alike, so that the odd ones stand out.

use std::collections::BTreeMap;

use cacheplan_transforms::layers::{BlockSpec, LayerSpec};

use super::colours;
use super::element::{Element, legend};
use super::letters::Label;
use super::size;
use crate::plan::{CachePlan, Owner, PlannedResource};
use crate::render::ranges;
use crate::size::separated;

/// From one layer to the next.
const STEP: f64 = 19.0;
const WIDE: f64 = 16.0;
const HIGH: f64 = 34.0;
/// Odd ones reach so much higher.
const ODD: f64 = 8.0;
const ROW: f64 = HIGH + ODD + 6.0;

/// Layers that are alike.
struct Alike {
    /// What all of them are.
    text: String,
    layers: Vec<u32>,
    fills: Vec<String>,
    mark: &'static str,
    /// Bytes of each of them on the device.
    bytes: u128,
}

/// The strip, and what its colours mean.
pub(crate) fn draw(plan: &CachePlan, layers: &[LayerSpec], width: f64) -> Element {
    let groups = alike(plan, layers);
    let most = groups.iter().map(|group| group.layers.len()).max().unwrap_or(0);
    let columns = ((width / STEP) as usize).max(1);
    let height = ROW * layers.len().div_ceil(columns) as f64 + 2.0;
    let mut drawn: Vec<(u32, Element)> = Vec::new();
    for group in &groups {
        let odd = group.layers.len() * 8 <= most;
        for &layer in &group.layers {
            let (row, column) = (layer as usize / columns, layer as usize % columns);
            let place = (STEP * column as f64 + 1.0, ROW * row as f64 + ODD + 1.0);
            drawn.push((layer, one(group, layer, place, odd)));
        }
    }
    drawn.sort_by_key(|(layer, _)| *layer);
    let strip = Element::new("svg").with("class", "picture strip").with("viewBox", format!("0 0 {width} {height}"));
    let strip = strip.with("width", width).with("height", height).with("role", "img");
    let strip = strip.with("aria-label", "Layers in model order").with("font-family", super::FONT);
    let rows = groups.iter().map(|group| {
        let fills = if group.fills.is_empty() { vec![colours::GROUND.to_owned()] } else { group.fills.clone() };
        let each = size(group.bytes);
        (fills, format!("{} × {}, {each} each: {}", group.layers.len(), group.text, ranges(&group.layers)))
    });
    let strip = strip.children(drawn.into_iter().map(|(_, element)| element));
    Element::new("div").child(strip).child(legend(rows))
}

fn one(group: &Alike, layer: u32, (x, y): (f64, f64), odd: bool) -> Element {
    let (y, high) = if odd { (y - ODD, HIGH + ODD) } else { (y, HIGH) };
    let said = format!("layer {layer}: {}; {}", group.text, size(group.bytes));
    let part = Element::new("g").with("class", "part").with("data-subject", layer).child(Element::title([said]));
    let band = high / group.fills.len().max(1) as f64;
    let bands = group.fills.iter().enumerate().map(|(at, fill)| {
        let rect = Element::new("rect").at("x", x).at("y", y + band * at as f64).at("width", WIDE).at("height", band);
        rect.with("fill", fill)
    });
    let frame = Element::new("rect").at("x", x).at("y", y).at("width", WIDE).at("height", high);
    let frame = frame.with("fill", if group.fills.is_empty() { colours::GROUND } else { "none" });
    let frame = frame.with("stroke", colours::EDGE).with("stroke-width", if odd { 2 } else { 1 });
    let part = part.children(bands).child(frame);
    match (group.fills.last(), group.mark) {
        // Nothing is kept here, which is crossed out.
        (None, "") => {
            let line = format!("M{x:.1} {:.1}L{:.1} {y:.1}", y + high, x + WIDE);
            part.child(Element::new("path").with("d", line).with("stroke", colours::EDGE))
        }
        (_, "") => part,
        (fill, mark) => {
            let fill = colours::on(fill.map_or(colours::GROUND, String::as_str));
            let label = Label { fill: Some(fill), bold: true, ..Label::MIDDLE };
            part.child(label.draw((x + WIDE / 2.0, y + high - 4.0), WIDE, mark))
        }
    }
}

/// Groups of layers that are alike, in order of first appearance.
fn alike(plan: &CachePlan, layers: &[LayerSpec]) -> Vec<Alike> {
    let mut own: BTreeMap<u32, Vec<&PlannedResource>> = BTreeMap::new();
    let mut readers: BTreeMap<u32, ()> = BTreeMap::new();
    for resource in plan.resources.iter().filter(|resource| !resource.drafts) {
        if let Some(layer) = resource.layer {
            own.entry(layer).or_default().push(resource);
        }
        readers.extend(resource.shared_by.iter().map(|layer| (*layer, ())));
    }
    let mut groups: Vec<Alike> = Vec::new();
    for (layer, spec) in (0..).zip(layers) {
        let resources = own.get(&layer).map(Vec::as_slice).unwrap_or_default();
        let shared = readers.contains_key(&layer);
        let window = window(spec);
        let bytes = resources.iter().map(|resource| on_device(plan, resource)).sum();
        let text = said(spec, window, resources, shared);
        if let Some(group) = groups.iter_mut().find(|group| group.text == text && group.bytes == bytes) {
            group.layers.push(layer);
            continue;
        }
        let fills = resources.iter().filter_map(|resource| colours::of_pool(plan, &resource.pool)).collect();
        let mark = if shared {
            "↑"
        } else if window.is_some() {
            "w"
        } else {
            ""
        };
        groups.push(Alike { text, layers: vec![layer], fills, mark, bytes });
    }
    groups
}

fn said(spec: &LayerSpec, window: Option<u64>, resources: &[&PlannedResource], shared: bool) -> String {
    let blocks: Vec<&str> = spec.blocks.iter().map(BlockSpec::name).collect();
    let mut said = vec![format!("{} ({})", spec.kind, blocks.join(", "))];
    said.extend(window.map(|window| format!("window of {}", separated(window))));
    said.extend(resources.iter().map(|resource| match resource.owner {
        Owner::Local if resource.pool == resource.name => format!("{} in a tensor of its own", resource.kind),
        _ => format!("{} in {}", resource.kind, resource.pool),
    }));
    if shared {
        said.push("reads another layer's keys and values".into());
    } else if resources.is_empty() {
        said.push("no cache".into());
    }
    said.join("; ")
}

fn window(spec: &LayerSpec) -> Option<u64> {
    spec.blocks.iter().find_map(|block| match block {
        BlockSpec::Attention(attention) => attention.window,
        BlockSpec::Mla(mla) => mla.window,
        BlockSpec::CompressedAttention(attention) => Some(attention.window),
        _ => None,
    })
}

/// What a resource takes of its pool.
fn on_device(plan: &CachePlan, resource: &PlannedResource) -> u128 {
    let pool = plan.pools.iter().find(|pool| pool.id == resource.pool);
    let member = |member: &&crate::plan::Member| member.resource == resource.name;
    pool.and_then(|pool| Some(u128::from(pool.members.iter().find(member)?.bytes) * u128::from(pool.units)))
        .unwrap_or(0)
}
