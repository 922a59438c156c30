//! The plan as Markdown, for issues and documents.

use super::{Line, lines, owner_name, ranges, source_name};
use cacheplan_files::Shown;

use crate::plan::{CachePlan, HostPlan};
use crate::size::{ByteSize, sequences};

impl CachePlan {
    /// The plan as Markdown with tables of its resources, pools and ledger.
    pub fn markdown(&self) -> String {
        let (capacity, totals) = (&self.capacity, &self.totals);
        let tokens = capacity.tokens.map(|tokens| format!(", {tokens} {}", self.in_pages())).unwrap_or_default();
        let mut text = format!(
            "# Cache plan of {} ({} layers, {}, grouping {})\n\n\
             **{}** of {} tokens{tokens}, capped by {}. {} managed, {} unmanaged.\n",
            cell(&self.model.title()),
            self.model.layers,
            self.model.dtype,
            self.policy,
            sequences(capacity.sequences),
            capacity.tokens_per_sequence,
            cell(&capacity.capped_by.to_string()),
            ByteSize(totals.managed_bytes),
            ByteSize(totals.unmanaged_bytes),
        );
        text.push_str("\n## Resources\n\n");
        text.push_str(&resources(self));
        text.push_str("\n## Pools\n\n");
        text.push_str(&pools(self));
        text.push_str("\n## Ledger\n\n");
        text.push_str(&ledger(self));
        if let Some(host) = &self.host {
            let size = ByteSize(host.bytes);
            text.push_str(&format!("\n## Host tier\n\n{} in {size}.\n\n", sequences(host.sequences)));
            text.push_str(&host_tier(host));
        }
        text
    }
}

fn resources(plan: &CachePlan) -> String {
    let heading = ["resources", "layers", "kind", "dtype", "owner", "pool", "per token", "per sequence", "reason"];
    let rows = lines(plan).into_iter().map(|Line { first, layers, count }| {
        let own = first.pool == first.name;
        vec![
            count.to_string(),
            if first.drafts { format!("draft {}", ranges(&layers)) } else { ranges(&layers) },
            first.kind.clone(),
            first.dtype.to_string(),
            owner_name(first.owner).into(),
            if own { "own tensor".into() } else { first.pool.clone() },
            ByteSize(first.bytes_per_token).to_string(),
            ByteSize(first.bytes_per_sequence).to_string(),
            first.reason.clone(),
        ]
    });
    table(&heading, "rlllllrrl", rows)
}

fn pools(plan: &CachePlan) -> String {
    let rows = plan.pools.iter().map(|pool| {
        vec![
            pool.id.clone(),
            owner_name(pool.owner).into(),
            pool.units.to_string(),
            pool.unit_bytes.to_string(),
            pool.bytes.to_string(),
            ByteSize(pool.bytes).to_string(),
        ]
    });
    table(&["pool", "owner", "units", "unit bytes", "bytes", ""], "llrrrr", rows)
}

fn ledger(plan: &CachePlan) -> String {
    let rows = plan.ledger.iter().map(|line| {
        vec![
            line.name.to_string(),
            line.bytes.to_string(),
            ByteSize(line.bytes).to_string(),
            source_name(line.source).into(),
            line.note.clone(),
        ]
    });
    table(&["", "bytes", "", "source", "note"], "lrrll", rows)
}

fn host_tier(host: &HostPlan) -> String {
    let row = |name: &str, units: String, each: String, bytes: u64| {
        vec![name.to_owned(), units, each, bytes.to_string(), ByteSize(bytes).to_string()]
    };
    let pools = host.pools.iter();
    let pools = pools.map(|pool| row(&pool.pool, pool.units.to_string(), pool.unit_bytes.to_string(), pool.bytes));
    let unused = row("unused", String::new(), String::new(), host.unused_bytes);
    table(&["pool", "units", "unit bytes", "bytes", ""], "lrrrr", pools.chain([unused]))
}

/// A table whose columns are left or right by the letters of `alignment`.
pub(super) fn table(heading: &[&str], alignment: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let rule = alignment.chars().map(|side| if side == 'r' { "---:" } else { "---" });
    let mut text = format!("| {} |\n| {} |\n", heading.join(" | "), rule.collect::<Vec<_>>().join(" | "));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|text| cell(text)).collect();
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text
}

/// Text that cannot end its cell or its line, nor be taken for a tag.
pub(super) fn cell(text: &str) -> String {
    Shown(text).to_string().replace('|', "\\|").replace('<', "&lt;")
}
