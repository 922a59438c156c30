//! The prefix cache over a workload: hit rate over the number of checkpoints, for each policy.

use serde::Serialize;

use super::chart::{Chart, Line};
use super::element::{Element, table};
use crate::plan::CachePlan;
use crate::size::separated;

/// A picture and the table of its numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Drawn {
    pub(super) picture: Element,
    pub(super) numbers: Element,
}

impl CachePlan {
    /// Draws each policy's hit rates by the number of checkpoints, of which the plan's own is marked.
    pub fn rates(&self, rates: &[(String, Vec<(u64, f64)>)], width: f64) -> Drawn {
        let percent = |rate: f64| format!("{:.1} %", 100.0 * rate);
        let lines = rates.iter().enumerate().map(|(style, (policy, points))| Line {
            name: policy.clone(),
            points: points.iter().map(|&(checkpoints, rate)| (checkpoints as f64, rate)).collect(),
            notes: Vec::new(),
            style,
        });
        let chart = Chart {
            lines: lines.collect(),
            label: "Share of prompt tokens that are not computed again, over the number of checkpoints; the table has the numbers",
            x_name: "checkpoints of states",
            y_name: "hit tokens over prompt tokens",
            x: |value| separated(value as u64),
            y: percent,
            log_y: false,
            mark: Some(self.checkpoints() as f64),
        };
        let sizes = rates.first().map(|(_, points)| points.as_slice()).unwrap_or_default();
        let rows = sizes.iter().enumerate().map(|(at, &(checkpoints, _))| {
            let of = |(_, points): &(String, Vec<(u64, f64)>)| {
                points.get(at).map_or_else(String::new, |point| percent(point.1))
            };
            [separated(checkpoints)].into_iter().chain(rates.iter().map(of)).collect()
        });
        let head: Vec<&str> =
            ["checkpoints"].into_iter().chain(rates.iter().map(|(policy, _)| policy.as_str())).collect();
        let columns: Vec<usize> = (0..head.len()).collect();
        Drawn {
            picture: chart.draw(width),
            numbers: table("Hit rate by checkpoints", &head, &columns, &rows.collect::<Vec<_>>()),
        }
    }
}
