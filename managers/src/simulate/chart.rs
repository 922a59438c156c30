//! Hit rate over the course of a trace, as an SVG.

use std::fmt::Write;

use cacheplan_files::Shown;

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
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
            Shown::markup(title)
        );
        for tenth in (0..=10).step_by(2) {
            let (rate, at) = (f64::from(tenth) / 10.0, y(f64::from(tenth) / 10.0));
            line(&mut svg, (LEFT, at), (x(requests), at), "#ddd");
            text(&mut svg, (LEFT - 8.0, at + 4.0), "end", &format!("{rate:.1}"));
        }
        for quarter in 0..=4 {
            let n = (requests * f64::from(quarter) / 4.0).round();
            text(&mut svg, (x(n), HEIGHT - BOTTOM + 18.0), "middle", &n.to_string());
        }
        text(&mut svg, (x(requests / 2.0), HEIGHT - 8.0), "middle", "requests");
        text(&mut svg, (14.0, TOP - 10.0), "start", "hit rate");
        for (i, report) in reports.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let points: Vec<String> =
                report.course.iter().map(|p| format!("{:.1},{:.1}", x(p.requests as f64), y(p.hit_rate))).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                points.join(" ")
            );
            let at = TOP + 18.0 * i as f64;
            line(&mut svg, (WIDTH - RIGHT + 10.0, at), (WIDTH - RIGHT + 30.0, at), colour);
            let cap = report.scenario.checkpoints.map_or_else(|| "∞".to_owned(), |cap| cap.to_string());
            let label = format!("{} · {cap} · {:.3}", report.policy().name(), report.hit_rate);
            text(&mut svg, (WIDTH - RIGHT + 36.0, at + 4.0), "start", &label);
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
        at.0,
        at.1,
        Shown::markup(text)
    );
}
