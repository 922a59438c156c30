//! The most bytes that a piece of work has beyond what is resident, counted and not derived.

/// Holds what was counted around a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// Bytes allocated before it.
    pub resident_bytes: u64,
    /// The most bytes allocated at once during it, beyond those.
    pub beyond_bytes: u64,
    /// What counted.
    pub method: &'static str,
}

/// Bytes of a device's memory pool.
#[cfg(any(test, feature = "cuda"))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    /// Handed out.
    pub(super) used: u64,
    /// Taken from the device, in larger pieces.
    pub(super) reserved: u64,
}

/// What a memory pool says around a piece of work.
#[cfg(any(test, feature = "cuda"))]
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolPeak {
    /// Once it was trimmed.
    pub(super) before: Counted,
    /// The most of each meanwhile.
    pub(super) high: Counted,
}

#[cfg(any(test, feature = "cuda"))]
impl PoolPeak {
    /// What the work has to find free: what it was handed, or what the pool took of the device for that, whichever is
    /// more. Pieces that do not fit together cost the latter.
    pub(super) fn of_work(self) -> Peak {
        let Self { before, high } = self;
        let (used, reserved) = (high.used.saturating_sub(before.used), high.reserved.saturating_sub(before.reserved));
        Peak {
            resident_bytes: before.used,
            beyond_bytes: used.max(reserved),
            method: "CUDA memory pool, USED_MEM_HIGH and RESERVED_MEM_HIGH",
        }
    }
}

#[cfg(test)]
mod tests {
    use cacheplan_handlers::DType;
    use cacheplan_planner::{Budget, ForwardProfile, PlanRequest};
    use cacheplan_transforms::{GraphBuilder, layers::Attention};
    use rstest::rstest;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn peak(before: [u64; 2], high: [u64; 2]) -> Peak {
        let counted = |[used, reserved]: [u64; 2]| Counted { used, reserved };
        PoolPeak { before: counted(before), high: counted(high) }.of_work()
    }

    #[rstest]
    #[case::found_in_what_the_pool_had([100, 128], [120, 128], 20)]
    #[case::taken_in_larger_pieces([100, 128], [150, 256], 128)]
    #[case::nothing([100, 128], [100, 128], 0)]
    fn work_needs_what_it_was_handed_or_what_the_pool_took_for_it(
        #[case] before: [u64; 2],
        #[case] high: [u64; 2],
        #[case] expected: u64,
    ) {
        let peak = peak(before, high);
        assert_eq!((peak.resident_bytes, peak.beyond_bytes), (before[0], expected));
    }

    #[test]
    fn caches_leave_room_for_what_the_pool_took_and_no_more() {
        let mut builder = GraphBuilder::new("decoder", 512, DType::Bf16);
        builder.layer();
        builder.attention(&Attention::grouped(8, 2, 64));
        let mut model = builder.build();
        let text = "max_seq_len = 1024\nmax_batch_size = 1000\n[memory]\nfraction = 1.0\nof = \"free\"\n";
        let budget = Budget::from_toml(text, "budget.toml").unwrap();
        let resources = model.graph.collect(&budget.pass_context(&model.info)).unwrap().resources;
        let caches = |peak: Peak| {
            let measurement = ForwardProfile {
                resident_bytes: peak.resident_bytes,
                forward_bytes: peak.beyond_bytes,
                free_bytes: 64 * MIB,
            };
            let plan = PlanRequest::of((model.info.clone(), resources.clone()))
                .with_budget(budget.clone())
                .with_profile(measurement)
                .plan()
                .unwrap();
            (plan.pools.iter().map(|pool| pool.bytes).sum::<u64>(), plan.pools[0].unit_bytes)
        };
        let (bytes, unit) = caches(peak([100 * MIB, 128 * MIB], [104 * MIB, 144 * MIB]));
        assert!(bytes <= 48 * MIB && bytes + unit > 48 * MIB, "{bytes}");
        let (more, _) = caches(peak([100 * MIB, 128 * MIB], [104 * MIB, 128 * MIB]));
        assert!(more <= 60 * MIB && more + unit > 60 * MIB, "{more}");
    }
}
