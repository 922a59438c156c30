//! Lines over a logarithmic axis, with names that never overlap.

use super::colours;
use super::element::Element;
use super::letters::{Label, width as wide};
use crate::size::separated;

pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    /// What is said of each point besides its numbers, and its colour where that changes; as many as points, or none.
    pub(crate) notes: Vec<(String, Option<String>)>,
    /// Which of the lines of a chart it looks like.
    pub(crate) style: usize,
}

pub(crate) struct Chart<'a> {
    pub(crate) lines: Vec<Line>,
    pub(crate) label: &'a str,
    pub(crate) x_name: &'a str,
    pub(crate) y_name: &'a str,
    pub(crate) x: fn(f64) -> String,
    pub(crate) y: fn(f64) -> String,
    /// Whether `y` is logarithmic too.
    pub(crate) log_y: bool,
    /// A value of `x` to mark.
    pub(crate) mark: Option<f64>,
}

const LEFT: f64 = 64.0;
/// What shows a line beside its name.
const SAMPLE: f64 = 26.0;
const MARGIN: f64 = 12.0;
/// A picture that is no wider than this has its names below.
const NARROW: f64 = 560.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 44.0;
const ROW: f64 = 15.0;
/// The height of what lines are drawn in, where their names need no more.
const PLOT: f64 = 252.0;
/// Between the names of values.
const GAP: f64 = 8.0;

impl<'a> Chart<'a> {
    /// Sequences that are held at once over the tokens of each, of which so many are marked.
    pub(crate) fn of_sequences(lines: Vec<Line>, label: &'a str, marked: u64) -> Self {
        Self {
            lines,
            label,
            x_name: "tokens of each sequence",
            y_name: "sequences at once, each as long as the axis says",
            x: super::tokens,
            y: |value| separated(value as u64),
            log_y: true,
            mark: Some(marked as f64),
        }
    }

    pub(crate) fn draw(&self, whole: f64) -> Element {
        // Names are beside the lines' ends, or below where the picture is narrow.
        let beside = whole > NARROW;
        let longest = self.lines.iter().map(|line| wide(&line.name, 12.0, false)).fold(0.0, f64::max).min(180.0);
        let width = whole - LEFT - if beside { SAMPLE + longest + 2.0 * MARGIN } else { MARGIN };
        let height = if beside { PLOT.max(ROW * self.lines.len() as f64) } else { PLOT };
        let all = height + TOP + BOTTOM + if beside { 0.0 } else { (ROW + 2.0) * self.lines.len() as f64 };
        let picture = Element::new("svg").with("class", "picture chart").with("viewBox", format!("0 0 {whole} {all}"));
        let picture = picture.with("width", whole).with("height", all).with("role", "img");
        let picture = picture.with("aria-label", self.label).with("font-family", super::FONT);
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let mut xs: Vec<f64> = points().map(|point| point.0).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let most = points().map(|point| point.1).fold(1e-9, f64::max);
        let (first, last) = (xs.first().copied().unwrap_or(1.0), xs.last().copied().unwrap_or(1.0));
        let log = |value: f64| value.max(1.0).ln();
        let x = |value: f64| {
            let share = if last > first { (log(value) - log(first)) / (log(last) - log(first)) } else { 0.0 };
            LEFT + share * width
        };
        let y = |value: f64| {
            let share = if self.log_y { log(value) / log(most).max(1e-9) } else { value / most };
            TOP + height * (1.0 - share.clamp(0.0, 1.0))
        };
        let picture = self.axes(picture, &xs, most, (width, height), &x, &y);
        let marked = self.mark.filter(|mark| (first..=last).contains(mark));
        let picture = picture.children(marked.map(|mark| {
            let line = format!("M{:.1} {TOP}V{:.1}", x(mark), TOP + height);
            rule(line, "ink-line", colours::INK).with("stroke-dasharray", "3 3")
        }));
        let ends: Vec<f64> = self.lines.iter().map(|line| y(line.points.last().map_or(0.0, |point| point.1))).collect();
        let places = match beside {
            true => apart(&ends, ROW, TOP + 6.0, TOP + height + 4.0),
            false => {
                (1..=ends.len()).map(|row| TOP + height + BOTTOM - 4.0 + (ROW + 2.0) * (row as f64 - 0.5)).collect()
            }
        };
        let (left, room) = match beside {
            true => (LEFT + width + MARGIN, longest),
            false => (MARGIN, whole - 2.0 * MARGIN - SAMPLE),
        };
        let lines = self.lines.iter().zip(places).flat_map(|(line, place)| {
            let sample = line.stroke(format!("M{left:.1} {place:.1}h20"), None);
            let name = Label::PLAIN.draw((left + SAMPLE, place + 4.0), room, &line.name);
            self.line(line, &x, &y).into_iter().chain([sample, name])
        });
        picture.children(lines)
    }

