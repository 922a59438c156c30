//! The memory of one device as nested areas: what it holds, by size.

use std::collections::BTreeMap;

use super::areas::Area;
use super::colours;
use super::element::{Element, table};
use super::letters::Label;
use super::{percent, size};
use crate::device::DeviceInfo;
use crate::plan::{CachePlan, LedgerItem, Owner, PlannedResource, Pool, Unit};
use crate::render::{owner_name, ranges, source_name};
use crate::size::separated;

/// How high a map is.
pub(crate) const HEIGHT: f64 = 400.0;

/// What goes around all pools.
const CACHES: &str = "caches";

/// Room for the name of a map.
const ABOVE: f64 = 22.0;

/// Room for the name of what goes around others.
const HEADING: f64 = 20.0;

/// What takes bytes.
struct Cell {
    name: String,
    bytes: u128,
    fill: String,
    /// What a reader wants to know of it, name and text.
    facts: Vec<(&'static str, String)>,
    /// What the planner explains it as.
    subject: Option<String>,
    parts: Vec<Self>,
}

impl Cell {
    /// The part of this name that has parts, and what is around it.
    fn towards(&self, name: &str) -> Option<Vec<&Self>> {
        let found = |within: &'_ Self| within.parts.iter().position(|part| part.name == name && !part.parts.is_empty());
        if let Some(at) = found(self) {
            return Some(vec![&self.parts[at]]);
        }
        let caches = self.parts.iter().find(|part| part.name == CACHES)?;
        found(caches).map(|at| vec![caches, &caches.parts[at]])
    }
}

/// A map, and the names of what it is within.
pub(crate) struct Map {
    /// From the device to what is drawn, the name of each and how it is shown: `caches`, `caches · 66.10 GiB`.
    pub(crate) path: Vec<(String, String)>,
    pub(crate) picture: Element,
}

/// Draws what is within the parts of these names, where the caches' own may be left out; names that the plan does not have
/// end the way there.
pub(crate) fn draw(plan: &CachePlan, device: Option<&DeviceInfo>, into: &[String], width: f64) -> Map {
    let root = whole(plan, device);
    let titled = |cell: &Cell| format!("{} · {}", cell.name, size(cell.bytes));
    let mut way = vec![&root];
    for name in into {
        let Some(found) = way.last().and_then(|shown| shown.towards(name)) else { break };
        way.extend(found);
    }
    let shown = way.last().copied().unwrap_or(&root);
    let path = way.iter().map(|cell| (cell.name.clone(), titled(cell))).collect();
    let area = Area { x: 0.5, y: 0.5, width: width - 1.0, height: HEIGHT - 1.0 };
    let picture = Element::new("svg").with("class", "picture map").with("viewBox", format!("0 0 {width} {HEIGHT}"));
    let picture = picture.with("width", width).with("height", HEIGHT).with("role", "img");
    let label = format!("{}: areas by size", titled(shown));
    let picture = picture.with("aria-label", label).with("font-family", super::FONT);
    Map { path, picture: picture.children(parts(shown, area, shown.bytes)) }
}

/// Every line of the ledger, and every byte of the device.
fn whole(plan: &CachePlan, device: Option<&DeviceInfo>) -> Cell {
    let resources: BTreeMap<&str, &PlannedResource> =
        plan.resources.iter().map(|resource| (resource.name.as_str(), resource)).collect();
    let pools: Vec<Cell> =
        plan.pools.iter().enumerate().map(|(place, pool)| of_pool(pool, place, &resources)).collect();
    let local = |pool: &Pool| !pool.owner.is_managed();
    let (mut caches, mut others) = (Vec::new(), Vec::new());
    for (pool, cell) in plan.pools.iter().zip(pools) {
        if !local(pool) || pool.bytes > 0 {
            caches.push(cell);
        }
    }
    for line in &plan.ledger {
        let of_pools = matches!(&line.name, LedgerItem::Pool(_) | LedgerItem::Local);
        if of_pools || line.bytes == 0 {
            continue;
        }
        let mut facts = vec![("source", source_name(line.source).to_owned()), ("reason", line.note.clone())];
        if line.uncertain_bytes > 0 {
            facts.push(("may take", format!("{} more", size(line.uncertain_bytes.into()))));
        }
        let cell = Cell {
            name: line.name.to_string(),
            bytes: line.bytes.into(),
            fill: colours::of_line(&line.name).to_owned(),
            facts,
            subject: Some(line.name.to_string()),
            parts: Vec::new(),
        };
        if line.name == LedgerItem::Unused { caches.push(cell) } else { others.push(cell) }
    }
    let sum = |cells: &[Cell]| cells.iter().map(|cell| cell.bytes).sum::<u128>();
    let total = device.map_or(0, |device| u128::from(device.total_bytes));
    let left = total.saturating_sub(sum(&others) + sum(&caches));
    if left > 0 {
        let why = "outside the share that the budget takes of the device".to_owned();
        others.push(plain("left to others", left, vec![("reason", why)], Vec::new()));
    }
    if !caches.is_empty() {
        let holds = "all pools, and what is free for them".to_owned();
        others.push(plain(CACHES, sum(&caches), vec![("holds", holds)], caches));
    }
    let name = device.map_or("all that is planned", |device| device.name.trim_end_matches(" (nominal)"));
    plain(name, sum(&others), Vec::new(), others)
}

fn plain(name: &str, bytes: u128, facts: Vec<(&'static str, String)>, parts: Vec<Cell>) -> Cell {
    Cell { name: name.to_owned(), bytes, fill: colours::GROUND.to_owned(), facts, subject: None, parts }
}

fn of_pool(pool: &Pool, place: usize, resources: &BTreeMap<&str, &PlannedResource>) -> Cell {
    let fill = colours::of_place(place);
    let unit = units(pool);
    let formula = |bytes: u64| format!("{} {unit} × {} bytes", separated(pool.units), separated(bytes));
    let parts = pool.members.iter().map(|member| {
        let resource = resources.get(member.resource.as_str());
        let layer = resource.and_then(|resource| resource.layer);
        let drafts = if resource.is_some_and(|resource| resource.drafts) { "draft " } else { "" };
        let mut facts = vec![("resource", member.resource.clone())];
        if let Some(resource) = resource {
            facts.extend([
                ("kind", resource.kind.clone()),
                ("owner", owner_name(resource.owner).to_owned()),
                ("reason", resource.reason.clone()),
                ("source", source_name(resource.source).to_owned()),
            ]);
        }
        facts.push(("formula", formula(member.bytes)));
        Cell {
            name: layer.map_or_else(|| member.resource.clone(), |layer| format!("{drafts}layer {layer}")),
            bytes: u128::from(member.bytes) * u128::from(pool.units),
            fill: fill.clone(),
            facts,
            subject: Some(member.resource.clone()),
            parts: Vec::new(),
        }
    });
    let mut facts = vec![
        ("owner", owner_name(pool.owner).to_owned()),
        ("formula", formula(pool.unit_bytes)),
        ("layers", ranges(&pool.layers)),
        ("dtype", pool.dtype.to_string()),
    ];
    facts.extend(pool.window.map(|window| ("window", format!("{} tokens", separated(window.into())))));
    let parts = parts.collect();
    // What local tensors are for, only they say.
    if pool.owner == Owner::Local {
        let first = pool.members.first().and_then(|member| resources.get(member.resource.as_str()));
        facts.extend(first.map(|resource| ("reason", resource.reason.clone())));
    }
    Cell { name: pool.id.clone(), bytes: pool.bytes.into(), fill, facts, subject: Some(pool.id.clone()), parts }
}

/// What a pool is divided into.
pub(crate) fn units(pool: &Pool) -> String {
    match (pool.unit, pool.tokens_per_block) {
        (Unit::Block, Some(tokens)) => format!("blocks of {tokens} tokens"),
        (Unit::Block, None) => "blocks".into(),
        (Unit::Slot, _) => if pool.checkpoints_of.is_some() { "checkpoints" } else { "slots" }.into(),
        (Unit::Fixed, _) => "tensors".into(),
    }
}

fn parts(shown: &Cell, area: Area, whole: u128) -> Vec<Element> {
    let sizes: Vec<u128> = shown.parts.iter().map(|part| part.bytes).collect();
    let places = area.divided(&sizes);
    let drawn = shown.parts.iter().zip(places).flat_map(|(part, place)| {
        // What is in the caches is seen at once, with the caches' own name above it.
        let around = part.name == CACHES && part.subject.is_none() && place.width >= 60.0 && place.height >= 50.0;
        let mut drawn = vec![one(part, place, whole, around)];
        if around {
            let inside = Area {
                x: place.x + 2.0,
                y: place.y + HEADING,
                width: place.width - 4.0,
                height: place.height - HEADING - 2.0,
            };
            drawn.extend(parts(part, inside, whole));
        }
        drawn
    });
    drawn.collect()
}

fn one(cell: &Cell, area: Area, whole: u128, around: bool) -> Element {
    let share = format!("{}, {}", size(cell.bytes), percent(cell.bytes, whole));
    let mut part = Element::new("g").with("class", "part");
    if !cell.parts.is_empty() {
        part = part.with("data-into", &cell.name);
    }
    if let Some(subject) = &cell.subject {
        part = part.with("data-subject", subject);
    }
    let said = [format!("{}: {share}", cell.name), format!("bytes: {}", cell.bytes)];
    let facts = cell.facts.iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| format!("{name}: {text}"));
    let part = part.child(Element::title(said.into_iter().chain(facts)));
    let stroke = if around { 2.0 } else { 1.0 };
    let rect = Element::new("rect").at("x", area.x).at("y", area.y).at("width", area.width).at("height", area.height);
    let part = part.child(rect.with("fill", &cell.fill).with("stroke", colours::EDGE).with("stroke-width", stroke));
    let label = Label { fill: Some(colours::on(&cell.fill)), ..Label::PLAIN };
    let name = Label { bold: true, ..label };
    let room = area.width - 10.0;
    let named = Some(name.cut(&cell.name, room))
        .filter(|cut| area.height > 18.0 && (*cut == cell.name || cut.chars().count() > 5));
    let sized = [share, size(cell.bytes)].into_iter().find(|text| label.cut(text, room) == *text);
    let sized = sized.filter(|_| area.height > 36.0 && !around && named.is_some());
    let named = named.map(|text| name.draw((area.x + 5.0, area.y + 14.5), room, &text));
    part.children(named).children(sized.map(|text| label.draw((area.x + 5.0, area.y + 31.0), room, &text)))
}

/// The device and, where there are caches, these alone beside or below it: nobody can go into a file.
pub(crate) fn pair(plan: &CachePlan, device: Option<&DeviceInfo>, width: f64) -> Element {
    let within = [CACHES.to_owned()];
    let several = draw(plan, device, &within, width).path.len() > 1;
    let beside = several && width > 600.0;
    let left = if beside { (width * 0.4).round() } else { width };
    let (x, y) = if beside { (left + 16.0, 0.0) } else { (0.0, ABOVE + HEIGHT + 12.0) };
    let mut maps = vec![(draw(plan, device, &[], left), (0.0, 0.0), left)];
    if several {
        maps.push((draw(plan, device, &within, width - x), (x, y), width - x));
    }
    let height = ABOVE + HEIGHT + if several { y } else { 0.0 };
    let picture = Element::new("svg").with("class", "picture").with("viewBox", format!("0 0 {width} {height}"));
    let picture = picture.with("width", width).with("height", height).with("role", "img");
    let drawn = maps.into_iter().flat_map(|(map, (x, y), width)| {
        let title = map.path.last().map_or("", |(_, title)| title.as_str());
        [Label::BOLD.draw((x, y + 14.0), width, title), map.picture.at("x", x).at("y", y + ABOVE)]
    });
    picture.with("aria-label", "Memory by size").with("font-family", super::FONT).children(drawn)
}

/// The same as a table: the ledger.
pub(crate) fn numbers(plan: &CachePlan) -> Element {
    let rows = plan.ledger.iter().map(|line| {
        let bytes = size(line.bytes.into());
        vec![line.name.to_string(), separated(line.bytes), bytes, source_name(line.source).into(), line.note.clone()]
    });
    table(
        "Where the bytes of the device go",
        &["", "bytes", "size", "known by", "why"],
        &[1, 2],
        &rows.collect::<Vec<_>>(),
    )
}
