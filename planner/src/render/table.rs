//! The plan as a table.

use cacheplan_handlers::Growth;

use super::{Line, align, lines, owner_name, wrap};
use crate::plan::{CachePlan, Certainty, Deployment, HostPlan, ManagerKind, Unit};
use crate::size::{ByteSize, sequences};

impl CachePlan {
    /// The plan as a text table, 80 columns wide, or as far as 100 where pools have long names, with one line for resources
    /// that are alike.
    pub fn table(&self) -> String {
        let mut text = header(self);
        text.push_str("\nRESOURCES\n");
        text.push_str(&resources(self));
        text.push_str("\nPOOLS\n");
        text.push_str(&pools(self));
        text.push_str("\nLEDGER\n");
        text.push_str(&ledger(self));
        if let Some(deployment) = &self.deployment {
            text.push_str(&weights(deployment));
        }
        if let Some(host) = &self.host {
            text.push_str("\nHOST TIER\n");
            text.push_str(&host_tier(host));
        }
        text.push('\n');
        text.push_str(&capacity(self));
        text
    }

    /// What a token takes as long as a sequence grows, and what stops growing apart from that.
    pub fn totals_in_words(&self) -> String {
        let windows: Vec<(u64, u64)> = self
            .resources
            .iter()
            .filter_map(|resource| match resource.handler.growth().within(self.limits.max_seq_len) {
                Growth::Paged { window: Some(window), .. } => Some((resource.bytes_per_token, window.into())),
                _ => None,
            })
            .collect();
        let windowed: u64 = windows.iter().map(|(bytes, _)| bytes).sum();
        let full: u64 = windows.iter().map(|(bytes, window)| bytes.saturating_mul(*window)).sum();
        let per_token = ByteSize(self.totals.kv_bytes_per_token.saturating_sub(windowed));
        let states = ByteSize(self.totals.state_bytes_per_sequence);
        let windows = if full > 0 { format!("{} in full windows and ", ByteSize(full)) } else { String::new() };
        format!("{per_token} per token, {windows}{states} of states per sequence")
    }
}

fn header(plan: &CachePlan) -> String {
    let manager = match plan.manager {
        ManagerKind::KvCacheManager => "KvCacheManager",
        ManagerKind::MambaHybridCacheManager => "MambaHybridCacheManager",
    };
    let (limits, slots) = (&plan.limits, plan.slots);
    // What nobody's state takes stands in no line of its own: it is a part of each pool.
    let of_padding = plan.pools.iter().filter(|pool| pool.unit == Unit::Slot);
    let of_padding =
        of_padding.fold(0u64, |sum, pool| sum.saturating_add(pool.reserved.saturating_mul(pool.unit_bytes)));
    let padding = if of_padding > 0 { format!(" ({})", ByteSize(of_padding)) } else { String::new() };
    let model = &plan.model;
    let mut rows = vec![vec!["MODEL".into(), format!("{}, {} layers, {}", model.title(), model.layers, model.dtype)]];
    rows.extend(model.revision.as_ref().map(|revision| vec!["READ AT".into(), revision.clone()]));
    rows.extend([
        vec!["MANAGER".into(), format!("{manager}, grouping {}", plan.policy)],
        vec![
            "LIMITS".into(),
            format!(
                "max_seq_len {}, max_batch_size {}, max_num_tokens {}",
                limits.max_seq_len, limits.max_batch_size, limits.max_num_tokens
            ),
        ],
        vec![
            "SLOTS".into(),
            format!("{} padding{} + {} live + {} checkpoints", slots.padding, padding, slots.live, plan.checkpoints()),
        ],
        vec!["SEQUENCE".into(), plan.sequence_in_words()],
    ]);
    joined(align(&rows, &[]))
}

fn resources(plan: &CachePlan) -> String {
    let lines = lines(plan);
    let mut rows = vec![["", "pool", "dtype", "owner", "per token", "per sequence"].map(String::from).to_vec()];
    rows.extend(lines.iter().map(|Line { first, count, .. }| {
        let local = first.pool == first.name;
        vec![
            format!("{count} x"),
            if local { first.kind.to_string() } else { first.pool.clone() },
            first.dtype.to_string(),
            if local { format!("{}, own tensor", owner_name(first.owner)) } else { owner_name(first.owner).into() },
            bytes_or_dash(first.bytes_per_token),
            bytes_or_dash(first.bytes_per_sequence),
        ]
    }));
    let mut rows = align(&rows, &[0, 4, 5]).into_iter();
    let mut text = rows.next().map(|heading| heading + "\n").unwrap_or_default();
    for (row, line) in rows.zip(&lines) {
        text.push_str(&row);
        text.push('\n');
        text.push_str(&wrap(&line.place(), 6));
        text.push_str(&wrap(&format!("{} ({})", line.first.reason, source_name(line.first.source)), 6));
    }
    text
}

