//! What fits, as a picture: sequences over their length for the best layout of each device, and a map of devices by layout.

use std::fmt::Write;

use cacheplan_files::Shown;

use crate::fit::{Answer, Fit};

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 24.0;
const LEFT: f64 = 150.0;
const CURVES_TOP: f64 = 72.0;
const CURVES_HEIGHT: f64 = 300.0;
const LEGEND: f64 = 230.0;
const MAP_TOP: f64 = CURVES_TOP + CURVES_HEIGHT + 150.0;
const ROW: f64 = 30.0;

/// Lines that stay apart for colour-blind readers (after Okabe and Ito).
const COLOURS: [&str; 8] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#000000", "#b0a000"];

impl Answer {
    /// A picture, 1000 pixels wide: a curve of capacity over context for each device, and a map of devices by layout, whose
    /// cells say how many sequences a layout holds with the model's own dtype of keys and values.
    pub fn svg(&self) -> String {
        let map = Map::of(self);
        let height = MAP_TOP + ROW * map.devices.len() as f64 + MARGIN;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        text(&mut svg, MARGIN, 30.0, "start", &format!("{} sequences of {} tokens", self.sequences, self.context));
        text(&mut svg, MARGIN, 48.0, "start", "sequences at once, by the length of each; every number is assumed");
        self.curves(&mut svg);
        map.draw(&mut svg, self.sequences);
        svg.push_str("</svg>\n");
        svg
    }

    /// Both axes are logarithmic: capacity falls with length over orders of magnitude.
    fn curves(&self, svg: &mut String) {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let (Some(longest), Some(most)) =
            (points().map(|point| point.0).max(), points().map(|point| point.1).max().filter(|most| *most > 0))
        else {
            return text(svg, LEFT, CURVES_TOP + 20.0, "start", "no layout that was tried holds the weights");
        };
        let shortest = points().map(|point| point.0).min().unwrap_or(longest);
        let share = |value: u64, least: u64, most: u64| {
            let log = |value: u64| (value.max(1) as f64).ln();
            if most <= least { 0.0 } else { (log(value) - log(least)) / (log(most) - log(least)) }
        };
        let width = WIDTH - LEFT - LEGEND - MARGIN;
        let x = |context: u64| LEFT + width * share(context, shortest, longest);
        let y = |sequences: u64| CURVES_TOP + CURVES_HEIGHT * (1.0 - share(sequences, 1, most));
        let bottom = CURVES_TOP + CURVES_HEIGHT;
        for sequences in (0..).map_while(|power| 10u64.checked_pow(power)).take_while(|count| *count <= most) {
            rule(svg, LEFT, y(sequences), LEFT + width, y(sequences), "#dddddd");
            text(svg, LEFT - 8.0, y(sequences) + 4.0, "end", &sequences.to_string());
        }
        let mut contexts: Vec<u64> = points().map(|point| point.0).collect();
        contexts.sort_unstable();
        contexts.dedup();
        for context in contexts {
            text(svg, x(context), bottom + 18.0, "middle", &short(context));
        }
        rule(svg, LEFT, y(self.sequences.clamp(1, most)), LEFT + width, y(self.sequences.clamp(1, most)), "#999999");
        rule(
            svg,
            x(self.context.clamp(shortest, longest)),
            CURVES_TOP,
            x(self.context.clamp(shortest, longest)),
            bottom,
            "#999999",
        );
        for ((at, curve), colour) in self.curves.iter().enumerate().zip(COLOURS.iter().cycle()) {
            let held = curve.points.iter().filter(|point| point.1 > 0);
            let line: Vec<String> = held.map(|&(at, count)| format!("{:.1},{:.1}", x(at), y(count))).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                line.join(" ")
            );
            let top = CURVES_TOP + 12.0 + 20.0 * at as f64;
            let left = WIDTH - LEGEND - MARGIN + 20.0;
            rule(svg, left, top - 4.0, left + 20.0, top - 4.0, colour);
            text(svg, left + 26.0, top, "start", &curve.name);
        }
    }
}

/// Devices by layout.
struct Map<'a> {
    devices: Vec<&'a str>,
    layouts: Vec<String>,
    fits: Vec<&'a Fit>,
}

impl<'a> Map<'a> {
    fn of(answer: &'a Answer) -> Self {
        let fits: Vec<&Fit> = answer.fits.iter().filter(|fit| fit.is_plain()).collect();
        let mut devices: Vec<&str> = fits.iter().map(|fit| fit.device.as_str()).collect();
        devices.sort_unstable();
        devices.dedup();
        let mut layouts: Vec<(u64, String)> = fits.iter().map(|fit| (fit.devices, layout(fit))).collect();
        layouts.sort();
        layouts.dedup();
        Self { devices, layouts: layouts.into_iter().map(|(_, layout)| layout).collect(), fits }
    }

    fn draw(&self, svg: &mut String, asked: u64) {
        let width = (WIDTH - LEFT - MARGIN) / self.layouts.len().max(1) as f64;
        for (column, layout) in self.layouts.iter().enumerate() {
            let left = LEFT + width * (column as f64 + 0.5);
            let top = MAP_TOP - 8.0;
            let _ = writeln!(
                svg,
                "<text x=\"{left:.1}\" y=\"{top:.1}\" transform=\"rotate(-60 {left:.1} {top:.1})\">{}</text>",
                Shown(layout)
            );
        }
        for (row, device) in self.devices.iter().enumerate() {
            let top = MAP_TOP + ROW * row as f64;
            text(svg, LEFT - 8.0, top + 20.0, "end", device);
            for (column, of_column) in self.layouts.iter().enumerate() {
                let found = self.fits.iter().find(|fit| fit.device == *device && layout(fit) == *of_column);
                let Some(fit) = found else { continue };
                let left = LEFT + width * column as f64;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                    width - 1.0,
                    ROW - 1.0,
                    heat(fit.sequences, asked)
                );
                text(svg, left + width / 2.0, top + 19.0, "middle", &short(fit.sequences));
            }
        }
    }
}

/// White for none, orange towards what was asked for, blue from there on, light enough for black text.
const fn heat(sequences: u64, asked: u64) -> &'static str {
    match sequences {
        0 => "#f4f4f4",
        some if some < asked / 4 => "#fbe5c0",
        some if some < asked => "#f5c77a",
        some if some < asked.saturating_mul(4) => "#b5dcf3",
        _ => "#7cc3ea",
    }
}

fn layout(fit: &Fit) -> String {
    let sizes = fit.parallel.sizes().into_iter().filter(|(_, size)| *size > 1);
    let named: Vec<String> = sizes.map(|(name, size)| format!("{name}{size}")).collect();
    if named.is_empty() { "alone".into() } else { named.join(" ") }
}

/// `32k` for 32,768, and what is no such power as it is, with at most four digits.
fn short(count: u64) -> String {
    match count {
        0..10_000 if !(count >= 1024 && count.is_power_of_two()) => count.to_string(),
        _ if count >> 20 > 0 => format!("{}m", count >> 20),
        _ => format!("{}k", count >> 10),
    }
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, what: &str) {
    let what = Shown(what).to_string().replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>");
}

fn rule(svg: &mut String, x1: f64, y1: f64, x2: f64, y2: f64, colour: &str) {
    let _ = writeln!(svg, "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"{colour}\" stroke-width=\"2\"/>");
}
