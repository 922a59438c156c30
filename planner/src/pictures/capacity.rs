//! How many sequences fit over their length: ours, coloured by what runs out first, and each engine's.

use super::chart::{Chart, Line};
use super::colours;
use super::element::{Element, legend, table};
use super::size;
use crate::curves::Curves;
use crate::plan::CachePlan;
use crate::size::separated;

/// The curves, and what the colours of ours mean.
pub(crate) fn draw(curves: &Curves, plan: &CachePlan, width: f64) -> Element {
    let mut lines: Vec<Line> = curves
        .engines
        .iter()
        .enumerate()
        .map(|(at, engine)| Line {
            name: engine.engine.clone(),
            points: held(engine.points.iter().map(|point| (point.context, point.sequences))),
            notes: Vec::new(),
            style: at + 1,
        })
        .collect();
    let ours: Vec<_> = curves.ours.iter().filter(|point| point.sequences > 0).collect();
    let colour_of = |cap: &str| colours::of_pool(plan, cap);
    let note = |cap: &String| (format!("capped by {cap}"), colour_of(cap));
    // Ours is drawn last, on top of those that are equal.
    lines.push(Line {
        name: "cacheplan".into(),
        points: held(curves.ours.iter().map(|point| (point.context, point.sequences))),
        notes: ours.iter().map(|point| note(&point.capped_by)).collect(),
        style: 0,
    });
    lines.retain(|line| !line.points.is_empty());
    if lines.is_empty() {
        return Element::new("p").text("Nothing is held at any length.");
    }
    let mut caps: Vec<&str> = Vec::new();
    for point in ours {
        if !caps.contains(&point.capped_by.as_str()) {
            caps.push(&point.capped_by);
        }
    }
    let label = "Sequences at once over the length of each, for cacheplan and each engine; the table has the numbers";
    let chart = Chart::of_sequences(lines, label, plan.limits.max_seq_len);
    let caps = caps.into_iter().map(|cap| {
        let fill = colour_of(cap).unwrap_or_else(|| colours::LINES[0].1.to_owned());
        (vec![fill], format!("ours is capped by {cap}"))
    });
    Element::new("div").child(chart.draw(width)).child(legend(caps))
}

/// What a logarithmic axis can show.
fn held(points: impl Iterator<Item = (u64, u64)>) -> Vec<(f64, f64)> {
    points.filter(|point| point.1 > 0).map(|(context, sequences)| (context as f64, sequences as f64)).collect()
}

/// The same as a table.
pub(crate) fn numbers(curves: &Curves) -> Element {
    let mut head = vec!["tokens", "cacheplan", "capped by"];
    head.extend(curves.engines.iter().map(|engine| engine.engine.as_str()));
    let rows = curves.ours.iter().map(|point| {
        let mut row = vec![separated(point.context), separated(point.sequences), point.capped_by.clone()];
        row.extend(curves.engines.iter().map(|engine| {
            let there = engine.points.iter().find(|other| other.context == point.context);
            there.map_or_else(|| "-".to_owned(), |there| separated(there.sequences))
        }));
        row
    });
    let numbers: Vec<usize> = (0..head.len()).filter(|column| *column != 2).collect();
    table("Sequences at once by the length of each", &head, &numbers, &rows.collect::<Vec<_>>())
}

/// Each engine beside ours with the plan's own budget.
pub(crate) fn engines(curves: &Curves) -> Element {
    let rows = curves.engines.iter().map(|engine| match &engine.row {
        Some(row) => vec![
            format!("{} {}", row.engine, row.version),
            separated(row.sequences),
            separated(row.engine_sequences),
            size(row.wasted_bytes.into()),
            size(row.engine_wasted_bytes.into()),
            row.why.join("; "),
        ],
        None => {
            let dash = || "-".to_owned();
            vec![engine.engine.clone(), dash(), dash(), dash(), dash(), engine.error.clone().unwrap_or_default()]
        }
    });
    let head = ["engine", "ours", "engine's", "our waste", "its waste", "why"];
    let caption = "With this budget and the dtypes that each engine chooses, for the same bytes";
    table(caption, &head, &[1, 2, 3, 4], &rows.collect::<Vec<_>>())
}
