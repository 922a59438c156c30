//! How many ranks can divide a model: what of its layers every layout must divide.

use cacheplan_transforms::layers::{BlockSpec, LayerSpec};

use crate::parallel::Parallel;

/// Devices of one node: tensor parallel ranks exchange too much to be further apart.
const NODE: u32 = 8;

/// What of a model limits how it can be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Divisible {
    /// What `tp` must divide, since every rank has whole query heads: their greatest common divisor; 0 without attention.
    heads: u64,
    /// Routed experts of a layer.
    experts: Option<u64>,
    layers: u32,
}

impl Divisible {
    pub(crate) fn of(layers: &[LayerSpec]) -> Self {
        let mut divisible = Self { heads: 0, experts: None, layers: layers.len() as u32 };
        for block in layers.iter().flat_map(|layer| &layer.blocks) {
            let heads = match block {
                BlockSpec::Attention(dims) => dims.num_heads,
                BlockSpec::Mla(dims) => dims.num_heads,
                BlockSpec::CompressedAttention(dims) => dims.num_heads,
                BlockSpec::FeedForward(dims) => {
                    divisible.experts = Some(dims.experts).filter(|&experts| experts > 0).or(divisible.experts);
                    continue;
                }
                _ => continue,
            };
            divisible.heads = gcd(divisible.heads, heads);
        }
        divisible
    }

    /// Why no engine runs the model divided so, in words with what would do.
    pub(crate) fn refuses(&self, parallel: Parallel) -> Option<String> {
        let tp = parallel.tp;
        if self.divides(tp) {
            return None;
        }
        let heads = self.heads;
        let sizes: Vec<String> = (1..=tp).filter(|&size| self.divides(size)).map(|size| size.to_string()).collect();
        Some(format!(
            "tp {tp} does not divide the query heads of all layers (common divisor {heads}); these do: {}",
            sizes.join(", ")
        ))
    }

    fn divides(&self, tp: u32) -> bool {
        self.heads.is_multiple_of(tp.into())
    }

    /// Layouts that engines can run on up to `most` devices: `tp` a power of two inside a node that divides all heads,
    /// stages and replicas in powers of two, experts over all replicas or in each.
    pub(crate) fn layouts(&self, most: u32, stated: Parallel) -> Vec<Parallel> {
        let powers = |most: u32| (0..).map(|power| 1u32 << power).take_while(move |&size| size <= most);
        // What is stated above 1 is kept.
        let sizes = |stated: u32, most: u32| -> Vec<u32> {
            if stated > 1 { (stated <= most).then_some(stated).into_iter().collect() } else { powers(most).collect() }
        };
        let mut layouts = Vec::new();
        for tp in sizes(stated.tp, most.min(NODE.max(stated.tp))).into_iter().filter(|&tp| self.divides(tp)) {
            // Stages are for models that no node holds.
            let stages = if tp == NODE.min(most) || stated.pp > 1 { (most / tp).min(self.layers.max(1)) } else { 1 };
            for pp in sizes(stated.pp, stages) {
                for dp in sizes(stated.dp, most / (tp * pp)) {
                    let alone = Parallel { tp, pp, dp, ep: 1, ..stated };
                    if stated.ep == 1 {
                        layouts.push(alone);
                    }
                    let ep = tp * dp;
                    let divides = self.experts.is_some_and(|experts| experts.is_multiple_of(ep.into()));
                    if divides && (dp > 1 || stated.ep > 1) {
                        layouts.push(Parallel { ep, ..alone });
                    }
                }
            }
        }
        layouts
    }
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
