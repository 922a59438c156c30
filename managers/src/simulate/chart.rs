//! Hit rate over the course of a trace, as an SVG.

use cacheplan_planner::pictures::Element;

use super::report::Report;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 44.0;
const COLOURS: [&str; 8] = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#9c755f", "#edc948"];

impl Report {
    /// Draws the hit rate over the course of a trace as an SVG, one line per report.
    #[must_use]
    pub fn chart(title: &str, reports: &[Self]) -> String {
        let requests = reports.iter().filter_map(|r| r.course.last()).map(|p| p.requests).max().unwrap_or(1) as f64;
        let x = |n: f64| LEFT + n / requests * (WIDTH - LEFT - RIGHT);
        let y = |rate: f64| HEIGHT - BOTTOM - rate * (HEIGHT - TOP - BOTTOM);
        let rates = (0..=10).step_by(2).flat_map(|tenth| {
            let rate = f64::from(tenth) / 10.0;
            let grid = line("#ddd", [(LEFT, y(rate)), (x(requests), y(rate))]);
            [grid, text((LEFT - 8.0, y(rate) + 4.0), "end", &format!("{rate:.1}"))]
        });
        let quarters = (0..=4).map(|quarter| {
            let n = (requests * f64::from(quarter) / 4.0).round();
            text((x(n), HEIGHT - BOTTOM + 18.0), "middle", &n.to_string())
        });
        let names = [
            text((LEFT, 22.0), "start", title).with("font-size", 15),
            text((x(requests / 2.0), HEIGHT - 8.0), "middle", "requests"),
            text((14.0, TOP - 10.0), "start", "hit rate"),
        ];
        let courses = reports.iter().zip(COLOURS.iter().cycle()).enumerate().flat_map(|(i, (report, colour))| {
            let at = TOP + 18.0 * i as f64;
            let cap = report.scenario.checkpoints.map_or_else(|| "∞".to_owned(), |cap| cap.to_string());
            let label = format!("{} · {cap} · {:.3}", report.policy().name(), report.hit_rate);
            [
                line(colour, report.course.iter().map(|p| (x(p.requests as f64), y(p.hit_rate)))),
                line(colour, [(WIDTH - RIGHT + 10.0, at), (WIDTH - RIGHT + 30.0, at)]),
                text((WIDTH - RIGHT + 36.0, at + 4.0), "start", &label),
            ]
        });
        let svg = Element::file(WIDTH, HEIGHT).with("font-size", 12).children(rates).children(quarters);
        format!("{}\n", svg.children(names).children(courses))
    }
}

fn line(colour: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Element {
    let points: Vec<String> = points.into_iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let line = Element::new("polyline").with("points", points.join(" ")).with("fill", "none");
    line.with("stroke", colour).with("stroke-width", 2)
}

fn text((x, y): (f64, f64), anchor: &str, text: &str) -> Element {
    Element::new("text").at("x", x).at("y", y).with("text-anchor", anchor).text(text)
}
