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
        let parts =
            [self.question(), curve(answer), chosen(answer), gains(answer), distances(answer), storages(answer)];
        let engines = self.engines.iter().map(flags);
        let parts: Vec<String> = parts.into_iter().chain(engines).filter(|part| !part.is_empty()).collect();
        let text = parts.join("\n");
        text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    /// What was replayed, over which caches and links.
    fn question(&self) -> String {
        let answer = &self.answer;
        let mut out = String::new();
        let million = answer.prompt_tokens as f64 / 1e6;
        let _ =
            writeln!(out, "TRACE     {}: {} requests, {million:.1} million prompt tokens", self.trace, answer.requests);
        if answer.left_out > 0 {
            let longer = format!("longer than max_seq_len {}", self.max_seq_len);
            let _ = writeln!(out, "          {} more are left out, {longer}", answer.left_out);
        }
        let [keys, windows, state] = answer.unit_bytes.map(|bytes| bytes as u64);
        let _ = write!(out, "CACHES    {} of keys for {} tokens", ByteSize(keys), answer.page);
        if windows > 0 {
            let _ = write!(out, ", {} of windows", ByteSize(windows));
        }
        if state > 0 {
            let _ = write!(out, ", {} a state", ByteSize(state));
        }
        let stored = answer.point().stored;
        if stored != StoredStates::Own {
            let bytes = ByteSize(answer.stored_state_bytes as u64);
            let _ =
                write!(out, "\n          a state below the device is stored in {stored}: {bytes}; no engine does that");
        }
        let [host, disk] = [answer.links.host, answer.links.disk].map(|rate| format!("{:.1} GB/s", rate / 1e9));
        let _ = writeln!(out, "\nLINKS     host {host} ({}), disk {disk}", self.sources.host_rate);
        let _ = writeln!(out, "          ({}); at most, and nothing overlaps", self.sources.disk_rate);
        if let Some(source) = self.sources.computing {
            let _ = writeln!(out, "          a load counts where it beats computing ({source})");
        }
        let plural = if answer.running == 1 { "" } else { "s" };
        let (running, replays) = (answer.running, answer.replays);
        let _ = writeln!(out, "RUNS      {running} sequence{plural} at a time; the trace was replayed {replays} times");
        out
    }
}

/// The plan, and the sizes that were tried.
fn curve(answer: &TiersAnswer) -> String {
    let mut out = "host         disk         states of       hit     from    from    from\n".to_owned();
    out += "                          device  below   rate    device  host    disk\n";
    let _ = writeln!(out, "{}  plan", row(&answer.planned, answer));
    let others = answer.curve.iter().enumerate().filter(|(at, point)| *at > 0 || **point != answer.planned);
    others.for_each(|(_, point)| out += &(row(point, answer) + "\n"));
    let _ = writeln!(out, "{:42}{:6.4}", "room for everything", answer.ceiling);
    out
}

/// The sizes that are advised, and what they move.
fn chosen(answer: &TiersAnswer) -> String {
    let point = answer.point();
    let what = match (answer.target, &answer.chosen) {
        (Some(target), Some(_)) => format!("the smallest tried that reach {target}"),
        (Some(target), None) => format!("the largest, which do not reach {target}"),
        (None, Some(_)) => "more brings less than a hundredth".to_owned(),
        (None, None) => "the largest".to_owned(),
    };
    let mut out = format!("TIERS     {what}:\n");
    let [_, windows, state] = answer.unit_bytes;
    let of =
        |has: bool, name: &str, bytes: u64| if has { format!(", {name} {}", ByteSize(bytes)) } else { String::new() };
    for (tier, kinds) in [("device", point.sizes.device), ("host", point.sizes.host), ("disk", point.sizes.disk)] {
        if kinds.bytes() > 0 {
            let (all, keys) = (ByteSize(kinds.bytes()).to_string(), ByteSize(kinds.keys));
            let windows = of(windows > 0, "windows", kinds.windows);
            let states = of(state > 0, "states", kinds.states);
            let _ = writeln!(out, "          {tier:6} {all:>11}: keys {keys}{windows}{states}");
        }
    }
    let moved = &point.moved;
    if point.host() + point.disk() > 0 {
        let [loaded, disk, written] = [moved.host_bytes, moved.disk_bytes, moved.written_bytes].map(ByteSize);
        let _ = writeln!(out, "          loaded {loaded}, of it {disk} from disk; written {written}");
        let _ = writeln!(out, "          {} requests loaded, {} computed instead", moved.loads, moved.declined);
        if answer.bounded {
            let _ = writeln!(out, "          saved at least by the bound: {:.0} s of computing", moved.seconds_saved);
        }
    }
    if let Some(price) = answer.price {
        let _ = writeln!(out, "          price {price:.2}");
    }
    out
}

/// What more of each tier would bring.
fn gains(answer: &TiersAnswer) -> String {
    let mut out = "A FURTHER GiB       of the hit rate\n".to_owned();
    for gain in &answer.gains {
        let _ = writeln!(out, "  {:16}  {:+.5} (over {})", gain.place, gain.per_gib, ByteSize(gain.added));
    }
    out
}

/// The rate by the distance of states; nothing where only one was tried.
fn distances(answer: &TiersAnswer) -> String {
    if answer.distances.len() < 2 {
        return String::new();
    }
    let said = answer.distances.iter().map(|point| format!("{} {:.4}", point.distance, point.hit_rate));
    let said: Vec<String> = said.collect();
    let mut out = "A STATE EVERY … TOKENS of a prompt\n".to_owned();
    said.chunks(5).for_each(|some| out += &format!("  {}\n", some.join(" · ")));
    out
}

/// The rate by how states are stored; nothing where they are stored as they are.
fn storages(answer: &TiersAnswer) -> String {
    if answer.storages.is_empty() {
        return String::new();
    }
    let said = answer.storages.iter().map(|point| format!("{} {:.4}", point.stored, point.hit_rate));
    format!("THE SAME TIERS, STATES BELOW STORED IN\n  {}\n", said.collect::<Vec<_>>().join(" · "))
}

/// The sizes as an engine is told them.
fn flags(of: &TierFlags) -> String {
    let TierFlags { engine, read_in, lines, notes } = of;
    let mut out = format!("# {engine} {read_in}\n");
    lines.iter().for_each(|line| out += &format!("{line}\n"));
    notes.iter().for_each(|note| out += &format!("# {note}\n"));
    out
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
