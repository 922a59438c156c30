//! Devices by layout: how many sequences each holds, and what it costs where prices are given.

use std::collections::BTreeSet;

use super::element::{Element, legend};
use super::letters::{Label, width as wide};
use super::{colours, size};
use crate::fit::{Answer, Fit, money};
use crate::size::separated;

/// The least width of a cell.
const CELL: f64 = 60.0;
const ROW: f64 = 36.0;
const HEAD: f64 = 20.0;
const GAP: f64 = 8.0;

/// The best layout of each number of each device, in the model's own dtypes, and where it stands in the answer: those of all
/// numbers that are tried would fill no page.
fn cells(answer: &Answer) -> Vec<(usize, &Fit)> {
    let mut seen = BTreeSet::new();
    let plain = answer.fits.iter().enumerate().filter(|(_, fit)| fit.changed_dtypes() == 0 && answer.decides(fit));
    plain.filter(|(_, fit)| seen.insert((&fit.device, fit.devices))).collect()
}

/// Draws a row for each layout and a column for each device: devices are few, so that it fits a narrow page.
pub(crate) fn draw(answer: &Answer, width: f64) -> Element {
    let cells = cells(answer);
    let fits: Vec<&Fit> = cells.iter().map(|(_, fit)| *fit).collect();
    let mut devices: Vec<&str> = fits.iter().map(|fit| fit.device.as_str()).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut layouts: Vec<(u64, String)> = fits.iter().map(|fit| (fit.devices, layout(fit))).collect();
    layouts.sort();
    layouts.dedup();
    let heading = |(devices, layout): &(u64, String)| match devices {
        1 => "1 GPU".to_owned(),
        _ => format!("{devices} GPUs, {layout}"),
    };
    let left = layouts.iter().map(|of| wide(&heading(of), 12.0, false)).fold(40.0, f64::max).min(240.0) + GAP;
    let named = devices.iter().map(|name| wide(name, 12.0, false)).fold(CELL, f64::max).min(2.0 * CELL) + GAP;
    let cell = ((width - left) / devices.len().max(1) as f64).clamp(named, named.max(2.0 * CELL));
    let all = left + cell * devices.len() as f64 + 1.0;
    let high = HEAD + ROW * layouts.len() as f64 + 1.0;
    let picture = Element::new("svg").with("class", "picture heat").with("viewBox", format!("0 0 {all:.1} {high:.1}"));
    let picture = picture.at("width", all).at("height", high).with("role", "img");
    let picture =
        picture.with("aria-label", "Devices by layout: how many sequences each holds").with("font-family", super::FONT);
    let names = devices.iter().enumerate().map(|(column, device)| {
        let middle = left + cell * (column as f64 + 0.5);
        Label::MIDDLE.draw((middle, HEAD - GAP / 2.0), cell - GAP, device)
    });
    let mut drawn: Vec<Element> = names.collect();
    for (row, of) in layouts.iter().enumerate() {
        let y = HEAD + ROW * row as f64;
        drawn.push(Label::END.draw((left - GAP, y + ROW / 2.0 + 4.0), left - GAP, &heading(of)));
        for (column, device) in devices.iter().enumerate() {
            let is_here = |(_, fit): &&(usize, &Fit)| fit.device == *device && layout(fit) == of.1;
            let found = cells.iter().find(is_here);
            drawn.extend(found.map(|(at, _)| one(answer, *at, (left + cell * column as f64, y), cell)));
        }
    }
    picture.children(drawn)
}

fn one(answer: &Answer, at: usize, (x, y): (f64, f64), cell: f64) -> Element {
    let fit = &answer.fits[at];
    let currency = answer.currency.as_deref().unwrap_or_default();
    let price = fit.per_hour.map(|price| format!("{}/h", money(price, 2, currency)));
    let held = match (fit.least(), fit.most()) {
        (least, most) if least < most => format!("{} to {}", separated(least), separated(most)),
        (least, _) => separated(least),
    };
    let mut said = vec![
        format!("{} × {}, {}: {held} sequences", fit.devices, fit.device, layout(fit)),
        format!("capped by: {}", fit.capped_by_words),
        format!("for caches: {}", size(fit.cache_bytes.into())),
    ];
    said.extend(price.as_ref().map(|price| format!("price: {price}")));
    let part = Element::new("g").with("class", "part").with("data-at", at).child(Element::title(said));
    let rect = Element::new("rect").at("x", x).at("y", y).at("width", cell).at("height", ROW);
    let part = part.child(rect.with("fill", heat(fit.least(), answer.sequences)).with("stroke", colours::EDGE));
    let label = Label { fill: Some("#000000"), ..Label::MIDDLE };
    let middle = x + cell / 2.0;
    let (first, second) = (y + if price.is_some() { 15.0 } else { 22.0 }, y + 29.0);
    let sequences = match fit.sequences {
        0 => "–".to_owned(),
        some if fit.holds => format!("✓ {}", short(some)),
        some if fit.may_hold => format!("? {}", short(some)),
        some => short(some),
    };
    let held = Label { bold: fit.holds, ..label }.draw((middle, first), cell - 4.0, &sequences);
    let price = price.map(|price| Label { size: 10.0, ..label }.draw((middle, second), cell - 4.0, &price));
    part.child(held).children(price)
}

/// White for none, orange towards what was asked for, blue from there on, light enough for black text.
pub(crate) const HEAT: [(&str, &str); 5] = [
    ("#f4f4f4", "the weights leave no room"),
    ("#fbe5c0", "less than a quarter of what was asked for"),
    ("#f5c77a", "less than was asked for"),
    ("#b5dcf3", "✓ what was asked for"),
    ("#7cc3ea", "✓ four times as much, or more"),
];

const fn heat(sequences: u64, asked: u64) -> &'static str {
    match sequences {
        0 => HEAT[0].0,
        some if some < asked.div_ceil(4) => HEAT[1].0,
        some if some < asked => HEAT[2].0,
        some if some < asked.saturating_mul(4) => HEAT[3].0,
        _ => HEAT[4].0,
    }
}

/// What the colours mean.
pub(crate) fn meaning() -> Element {
    legend(HEAT.map(|(fill, text)| (vec![fill.to_owned()], text.to_owned())))
}

pub(crate) fn layout(fit: &Fit) -> String {
    let sizes = fit.parallel.sizes().into_iter().filter(|(_, size)| *size > 1);
    let named: Vec<String> = sizes.map(|(name, size)| format!("{name} {size}")).collect();
    if named.is_empty() { "alone".into() } else { named.join(" ") }
}

/// At most four letters, so that cells have room for them.
fn short(sequences: u64) -> String {
    match sequences {
        0..10_000 => sequences.to_string(),
        10_000..1_000_000 => format!("{}k", sequences / 1000),
        _ => format!("{}m", sequences / 1_000_000),
    }
}