    fn axes(
        &self,
        picture: Element,
        xs: &[f64],
        most: f64,
        (width, height): (f64, f64),
        x: &impl Fn(f64) -> f64,
        y: &impl Fn(f64) -> f64,
    ) -> Element {
        let ticks: Vec<f64> = match self.log_y {
            true => (0..20).map(|power| 10f64.powi(power)).take_while(|tick| *tick <= most).collect(),
            false => [0.0, 0.25, 0.5, 0.75, 1.0].map(|share| share * most).to_vec(),
        };
        let across = ticks.iter().flat_map(|tick| {
            let line = rule(format!("M{LEFT} {:.1}h{width:.1}", y(*tick)), "grid", colours::GRID);
            [line, Label::END.draw((LEFT - 6.0, y(*tick) + 4.0), LEFT - 8.0, &(self.y)(*tick))]
        });
        // As many names as there is room for, the last of them as it comes.
        let widest = xs.iter().map(|value| wide(&(self.x)(*value), 12.0, false)).fold(0.0, f64::max) + GAP;
        let every = ((xs.len() as f64 * widest / width).ceil() as usize).max(1);
        let bottom = TOP + height;
        let mut free = f64::NEG_INFINITY;
        let named = xs.iter().step_by(every).filter_map(|value| {
            let at = x(*value);
            let fits = at - widest / 2.0 >= free;
            fits.then(|| {
                free = at + widest / 2.0;
                Label::MIDDLE.draw((at, bottom + 16.0), widest, &(self.x)(*value))
            })
        });
        let named: Vec<Element> = named.collect();
        picture.children(across).children(named).children([
            Label::MIDDLE.draw((LEFT + width / 2.0, bottom + 36.0), width, self.x_name),
            Label::PLAIN.draw((4.0, TOP - 12.0), LEFT + width, self.y_name),
        ])
    }

    fn line(&self, line: &Line, x: &impl Fn(f64) -> f64, y: &impl Fn(f64) -> f64) -> Vec<Element> {
        let next = line.points.iter().skip(1).map(Some).chain([None]);
        let drawn = line.points.iter().zip(next).enumerate().flat_map(|(at, (point, next))| {
            let (note, colour) =
                line.notes.get(at).map(|(note, colour)| (note.as_str(), colour.as_deref())).unwrap_or_default();
            let said = format!("{}: {} at {}", line.name, (self.y)(point.1), (self.x)(point.0));
            let said = if note.is_empty() { said } else { format!("{said}, {note}") };
            let segment = next.map(|next| {
                let way = format!("M{:.1} {:.1}L{:.1} {:.1}", x(point.0), y(point.1), x(next.0), y(next.1));
                line.stroke(way, colour)
            });
            let (class, fill, _) = colours::LINES[line.style % colours::LINES.len()];
            let dot = Element::new("circle").at("cx", x(point.0)).at("cy", y(point.1)).with("r", 3.5);
            let dot = match colour {
                Some(colour) => dot.with("fill", colour),
                None => dot.with("class", format!("dot {class}")).with("fill", fill),
            };
            segment.into_iter().chain([dot.child(Element::title([said]))])
        });
        drawn.collect()
    }
}

impl Line {
    fn stroke(&self, way: String, colour: Option<&str>) -> Element {
        let (class, stroke, dash) = colours::LINES[self.style % colours::LINES.len()];
        let line = match colour {
            Some(colour) => Element::new("path").with("d", way).with("stroke", colour),
            None => rule(way, class, stroke),
        };
        let line = line.with("stroke-width", 2.5);
        if dash.is_empty() { line } else { line.with("stroke-dasharray", dash) }
    }
}

fn rule(way: String, class: &str, stroke: &str) -> Element {
    Element::new("path").with("class", class).with("d", way).with("stroke", stroke)
}

/// Places for names beside their lines' ends, moved apart, top to bottom in the order of those ends.
fn apart(ends: &[f64], row: f64, least: f64, most: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ends.len()).collect();
    order.sort_by(|left, right| ends[*left].total_cmp(&ends[*right]));
    let mut places = ends.to_vec();
    let mut free = least;
    for &at in &order {
        places[at] = ends[at].max(free);
        free = places[at] + row;
    }
    // Those pushed out at the bottom push back.
    let mut bound = most;
    for &at in order.iter().rev() {
        places[at] = places[at].min(bound);
        bound = places[at] - row;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(&[50.0, 50.0, 50.0])]
    #[case(&[10.0, 300.0, 299.0, 298.0, 301.0])]
    #[case(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])]
    fn names_of_lines_stay_apart_and_inside(#[case] ends: &[f64]) {
        let mut places = apart(ends, 15.0, 20.0, 300.0);
        places.sort_by(f64::total_cmp);
        assert!(places.windows(2).all(|two| two[1] - two[0] >= 15.0 - 1e-9), "{places:?}");
        assert!(places.iter().all(|place| (20.0 - 1e-9..=300.0).contains(place)), "{places:?}");
    }
}
