//! The plans of several ranks for people.

use std::collections::BTreeSet;

use cacheplan_handlers::Split;

use super::columns::align;
use super::yaml::yaml;
use crate::plan::{CachePlan, PlannedResource, RankPlans};
use crate::size::sequences;

/// Pools that are named where several are alike.
const NAMED: usize = 2;

impl RankPlans {
    /// What all ranks agreed on, as lines at most 100 columns wide.
    pub fn heading(&self) -> String {
        let (parallel, agreed) = (&self.parallel, &self.agreement);
        let sizes: Vec<String> =
            parallel.sizes().iter().filter(|(_, size)| *size > 1).map(|(key, size)| format!("{key} {size}")).collect();
        let of_each = if parallel.dp > 1 { " per replica" } else { "" };
        let mut served = format!("{}{of_each}, {} spare tokens", sequences(agreed.sequences), agreed.spare_tokens);
        if let Some(parked) = agreed.host_sequences {
            served.push_str(&format!(", {} on each host", sequences(parked)));
        }
        let alike = parallel.world_size() / u64::from(parallel.pp);
        let ranks = format!("{} ({}), {alike} alike in each stage", parallel.world_size(), sizes.join(", "));
        let mut rows = vec![["RANKS".into(), ranks], ["AGREED".into(), served], ["HASH".into(), self.hash.clone()]];
        rows.extend(self.whole().map(|whole| ["WHOLE".into(), whole]));
        let rows: Vec<Vec<String>> = rows.into_iter().map(Vec::from).collect();
        align(&rows, &[]).into_iter().map(|line| line + "\n").collect()
    }

    /// The pools of which tensor parallel ranks divide nothing.
    fn whole(&self) -> Option<String> {
        let is_whole =
            |resource: &PlannedResource| resource.handler.shape().iter().all(|dim| dim.split == Split::Whole);
        let resources = self.stages.iter().flat_map(|plan| &plan.resources);
        let pools: BTreeSet<&str> = resources.filter(|it| is_whole(it)).map(|resource| &*resource.pool).collect();
        let pools: Vec<&str> = pools.into_iter().collect();
        let is_divided = self.parallel.tp > 1 && !pools.is_empty();
        let more = pools.len().saturating_sub(NAMED);
        let named = pools.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        let named = if more > 0 { format!("{named} and {more} more") } else { named };
        is_divided.then(|| format!("{named}: whole on every rank of tp"))
    }

    /// The heading and the plan of each stage, as text tables.
    pub fn table(&self) -> String {
        self.heading() + &self.stages("\nSTAGE ", CachePlan::table)
    }

    /// The same as Markdown.
    pub fn markdown(&self) -> String {
        format!("```text\n{}```\n{}", self.heading(), self.stages("\n# Stage ", CachePlan::markdown))
    }

    /// The plans as YAML, with the keys of their JSON.
    pub fn yaml(&self) -> String {
        // Plain data always has a JSON value.
        yaml(&serde_json::to_value(self).unwrap_or_default())
    }

    fn stages(&self, title: &str, show: impl Fn(&CachePlan) -> String) -> String {
        self.stages.iter().enumerate().map(|(stage, plan)| format!("{title}{stage}\n\n{}", show(plan))).collect()
    }
}
