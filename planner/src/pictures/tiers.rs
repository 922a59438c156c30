//! Hit rates over the size of what lies below the device.

use super::chart::{Chart, Line};
use super::element::{Element, table};
use super::letters::Label;
use super::rates::Drawn;
use crate::size::ByteSize;

const WIDTH: f64 = 908.0;
const MARGIN: f64 = 24.0;
const TOP: f64 = 56.0;

/// What a picture of tiers shows.
#[derive(Clone, Debug)]
pub struct TierCurve {
    /// The model, device and trace.
    pub title: String,
    /// Bytes below the device with the hit rate, and what of them each tier has.
    pub points: Vec<(u64, f64, String)>,
    /// The hit rate of the device alone.
    pub alone: f64,
    /// The hit rate with room for everything.
    pub ceiling: f64,
    /// Bytes below the device that were chosen.
    pub chosen: Option<u64>,
}

impl TierCurve {
    /// Draws it for a page of such a width, with the table of its numbers.
    #[must_use]
    pub fn drawn(&self, width: f64) -> Drawn {
        let percent = |rate: f64| format!("{:.1} %", 100.0 * rate);
        let row = |(bytes, rate, tiers): &(u64, f64, String)| match bytes {
            0 => vec!["the device alone".to_owned(), percent(*rate)],
            _ => vec![tiers.clone(), percent(*rate)],
        };
        let ceiling = vec!["room for everything".to_owned(), percent(self.ceiling)];
        let rows: Vec<Vec<String>> = self.points.iter().map(row).chain([ceiling]).collect();
        let numbers = table("Hit rate by tiers of a rank", &["tiers", "hit rate"], &[1], &rows);
        Drawn { picture: self.chart(width), numbers }
    }

    /// Draws it as a file of SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let sheet = Element::file(WIDTH, TOP + 340.0);
        let title = Label { size: 16.0, ..Label::BOLD }.draw((MARGIN, 32.0), WIDTH - 2.0 * MARGIN, &self.title);
        let chart = self.chart(WIDTH - 2.0 * MARGIN).at("x", MARGIN).at("y", TOP);
        format!("{}\n", sheet.child(title).child(chart))
    }

    fn chart(&self, width: f64) -> Element {
        let below = || self.points.iter().filter(|point| point.0 > 0);
        let flat = |rate: f64| below().map(|point| (point.0 as f64, rate)).collect();
        let line = |name: &str, points, style| Line { name: name.into(), points, notes: Vec::new(), style };
        let notes = below().map(|point| (point.2.clone(), None)).collect();
        let curve = below().map(|point| (point.0 as f64, point.1)).collect();
        let chart = Chart {
            lines: vec![
                line("room for everything", flat(self.ceiling), 2),
                line("device alone", flat(self.alone), 1),
                Line { notes, ..line("with tiers", curve, 0) },
            ],
            label: "Share of prompt tokens that are not computed again, over the bytes of host memory and disk",
            x_name: "host memory and disk of a rank",
            y_name: "hit tokens over prompt tokens",
            x: |bytes| ByteSize(bytes as u64).to_string(),
            y: |rate| format!("{:.1} %", 100.0 * rate),
            log_y: false,
            mark: self.chosen.map(|bytes| bytes as f64),
        };
        chart.draw(width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_is_drawn_with_what_was_chosen_and_a_name_makes_no_markup() {
        let points = vec![(0, 0.2, String::new()), (1 << 30, 0.3, "host".into()), (8 << 30, 0.5, "host".into())];
        let curve = TierCurve { title: "<b>".into(), points, alone: 0.2, ceiling: 0.6, chosen: Some(8 << 30) };
        let svg = curve.svg();
        assert!(
            svg.contains("with tiers: 50.0 % at 8.00 GiB, host") && svg.contains("stroke-dasharray=\"3 3\""),
            "{svg}"
        );
        assert!(svg.contains("&lt;b>") || svg.contains("&lt;b&gt;"), "{svg}");
    }
}
