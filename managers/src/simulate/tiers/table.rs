//! The answer for people.

use std::fmt::Write as _;

use cacheplan_planner::engines::TierFlags;
use cacheplan_planner::{ByteSize, StoredStates};

use super::answer::{TierPoint, TiersAnswer};
use super::asked::TiersTold;

impl TiersTold {
    /// The answer for people, at most 80 columns wide.
    #[must_use]
    pub fn table(&self) -> String {
        let answer = &self.answer;
        let mut out = String::new();
        let mut line = |text: String| out.push_str(&(text.trim_end().to_owned() + "\n"));
        let million = answer.prompt_tokens as f64 / 1e6;
        line(format!("TRACE     {}: {} requests, {million:.1} million prompt tokens", self.trace, answer.requests));
        if answer.left_out > 0 {
            let longer = format!("longer than max_seq_len {}", self.max_seq_len);
            line(format!("          {} more are left out, {longer}", answer.left_out));
        }
        let [keys, windows, state] = answer.unit_bytes;
        let mut units = format!("{} of keys for {} tokens", ByteSize(keys as u64), answer.page);
        if windows > 0 {
            let _ = write!(units, ", {} of windows", ByteSize(windows as u64));
        }
        if state > 0 {
            let _ = write!(units, ", {} a state", ByteSize(state as u64));
        }
        let stored = answer.point().stored;
        line(format!("CACHES    {units}"));
        if stored != StoredStates::Own {
            let bytes = ByteSize(answer.stored_state_bytes as u64);
            line(format!("          a state below the device is stored in {stored}: {bytes}; no engine does that"));
        }
        let rate = |rate: f64| format!("{:.1} GB/s", rate / 1e9);
        let links = answer.links;
        line(format!("LINKS     host {} ({}), disk {}", rate(links.host), self.sources.host_rate, rate(links.disk)));
        line(format!("          ({}); at most, and nothing overlaps", self.sources.disk_rate));
        if let Some(source) = self.sources.computing {
            line(format!("          a load counts where it beats computing ({source})"));
        }
        let plural = if answer.running == 1 { "" } else { "s" };
        line(format!(
            "RUNS      {} sequence{plural} at a time; the trace was replayed {} times",
            answer.running, answer.replays
        ));
        line(String::new());
        line("host         disk         states of       hit     from    from    from".to_owned());
        line("                          device  below   rate    device  host    disk".to_owned());
        line(row(&answer.planned, answer) + "  plan");
        for (at, point) in answer.curve.iter().enumerate() {
            if at > 0 || point != &answer.planned {
                line(row(point, answer));
            }
        }
        line(format!("{:42}{:6.4}", "room for everything", answer.ceiling));
        line(String::new());
        let point = answer.point();
        let what = match (answer.target, &answer.chosen) {
            (Some(target), Some(_)) => format!("the smallest tried that reach {target}"),
            (Some(target), None) => format!("the largest, which do not reach {target}"),
            (None, Some(_)) => "more brings less than a hundredth".to_owned(),
            (None, None) => "the largest".to_owned(),
        };
        line(format!("TIERS     {what}:"));
        for (tier, kinds) in [("device", point.sizes.device), ("host", point.sizes.host), ("disk", point.sizes.disk)] {
            if kinds.bytes() == 0 {
                continue;
            }
            let windows = if windows > 0 { format!(", windows {}", ByteSize(kinds.windows)) } else { String::new() };
            let states = if state > 0 { format!(", states {}", ByteSize(kinds.states)) } else { String::new() };
            let all = ByteSize(kinds.bytes()).to_string();
            line(format!("          {tier:6} {all:>11}: keys {}{windows}{states}", ByteSize(kinds.keys)));
        }
        let moved = &point.moved;
        if point.host() + point.disk() > 0 {
            let (loaded, written) = (ByteSize(moved.host_bytes), ByteSize(moved.written_bytes));
            line(format!(
                "          loaded {loaded}, of it {} from disk; written {written}",
                ByteSize(moved.disk_bytes)
            ));
            line(format!("          {} requests loaded, {} computed instead", moved.loads, moved.declined));
            if answer.bounded {
                line(format!("          saved at least by the bound: {:.0} s of computing", moved.seconds_saved));
            }
        }
        if let Some(price) = answer.price {
            line(format!("          price {price:.2}"));
        }
        line(String::new());
        line("A FURTHER GiB       of the hit rate".to_owned());
        for gain in &answer.gains {
            let over = format!("(over {})", ByteSize(gain.added));
            line(format!("  {:16}  {:+.5} {over}", gain.place, gain.per_gib));
        }
        if answer.distances.len() > 1 {
            line(String::new());
            let said = answer.distances.iter().map(|point| format!("{} {:.4}", point.distance, point.hit_rate));
            let said: Vec<String> = said.collect();
            line("A STATE EVERY … TOKENS of a prompt".to_owned());
            for some in said.chunks(5) {
                line(format!("  {}", some.join(" · ")));
            }
        }
        if !answer.storages.is_empty() {
            line(String::new());
            let said = answer.storages.iter().map(|point| format!("{} {:.4}", point.stored, point.hit_rate));
            line("THE SAME TIERS, STATES BELOW STORED IN".to_owned());
            line(format!("  {}", said.collect::<Vec<_>>().join(" · ")));
        }
        for TierFlags { engine, read_in, lines, notes } in &self.engines {
            line(String::new());
            line(format!("# {engine} {read_in}"));
            lines.iter().for_each(|text| line(text.clone()));
            notes.iter().for_each(|text| line(format!("# {text}")));
        }
        out
    }
}

fn row(point: &TierPoint, answer: &TiersAnswer) -> String {
    let size = |bytes: u64| if bytes == 0 { "-".to_owned() } else { ByteSize(bytes).to_string() };
    let share = |share: f64| format!("{:.1} %", 100.0 * share);
    let has_below = point.host() + point.disk() > 0;
    let below = if has_below { share(point.lower_split.states) } else { "-".to_owned() };
    let of = |tokens: u64| format!("{:.4}", tokens as f64 / answer.prompt_tokens.max(1) as f64);
    let (host, disk) = (point.moved.host_tokens, point.moved.disk_tokens);
    let device = of(point.hit_tokens.saturating_sub(host + disk));
    format!(
        "{:12} {:12} {:7} {:7} {:.4}  {device}  {}  {}",
        size(point.host()),
        size(point.disk()),
        share(point.device_split.states),
        below,
        point.hit_rate,
        of(host),
        of(disk),
    )
}