fn pools(plan: &CachePlan) -> String {
    let mut rows = vec![["pool", "units", "of", "unit bytes", "bytes"].map(String::from).to_vec()];
    for pool in plan.pools.iter().filter(|pool| pool.owner.is_managed()) {
        let unit = match (pool.unit, pool.tokens_per_block) {
            _ if pool.checkpoints_of.is_some() => format!("checkpoints in {}", pool.dtype),
            (Unit::Block, Some(tokens)) => match pool.window {
                Some(window) => format!("blocks of {tokens} tokens, window {window}"),
                None => format!("blocks of {tokens} tokens"),
            },
            (Unit::Block, None) => "blocks".into(),
            (Unit::Slot, _) => "slots".into(),
            (Unit::Fixed, _) => "tensor".into(),
        };
        rows.push(vec![
            pool.id.clone(),
            pool.units.to_string(),
            unit,
            pool.unit_bytes.to_string(),
            ByteSize(pool.bytes).to_string(),
        ]);
    }
    let local: Vec<_> = plan.pools.iter().filter(|pool| !pool.owner.is_managed()).collect();
    if !local.is_empty() {
        let bytes = local.iter().map(|pool| pool.bytes).sum();
        let count = local.len().to_string();
        let cells = ["local".into(), count, "tensors".into(), "-".into(), ByteSize(bytes).to_string()];
        rows.push(cells.to_vec());
    }
    joined(align(&rows, &[1, 3, 4]))
}

fn ledger(plan: &CachePlan) -> String {
    let mut rows = vec![["", "bytes", "", "source", "note"].map(String::from).to_vec()];
    rows.extend(plan.ledger.iter().map(|line| {
        vec![
            line.name.to_string(),
            line.bytes.to_string(),
            ByteSize(line.bytes).to_string(),
            source_name(line.source).into(),
            line.note.clone(),
        ]
    }));
    joined(align(&rows, &[1, 2]))
}

/// What a rank holds of each class of weights.
fn weights(deployment: &Deployment) -> String {
    if deployment.weights.is_empty() {
        return String::new();
    }
    let mut rows = vec![["", "in all", "ranks", "per rank"].map(String::from).to_vec()];
    rows.extend(deployment.weights.iter().map(|share| {
        let (bytes, each) = (ByteSize(share.bytes).to_string(), ByteSize(share.bytes_per_rank).to_string());
        vec![share.class.clone(), bytes, share.ranks.to_string(), each]
    }));
    format!("\nWEIGHTS (divided as vLLM does, assumed)\n{}", joined(align(&rows, &[1, 2, 3])))
}

fn host_tier(host: &HostPlan) -> String {
    let mut rows = vec![["", "units", "unit bytes", "bytes"].map(String::from).to_vec()];
    rows.extend(host.pools.iter().map(|pool| {
        let (units, each) = (pool.units.to_string(), pool.unit_bytes.to_string());
        vec![pool.pool.clone(), units, each, ByteSize(pool.bytes).to_string()]
    }));
    rows.push(vec!["unused".into(), String::new(), String::new(), ByteSize(host.unused_bytes).to_string()]);
    let claim = format!("{} in {}", sequences(host.sequences), ByteSize(host.bytes));
    format!("{claim}\n{}", joined(align(&rows, &[1, 2, 3])))
}

fn capacity(plan: &CachePlan) -> String {
    let capacity = &plan.capacity;
    let tokens =
        capacity.tokens.map_or_else(|| "no paged tokens".into(), |tokens| format!("{tokens} {}", plan.in_pages()));
    let managed = ByteSize(plan.totals.managed_bytes);
    let unmanaged = ByteSize(plan.totals.unmanaged_bytes);
    let per_replica =
        plan.deployment.as_ref().filter(|deployment| deployment.replicas > 1).map_or("", |_| " per replica");
    let deployment = plan.deployment.as_ref().map(|all| {
        let Deployment { devices, replicas, devices_per_replica: each, .. } = all;
        let served = sequences(all.sequences);
        let replicas = if *replicas == 1 { "1 replica".into() } else { format!("{replicas} replicas of {each}") };
        vec!["IN ALL".into(), format!("{served} on {devices} devices, {replicas}")]
    });
    let mut rows = vec![
        vec![
            "CAPACITY".into(),
            format!(
                "{}{per_replica} of {} tokens, {tokens}, capped by {}",
                sequences(capacity.sequences),
                capacity.tokens_per_sequence,
                capacity.capped_by
            ),
        ],
        vec!["BYTES".into(), format!("{managed} managed, {unmanaged} unmanaged")],
    ];
    rows.extend(deployment);
    joined(align(&rows, &[]))
}

fn bytes_or_dash(bytes: u64) -> String {
    if bytes == 0 { "-".into() } else { ByteSize(bytes).to_string() }
}

pub(crate) const fn source_name(source: Certainty) -> &'static str {
    match source {
        Certainty::Exact => "exact",
        Certainty::Measured => "measured",
        Certainty::Assumed => "assumed",
    }
}

fn joined(lines: Vec<String>) -> String {
    lines.into_iter().map(|line| line + "\n").collect()
}
