//! A run's report as Markdown.

use std::fmt::Write as _;

use cacheplan_files::Shown;
use cacheplan_planner::ByteSize;

use crate::report::{Reuse, RunReport};
use crate::speed::Quantiles;

impl RunReport {
    /// The report for people: what was planned beside what was there, how fast it went, how full the pools were.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = String::from("# Run\n\n");
        let prompt: usize = self.requests.iter().map(|request| request.prompt_tokens).sum();
        let speed = &self.speed;
        let mut row = |name: &str, value: String| {
            let _ = writeln!(text, "| {name} | {value} |");
        };
        row("", String::new());
        row("---", "---".to_owned());
        row("requests", self.requests.len().to_string());
        row("prompt tokens", prompt.to_string());
        row("generated tokens", speed.generated_tokens.to_string());
        row("steps", speed.steps.to_string());
        row("seconds", format!("{:.3}", speed.seconds));
        row("generated tokens per second", format!("{:.1}", speed.tokens_per_second));
        row("time to first token", times(speed.time_to_first_token));
        row("time per token", times(speed.time_per_token));
        row(
            "prompt tokens that were cached",
            match &self.reuse {
                Some(reuse) => format!("{} ({:.1} %)", reuse.hit_tokens, 100.0 * reuse.hit_rate),
                None => format!("none: {}", self.no_reuse.as_deref().map_or_else(String::new, cell)),
            },
        );
        if let Some(Reuse { returned_tokens: found @ 1.., .. }) = self.reuse {
            row("tokens found again after preemptions", found.to_string());
        }
        row(
            "preemptions",
            match speed.preemptions {
                0 => "0".to_owned(),
                all => {
                    let offloads = speed.offloads;
                    format!("{all}: {} computed again, {offloads} copied to host memory", all.saturating_sub(offloads))
                }
            },
        );
        if speed.drafted_tokens > 0 {
            let share = 100.0 * speed.accepted_tokens as f64 / speed.drafted_tokens as f64;
            row(
                "drafted tokens",
                format!("{}, {} of them accepted ({share:.1} %)", speed.drafted_tokens, speed.accepted_tokens),
            );
            let each = speed.tokens_per_verification.unwrap_or(1.0);
            row("tokens per verifying step and sequence", format!("{each:.2}"));
        }
        if let Some(peak) = self.report.peak_bytes {
            row("peak while generating", bytes(peak));
        }
        text += "\n## Planned beside actual\n\n| pool | planned | actual | same |\n| --- | ---: | ---: | --- |\n";
        for pool in &self.report.pools {
            let (actual, same) = match pool.actual_bytes {
                Some(actual) => (bytes(actual), if actual == pool.planned_bytes { "yes" } else { "**no**" }),
                None => ("not counted".to_owned(), "?"),
            };
            let _ = writeln!(text, "| {} | {} | {actual} | {same} |", cell(&pool.id), bytes(pool.planned_bytes));
        }
        text += "\n## Pools\n\n| pool | units | at most in use | refused |\n| --- | ---: | ---: | ---: |\n";
        for pool in &self.stats.pools {
            let (id, high) = (cell(&pool.id), pool.high_water);
            let _ = writeln!(text, "| {id} | {} | {high} | {} |", pool.capacity, pool.refused);
        }
        text
    }
}

fn times(quantiles: Option<Quantiles>) -> String {
    let milliseconds = |seconds: f64| format!("{:.1}", 1000.0 * seconds);
    quantiles.map_or_else(
        || "none".to_owned(),
        |Quantiles { p50, p99, max }| {
            format!("p50 {} ms, p99 {} ms, at most {} ms", milliseconds(p50), milliseconds(p99), milliseconds(max))
        },
    )
}

fn bytes(bytes: u64) -> String {
    format!("{bytes} ({})", ByteSize(bytes))
}

/// Text that stays in its cell.
fn cell(text: &str) -> String {
    Shown(text).to_string().replace('|', "\\|")
}
