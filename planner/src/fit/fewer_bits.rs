//! What a model would need if its weights took fewer bits: the cheapest that holds what was asked for then.

use super::answer::{FewerBits, Fit, cost};
use super::trial::Variant;
use super::{Engines, FitQuestion, OnDevice};
use crate::engines::EngineSpec;
use crate::request::PlanRequest;
use crate::weight_bits::{StatedWeights, WeightBits};

impl PlanRequest {
    /// What weights of fewer bits would need, of what costs less than `best`; by the engines where any are asked.
    pub(super) fn in_fewer_bits(
        &self,
        layouts: &[OnDevice<'_>],
        best: Option<&Fit>,
        question: &FitQuestion,
        engines: Engines<'_>,
    ) -> Vec<FewerBits> {
        let is_stated = self.config().budget.memory.as_ref().is_some_and(|memory| memory.weights.is_some());
        let Some(own) = self.weights().filter(|_| question.weights.is_none() && !is_stated) else { return Vec::new() };
        let of = |bits: WeightBits, asked: &[EngineSpec]| {
            let weights_bytes = self.weights_at(bits, asked.first().map(|engine| engine.engine))?;
            // Of a model that is stored in as few, or nearly.
            if weights_bytes as f64 > 0.8 * own.0 as f64 {
                return None;
            }
            let question = FitQuestion { weights: Some(StatedWeights::Bits(bits)), ..question.clone() };
            let fit = self.cheapest(layouts, best, &question, Engines { asked, ..engines });
            Some(FewerBits { bits: bits.count(), weights_bytes, fit })
        };
        let (in_blocks, other): (Vec<EngineSpec>, Vec<EngineSpec>) =
            engines.asked.iter().partition(|engine| engine.engine.rules().weights_in_blocks);
        // Engines that have them alike are asked at once; where none is, the plan's own pools are.
        let mut alike = vec![other, in_blocks];
        alike.retain(|asked| asked.is_empty() == engines.asked.is_empty());
        alike.dedup();
        let offered = |asked: &Vec<EngineSpec>| {
            WeightBits::ALL.into_iter().filter_map(|bits| of(bits, asked)).collect::<Vec<_>>()
        };
        alike.iter().map(offered).fold(Vec::new(), FewerBits::joined)
    }

    /// The cheapest layout that holds what is asked for, of those that cost less than another.
    fn cheapest(
        &self,
        layouts: &[OnDevice<'_>],
        best: Option<&Fit>,
        question: &FitQuestion,
        engines: Engines<'_>,
    ) -> Option<Fit> {
        let mut tries: Vec<Fit> = Vec::new();
        let changes = |fit: &Fit| [fit.kv_dtype.is_some(), fit.state_dtype.is_some()];
        for (name, device, layouts) in layouts {
            for variant in Variant::all(self, None, device) {
                let own = |parallel| self.varied(variant, device, parallel, question, Engines::NONE, None);
                let fits = layouts.iter().filter_map(|parallel| own(*parallel));
                tries.extend(fits.map(|tried| tried.priced(name, device, variant, question)));
            }
        }
        tries.retain(|fit| best.is_none_or(|best| cost(fit) < cost(best)));
        super::in_order(&mut tries);
        // An engine's pools hold little more than the plan's own, so that most need not be asked about.
        let is_near = |fit: &&Fit| fit.sequences.saturating_add(fit.sequences / 4) >= question.needed();
        match engines.asked {
            [] => tries.into_iter().find(|fit| fit.holds),
            asked => tries.iter().filter(is_near).find_map(|own| {
                let (name, device, _) = layouts.iter().find(|(name, ..)| *name == own.device)?;
                let mut told = asked.iter().filter_map(|engine| {
                    let variants = Variant::all(self, Some(*engine), device);
                    let variant = variants.into_iter().find(|it| it.changes() == changes(own))?;
                    let tried = self.varied(variant, device, own.parallel, question, engines, None)?;
                    Some(tried.priced(name, device, variant, question))
                });
                told.find(|fit| fit.holds)
            }),
        }
    }
}
