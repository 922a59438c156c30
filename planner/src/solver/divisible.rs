//! How many ranks can divide a model: what of its layers every layout must divide.

use cacheplan_transforms::layers::{BlockSpec, LayerSpec};

use crate::parallel::Parallel;

/// Devices of one node: tensor parallel ranks exchange too much to be further apart.
const NODE: u32 = 8;

/// Up to so many devices every number is tried: more are rented by whole nodes.
const EVERY: u32 = 16;

/// The largest size that a refusal proposes.
const MOST_LISTED: u32 = 1024;

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

    /// Why no engine runs the model divided so, in words with what would do: of what divides its heads what `admits` its caches
    /// too.
    pub(crate) fn refuses(&self, parallel: Parallel, admits: impl Fn(Parallel) -> bool) -> Option<String> {
        let tp = parallel.tp;
        if self.divides(tp) {
            return None;
        }
        let heads = self.heads;
        let most = u32::try_from(heads).map_or(MOST_LISTED, |heads| heads.min(MOST_LISTED));
        let does = |tp: &u32| self.divides(*tp) && admits(Parallel { tp: *tp, ..parallel });
        let sizes: Vec<String> = (1..=most).filter(does).map(|size| size.to_string()).collect();
        Some(format!(
            "tp {tp} does not divide the query heads of all layers (common divisor {heads}); these do: {}",
            sizes.join(", ")
        ))
    }

    fn divides(&self, tp: u32) -> bool {
        self.heads.is_multiple_of(tp.into())
    }

    /// Layouts that engines can run on up to `most` devices, every number of them up to [`EVERY`]: of each size of a replica
    /// the one with the fewest stages, which wait for each other, so many replicas of it, and experts over all replicas or in
    /// each. What is stated of experts is kept: all ranks, or so many. `divides` says of a `tp` whether it divides the caches too.
    pub(crate) fn layouts(&self, most: u32, stated: Parallel, divides: impl Fn(u32) -> bool) -> Vec<Parallel> {
        // What is stated above 1 is kept.
        let is_stated = |stated: u32, size: u32| stated == 1 || stated == size;
        let of_heads = |tp: &u32| is_stated(stated.tp, *tp) && self.divides(*tp) && divides(*tp);
        let tensor: Vec<u32> = (1..=most.min(NODE.max(stated.tp))).rev().filter(of_heads).collect();
        let replicas = counts(most).filter_map(|size| {
            let has_stages = |tp: &&u32| {
                let pp = size / **tp;
                size.is_multiple_of(**tp) && is_stated(stated.pp, pp) && pp <= self.layers.max(1)
            };
            let tp = tensor.iter().find(has_stages)?;
            Some((size, Parallel { tp: *tp, pp: size / tp, dp: 1, ep: 1, ..stated }))
        });
        let mut layouts = Vec::new();
        for (size, replica) in replicas {
            for dp in counts(most / size).filter(|dp| is_stated(stated.dp, *dp)) {
                if size * dp > EVERY && !(size * dp).is_power_of_two() {
                    continue;
                }
                let alone = Parallel { dp, ..replica };
                let all = replica.tp * dp;
                let divides = |ep: u32| self.experts.is_none_or(|experts| experts.is_multiple_of(ep.into()));
                let sizes = match stated.ep {
                    1 => [Some(1), Some(all).filter(|_| dp > 1 && self.experts.is_some())],
                    // All ranks, however many.
                    ep if ep == stated.tp * stated.dp => [None, Some(all)],
                    ep => [None, Some(ep).filter(|ep| all.is_multiple_of(*ep))],
                };
                let sizes = sizes.into_iter().flatten().filter(|ep| divides(*ep));
                layouts.extend(sizes.map(|ep| Parallel { ep, ..alone }));
            }
        }
        layouts
    }
}

/// Every number up to [`EVERY`], then powers of two.
fn counts(most: u32) -> impl Iterator<Item = u32> {
    let powers = (0..u32::BITS).map(|power| 1 << power).filter(|size| *size > EVERY);
    (1..=EVERY).chain(powers).take_while(move |size| *size <= most)
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_divide_a_model_is_refused_with_all_that_does() {
        let parallel = Parallel { tp: 3, ..Parallel::default() };
        let divisible = Divisible { heads: 64, experts: None, layers: 4 };
        let refused = divisible.refuses(parallel, |_| true).unwrap();
        assert!(refused.ends_with("these do: 1, 2, 4, 8, 16, 32, 64"), "{refused}");
        let refused = divisible.refuses(parallel, |other| other.tp <= 8).unwrap();
        assert!(refused.ends_with("these do: 1, 2, 4, 8"), "{refused}");
    }
}
