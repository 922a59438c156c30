//! How full the pools were while requests were served, and a picture of it.

use std::fmt::Write as _;
use std::time::Duration;

use cacheplan_planner::pictures::Element;

/// The most moments that are kept; of longer runs every second, fourth, … one.
const MOMENTS: usize = 2048;

/// How full the pools were from step to step.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The pools, in the order of [`Moment::used`].
    pools: Vec<(String, u64)>,
    moments: Vec<Moment>,
    /// Every so many steps are kept.
    stride: u64,
    steps: u64,
}

/// How full the pools were after a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) at: Duration,
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    /// Units in use of each pool.
    pub(crate) used: Vec<u64>,
}

impl Timeline {
    /// Nothing yet of pools with these names and capacities.
    pub(crate) fn new(pools: Vec<(String, u64)>) -> Self {
        Self { pools, moments: Vec::new(), stride: 1, steps: 0 }
    }

    pub(crate) fn push(&mut self, moment: impl FnOnce() -> Moment) {
        if self.steps.is_multiple_of(self.stride) {
            self.moments.push(moment());
        }
        self.steps += 1;
        if self.moments.len() == MOMENTS {
            let mut keep = false;
            self.moments.retain(|_| {
                keep = !keep;
                keep
            });
            self.stride *= 2;
        }
    }

    /// A picture, 1000 pixels wide: sequences that run and wait, and below it a band for each pool, from empty to full.
    #[must_use]
    pub fn svg(&self) -> String {
        let height = TOP + (1 + self.pools.len()) as f64 * BAND + 30.0;
        let end = self.moments.last().map_or(0.0, |moment| moment.at.as_secs_f64());
        let most = self.moments.iter().map(|moment| moment.running + moment.waiting).max().unwrap_or(0) as u64;
        let count = |counted: fn(&Moment) -> usize| self.moments.iter().map(|moment| counted(moment) as u64).collect();
        let sequences =
            [(count(|moment| moment.running + moment.waiting), WAITING), (count(|moment| moment.running), RUNNING)];
        let name = format!("sequences, at most {most}, running below waiting");
        let pools = self.pools.iter().enumerate().flat_map(|(place, (id, capacity))| {
            let used: Vec<u64> = self.moments.iter().map(|moment| moment.used[place]).collect();
            let highest = used.iter().max().copied().unwrap_or(0);
            let name = format!("{id}: at most {highest} of {capacity} units");
            self.band(place + 1, &name, &[(used, USED)], *capacity)
        });
        let svg = Element::file(WIDTH, height)
            .with("font-size", 13)
            .child(text((MARGIN, 24.0), &format!("{} steps in {end:.2} s", self.steps)).with("font-size", 16))
            .children(self.band(0, &name, &sequences, most))
            .children(pools)
            .child(text((MARGIN, height - 10.0), "0 s"))
            .child(text((WIDTH - MARGIN, height - 10.0), &format!("{end:.2} s")).with("text-anchor", "end"));
        format!("{svg}\n")
    }

    /// Areas over time, from 0 to `full`, behind one another.
    fn band(&self, place: usize, name: &str, areas: &[(Vec<u64>, &str)], full: u64) -> Vec<Element> {
        let top = TOP + place as f64 * BAND;
        let (bottom, wide) = (top + BAND - 12.0, WIDTH - 2.0 * MARGIN);
        let tall = bottom - top - 18.0;
        let end = self.moments.last().map_or(0.0, |moment| moment.at.as_secs_f64()).max(f64::MIN_POSITIVE);
        let ground = Element::new("rect").at("x", MARGIN).at("y", bottom - tall).at("width", wide).at("height", tall);
        let areas = areas.iter().map(|(values, fill)| {
            let mut points = format!("{MARGIN},{bottom}");
            let mut before = bottom;
            for (moment, &value) in self.moments.iter().zip(values) {
                let x = MARGIN + wide * moment.at.as_secs_f64() / end;
                let y = bottom - tall * value as f64 / full.max(1) as f64;
                // What was used stayed so until the step was done.
                let _ = write!(points, " {x:.1},{before:.1} {x:.1},{y:.1}");
                before = y;
            }
            let _ = write!(points, " {},{bottom}", WIDTH - MARGIN);
            Element::new("polygon").with("points", points).with("fill", fill)
        });
        [text((MARGIN, top + 12.0), name), ground.with("fill", "#f4f4f4")].into_iter().chain(areas).collect()
    }
}

fn text((x, y): (f64, f64), text: &str) -> Element {
    Element::new("text").at("x", x).at("y", y).text(text)
}

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 24.0;
const TOP: f64 = 40.0;
const BAND: f64 = 90.0;

/// Fills that stay apart for colour-blind readers (after Okabe and Ito).
const RUNNING: &str = "#009e73";
const WAITING: &str = "#e69f00";
const USED: &str = "#56b4e9";

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline(steps: usize) -> Timeline {
        let pool = |id: &str| (id.to_owned(), 10);
        let mut timeline = Timeline { pools: vec![pool("kv"), pool("a<b&c>")], stride: 1, ..Timeline::default() };
        for step in 0..steps {
            let at = Duration::from_millis(step as u64);
            timeline.push(|| Moment { at, running: 2, waiting: 1, used: vec![step as u64 % 11, 3] });
        }
        timeline
    }

    #[test]
    fn a_long_run_keeps_a_bounded_number_of_moments_over_all_of_it() {
        let timeline = timeline(100_000);
        assert!((MOMENTS / 2..MOMENTS).contains(&timeline.moments.len()));
        assert_eq!(timeline.moments[0].at, Duration::ZERO);
        assert!(timeline.moments.last().unwrap().at > Duration::from_millis(99_000));
        let gaps: Vec<_> = timeline.moments.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
        assert!(gaps.iter().all(|gap| *gap == gaps[0]));
    }

    #[test]
    fn the_picture_names_every_pool_and_its_highest_use() {
        for steps in [0, 1, 50] {
            let svg = timeline(steps).svg();
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
            assert!(
                svg.contains("a&lt;b&amp;c&gt;: at most ") && !svg.contains("NaN") && !svg.contains("inf"),
                "{svg}"
            );
            assert!(svg.contains(&format!(">{steps} steps in ")));
        }
        assert!(timeline(50).svg().contains("kv: at most 10 of 10 units"));
    }
}
